"""The format `humaninloop` (docs/adapters/humaninloop.md)."""
