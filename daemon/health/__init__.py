"""The listener of probes and metrics (docs/operations.md)."""
