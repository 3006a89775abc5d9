"""Helpers of the `aghctl chain` commands (docs/adapters/chains.md)."""
