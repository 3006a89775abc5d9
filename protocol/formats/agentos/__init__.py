"""The format `agentos` (docs/adapters/agentos.md)."""
