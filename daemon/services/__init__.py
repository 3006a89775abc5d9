"""services: see docs/architecture.md."""
