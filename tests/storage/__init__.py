"""Tests of samza_azure.storage: contracts on memory and Azurite, faults, secrets."""
