"""broker: see docs/architecture.md."""
