"""Synadia's agent protocol: our peers for its clients, and its agents as peers (docs/adapters/synadia.md)."""
