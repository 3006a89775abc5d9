"""Percentiles and spread."""

import math
from collections.abc import Sequence


def percentile(samples: Sequence[float], share: float) -> float:
    """The smallest sample that at least `share` (0 to 1) of them do not exceed: nearest rank, nothing is invented between two."""
    ordered = sorted(samples)
    return ordered[max(0, math.ceil(share * len(ordered)) - 1)]


def spread(samples: Sequence[float]) -> float:
    """Half the range as a share of the middle of it: ±0.1 reads as “within 10 %”."""
    low, high = min(samples), max(samples)
    return (high - low) / (high + low) if high + low else 0.0
