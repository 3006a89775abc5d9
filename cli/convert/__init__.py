"""Offline conversion between the formats: `aghctl convert` (docs/adapters/README.md)."""
