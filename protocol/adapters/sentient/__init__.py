"""sentient: see docs/architecture.md."""
