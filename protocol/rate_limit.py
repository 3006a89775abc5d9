"""Token buckets by peer, as values over time: a bound on what one sender can make us do (spec section 5).

A name on an envelope is only a claim until its signature is verified. So what a claim alone can spend is never what the peer of
that name lives on: `Doubts` keeps failed verifications apart.
"""

from collections import OrderedDict
from collections.abc import Sequence


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
        level = self._level(key, now)
        if level < cost:
            self._set(key, level, now)
            return False
        self._set(key, level - cost, now)
        return True

    def has(self, key: str, now: float, cost: float = 1.0) -> bool:
        """Whether `spend` would succeed now; nothing is taken, and no bucket is remembered for it."""
        return self._level(key, now) >= cost

    def left(self, key: str, now: float) -> float:
        """The tokens of `key` now; nothing is taken."""
        return self._level(key, now)

    def affords(self, key: str, now: float, cost: float) -> bool:
        """Whether the bucket of `key` is enough for `drain` now."""
        return self.suffices(self._level(key, now), cost)

    def suffices(self, level: float, cost: float) -> bool:
        """Whether a bucket with `level` tokens is enough for `drain`: what costs more than it can hold takes a full one."""
        return level >= cost or level >= self._capacity > 0

    def drain(self, key: str, now: float, cost: float) -> None:
        """Take `cost` tokens of `key`, or all that are left where these are fewer: for what has been done already."""
        self._set(key, max(0.0, self._level(key, now) - cost), now)

    def _level(self, key: str, now: float) -> float:
        bucket = self._buckets.get(key)
        if bucket is None:
            return self._capacity
        level, since = bucket
        if now > since:
            level += (now - since) * self._per_second
        return level if level < self._capacity else self._capacity

    def _set(self, key: str, level: float, now: float) -> None:
        buckets = self._buckets
        buckets[key] = (level, now)
        buckets.move_to_end(key)
        if len(buckets) > self._keys:
            buckets.popitem(last=False)


class Doubts:
    """Which claims are worth a verification, so that a flood of wrong signatures does not cost all of our time.

    Verifying is free for what turns out true. A failure spends: of its own bucket where the name has proved itself before, of one
    that all others share when that is empty or the name is unknown. A name that never fails is always verified, whatever floods
    under other names; one that is forged is still let in as far as both buckets go, and its retry brings it again.

    A cost is in tokens. It must be there before the look, since it is spent when that fails; so under a flood small envelopes get
    in before large ones. A full bucket is enough for any.
    """

    def __init__(self, own: Budgets, shared: Budgets, names: int = 4096) -> None:
        """At most `names` are remembered as proved; the one that proved itself longest ago is forgotten first."""
        self._own = own
        self._shared = shared
        self._names = names
        self._proved: OrderedDict[str, None] = OrderedDict()

    def may_try(self, name: str, now: float, cost: float = 1.0) -> bool:
        """Whether an envelope that claims `name` is verified at monotonic second `now`, or held off; `cost` is what it spends if it
        is wrong."""
        return self._shared.affords("", now, cost) or self._pays_itself(name, now, cost)

    def may_try_together(self, total: float, now: float) -> bool:
        """Whether claims that cost so much in all may all be tried, whatever their names: the shared bucket alone has enough. Where
        it has not, `may_try_all` says which."""
        return self._shared.has("", now, total)

    def may_try_all(self, claims: Sequence[tuple[str, float]], now: float) -> list[bool]:
        """`may_try` for each of these claims, name and cost, in turn, as if all before it had turned out wrong."""
        own: dict[str, float] = {}
        shared = self._shared.left("", now)
        allowed = []
        for name, cost in claims:
            if name not in own:
                own[name] = self._own.left(name, now)
            if name in self._proved and self._own.suffices(own[name], cost):
                own[name] = max(0.0, own[name] - cost)
                allowed.append(True)
            elif self._shared.suffices(shared, cost):
                shared = max(0.0, shared - cost)
                allowed.append(True)
            else:
                allowed.append(False)
        return allowed

    def proved(self, name: str) -> None:
        """A signature of `name` was right."""
        self._proved[name] = None
        self._proved.move_to_end(name)
        if len(self._proved) > self._names:
            self._proved.popitem(last=False)

    def failed(self, name: str, now: float, cost: float = 1.0) -> None:
        """A proof under `name` was wrong or missing at monotonic second `now`, and to find that out took `cost`."""
        if self._pays_itself(name, now, cost):
            self._own.drain(name, now, cost)
        else:
            self._shared.drain("", now, cost)

    def _pays_itself(self, name: str, now: float, cost: float) -> bool:
        return name in self._proved and self._own.affords(name, now, cost)
