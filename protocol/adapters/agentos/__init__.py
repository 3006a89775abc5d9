"""agentos: see docs/architecture.md."""
