"""send: see docs/architecture.md."""
