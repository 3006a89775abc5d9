"""convert: see docs/architecture.md."""
