"""The format `sacp` (docs/adapters/sacp.md)."""
