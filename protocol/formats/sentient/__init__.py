"""The format `sentient` (docs/adapters/sentient.md)."""
