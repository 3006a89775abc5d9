"""Histograms of durations, which the metrics of the daemon show."""

from bisect import bisect_left
from typing import Final

# fmt: off
BOUNDS: Final = (
    0.0001, 0.0002, 0.0005, 0.001, 0.002, 0.005, 0.01, 0.02, 0.05, 0.1, 0.2, 0.5,
    1.0, 2.0, 5.0, 10.0, 30.0, 60.0, 300.0, 1800.0, 7200.0,
)
# fmt: on
"""Upper bounds of the buckets in seconds, ascending; the last bucket has none."""


class Histogram:
    """How many durations fell into each bucket, and their sum in seconds."""

    __slots__ = ("counts", "sum")

    def __init__(self) -> None:
        self.counts = [0] * (len(BOUNDS) + 1)
        self.sum = 0.0

    def observe(self, seconds: float) -> None:
        """Add a duration. The path of every message does the same without this call."""
        self.counts[bisect_left(BOUNDS, seconds)] += 1
        self.sum += seconds
