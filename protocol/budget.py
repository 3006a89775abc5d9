"""Token buckets by peer, as values over time: a bound on what one sender can make us do (spec section 5)."""

from collections import OrderedDict


class Budgets:
    """A bucket of `capacity` tokens for each key, refilled at `per_second`; at most `keys` buckets are remembered.

    A forgotten bucket is a full one, so the least recently used go first and nobody is punished for the bound.
    """

    def __init__(self, capacity: float, per_second: float, keys: int = 4096) -> None:
        self._capacity = capacity
        self._per_second = per_second
        self._keys = keys
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def spend(self, key: str, now: float, cost: float = 1.0) -> bool:
        """Take `cost` tokens of `key` at monotonic second `now`; False, and nothing taken, when it has too few."""
        level, since = self._buckets.get(key, (self._capacity, now))
        level = min(self._capacity, level + max(0.0, now - since) * self._per_second)
        allowed = level >= cost
        self._buckets[key] = (level - cost if allowed else level, now)
        self._buckets.move_to_end(key)
        if len(self._buckets) > self._keys:
            self._buckets.popitem(last=False)
        return allowed
