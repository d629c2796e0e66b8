"""Fleets of processors without Spark: real processes, which append to real logs on a real Azurite."""
