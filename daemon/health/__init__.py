"""The listener of probes and metrics (docs/metrics.md)."""
