"""humaninloop: see docs/architecture.md."""
