"""Formats whose messages need a schema, and registries on this machine."""
