"""Mapping between works of the bus and Synadia's agent protocol (docs/adapters/synadia.md)."""
