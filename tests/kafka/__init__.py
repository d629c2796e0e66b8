"""Brokers on this machine, and what reads them."""
