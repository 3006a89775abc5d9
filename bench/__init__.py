"""Benchmarks: `python -m bench --quick` (docs/performance.md says what is measured and how).

`figures` are the rows of its table, `harness` what they share, and `peers` the agents that they use, ours and those of other
systems. `micro` has scripts that measure one thing each, and `soak` runs daemons under load for long. `aghctl bench` measures a
user's own broker.
"""
