"""tables: see docs/architecture.md."""
