"""Event Hubs on this machine, and what reads it."""
