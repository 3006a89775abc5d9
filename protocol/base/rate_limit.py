"""Token buckets by peer, as values over time: a bound on what one sender can make us do (spec section 5).

A name on an envelope is only a claim until its signature is verified. So an unverified claim never
spends the budget of the peer of that name: `VerificationBudget` counts failed verifications apart.
"""

from collections import OrderedDict
from collections.abc import Sequence


class TokenBuckets:
    """A bucket of `capacity` tokens for each key, refilled at `per_second`; at most `keys` buckets are remembered.

    A dropped bucket counts as full, so the least recently used are dropped first.
    """

    def __init__(self, capacity: float, per_second: float, keys: int = 4096) -> None:
        self._capacity = capacity
        self._per_second = per_second
        self._keys = keys
        self._buckets: OrderedDict[str, tuple[float, float]] = OrderedDict()

    def spend(self, key: str, now: float) -> bool:
        """Take one token of `key` at monotonic second `now`; False, and nothing taken, when it has less."""
        buckets = self._buckets
        bucket = buckets.get(key)
        if bucket is None:
            level = self.level(key, now)
        else:  # as `level`, without the call: every message passes here
            level, since = bucket
            if now > since:
                level += (now - since) * self._per_second
            if level > self._capacity:
                level = self._capacity
        buckets[key] = (level - 1.0 if level >= 1.0 else level, now)
        buckets.move_to_end(key)
        if len(buckets) > self._keys:
            buckets.popitem(last=False)
        return level >= 1.0

    def give_back(self, key: str, now: float) -> None:
        """Put back the token that `spend` took of `key`."""
        self._set(key, min(self._capacity, self.level(key, now) + 1.0), now)

    def has(self, key: str, now: float, cost: float = 1.0) -> bool:
        """Whether `spend` would succeed now; nothing is taken, and no bucket is remembered for it."""
        return self.level(key, now) >= cost

    def affords(self, key: str, now: float, cost: float) -> bool:
        """Whether the bucket of `key` is enough for `drain` now."""
        return self.suffices(self.level(key, now), cost)

    def suffices(self, level: float, cost: float) -> bool:
        """Whether a bucket with `level` tokens is enough for `drain`: a cost above its capacity needs a full one."""
        return level >= cost or level >= self._capacity > 0

    def drain(self, key: str, now: float, cost: float) -> None:
        """Take `cost` tokens of `key`, or all that are left: for work that is already done."""
        self._set(key, max(0.0, self.level(key, now) - cost), now)

    def level(self, key: str, now: float) -> float:
        """The tokens of `key` now; nothing is taken."""
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


class SharedBucket:
    """A bucket of `capacity` tokens that all peers spend from, refilled at `per_second`; it had `left` tokens at second `since`.

    Who may use only a `share` of it leaves the rest to others: nothing of theirs takes the bucket below `1 - share`.
    """

    __slots__ = ("capacity", "left", "per_second", "since")

    def __init__(self, capacity: float, per_second: float) -> None:
        self.capacity = self.left = capacity
        self.per_second = per_second
        self.since = 0.0

    def spend(self, cost: float, now: float, share: float = 1.0) -> bool:
        """Take `cost` tokens at monotonic second `now`; False, and nothing taken, when `share` of the bucket is used.

        A full bucket is enough for any cost.
        """
        if not self.affords(cost, now, share):
            return False
        self.drain(cost, now, share)
        return True

    def give_back(self, cost: float, now: float) -> None:
        """Put back `cost` tokens that `spend` took."""
        self.left, self.since = min(self.capacity, self.level(now) + cost), now

    def affords(self, cost: float, now: float, share: float = 1.0) -> bool:
        """Whether `spend` would succeed now; nothing is taken."""
        level = self.level(now)
        return level - cost >= self.capacity * (1.0 - share) or level == self.capacity > 0

    def drain(self, cost: float, now: float, share: float = 1.0) -> None:
        """Take up to `cost` tokens, for work that is already done; nothing of what `share` leaves to others."""
        level, floor = self.level(now), self.capacity * (1.0 - share)
        self.left = min(level, max(floor, level - cost))
        self.since = now

    def level(self, now: float) -> float:
        """The tokens at monotonic second `now`."""
        return min(self.capacity, self.left + max(0.0, now - self.since) * self.per_second)


class VerificationBudget:
    """Limits failed verifications, so that a flood of wrong signatures does not use up the processor.

    A successful verification is free. A failure spends from the bucket of its name, if that was verified before; else, or when
    that is empty, from a bucket that all names share. A name without failures is always verified, whatever arrives under other
    names. A forged name is verified as long as one of the buckets has tokens; the sender's retry brings its messages again.

    A cost is in tokens. The bucket must hold it before the verification, because a failure spends it; so under a flood small
    envelopes are verified before large ones. A full bucket is enough for any envelope.
    """

    def __init__(self, own: TokenBuckets, shared: TokenBuckets, names: int = 4096) -> None:
        """At most `names` are kept as verified; the one verified longest ago is dropped first."""
        self._own = own
        self._shared = shared
        self._names = names
        self._proved: OrderedDict[str, None] = OrderedDict()

    def may_try(self, name: str, now: float, cost: float = 1.0) -> bool:
        """Whether an envelope that claims `name` may be verified at monotonic second `now`; `cost` is spent if that fails."""
        return self._shared.affords("", now, cost) or self.may_try_alone(name, now, cost)

    def may_try_alone(self, name: str, now: float, cost: float = 1.0) -> bool:
        """As `may_try`, but without what all names share."""
        return name in self._proved and self._own.affords(name, now, cost)

    def may_try_together(self, total: float, now: float) -> bool:
        """Whether the shared bucket alone is enough for claims of this total cost; else ask `may_try_all`."""
        return self._shared.has("", now, total)

    def may_try_all(self, claims: Sequence[tuple[str, float]], now: float) -> list[bool]:
        """`may_try` for each claim (name, cost) in turn, as if all before it had failed."""
        own: dict[str, float] = {}
        shared = self._shared.level("", now)
        allowed = []
        for name, cost in claims:
            if name not in own:
                own[name] = self._own.level(name, now)
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
        """A signature of `name` was verified."""
        self._proved[name] = None
        self._proved.move_to_end(name)
        if len(self._proved) > self._names:
            self._proved.popitem(last=False)

    def failed(self, name: str, now: float, cost: float = 1.0) -> None:
        """A proof under `name` was wrong or missing at monotonic second `now`; spend `cost`."""
        if self.may_try_alone(name, now, cost):
            self._own.drain(name, now, cost)
        else:
            self._shared.drain("", now, cost)
