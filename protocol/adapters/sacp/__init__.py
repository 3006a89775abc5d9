"""sacp: see docs/architecture.md."""
