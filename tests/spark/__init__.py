"""Tests of the container on one real Spark session, with Azurite as the storage: sources run in other processes."""
