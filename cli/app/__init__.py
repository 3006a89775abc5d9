"""app: see docs/architecture.md."""
