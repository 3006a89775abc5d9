"""Exponential backoff: the delays between attempts. Jitter is up to the caller.

`aghctl` imports this module on every start, so it imports nothing.
"""

_MOST_DOUBLINGS = 32  # beyond every ceiling in use


def exponential_delay(failures: int, first: float, ceiling: float) -> float:
    """The delay after `failures` (at least 1) failed attempts: `first`, doubled by each further failure, at most `ceiling`.

    In the unit of `first` and `ceiling`.
    """
    return min(first * 2.0 ** min(failures - 1, _MOST_DOUBLINGS), ceiling)


class Backoff:
    """The delays of one series of attempts: in seconds, `first`, then doubled each time, at most `ceiling`."""

    __slots__ = ("_ceiling", "_failures", "_first")

    def __init__(self, first: float, ceiling: float) -> None:
        self._first = first
        self._ceiling = ceiling
        self._failures = 0

    def next(self) -> float:
        """The delay before the next attempt."""
        self._failures += 1
        return exponential_delay(self._failures, self._first, self._ceiling)

    def reset(self) -> None:
        """Begin with the first delay again, after an attempt that succeeded."""
        self._failures = 0
