"""Mapping between works of the bus and A2A, as JSON of its version 1.0 (docs/adapters/a2a.md)."""
