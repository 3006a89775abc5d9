"""Benchmarks: `python -m bench --quick` (docs/performance.md says what is measured and how)."""
