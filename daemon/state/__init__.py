"""state: see docs/architecture.md."""
