"""bridge: see docs/architecture.md."""
