"""receive: see docs/architecture.md."""
