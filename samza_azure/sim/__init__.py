"""The system in memory: a storage account that behaves as Azure's does, without one."""
