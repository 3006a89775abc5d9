"""Works for a capability: which peer gets one, and how it is handed over to another (docs/hand-over.md, ADR 0016).

No part of the specification: other implementations ignore the extensions, and get each work as any other.
"""

from collections import Counter
from collections.abc import Iterable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

LOAD_KEY: Final = "aghbus.load"
"""In the ext of a greet: `[open, takes]`, as `Load`."""
LEAVING_KEY: Final = "aghbus.leaving"
"""In the ext of the last greet before a stop: true."""
ACCEPT_KEY: Final = "aghbus.accept_within"
"""In the ext of an opening: the seconds from its `ts` on within which its target accepts it, or rejects it as busy."""
MAX_COUNT: Final = 1_000_000
MAX_TRIED: Final = 100
"""Works by which one may be handed over: names with the capability can be invented without end."""

FAILOVER_AFTER: Final = 30.0
"""Seconds that a peer has to accept a work while another one is left, if the caller gave no limit."""


class Load(NamedTuple):
    """How many works are open with a peer as their target, and how many its workers carry out at a time (0: none is connected)."""

    open: int
    takes: int


class Candidate(NamedTuple):
    """A present peer that announces the capability. `ours`: the works of ours that are open there."""

    peer_id: str
    is_contact: bool
    trust: str
    load: Load | None
    ours: int
    last_seen_ms: int


class Tried(msgspec.Struct, frozen=True):
    """A work that was handed over: to whom it was opened, and why it went on. `refused`: that peer is not asked again."""

    work_id: str
    peer: str
    why: str
    refused: bool


class Handover(msgspec.Struct, frozen=True):
    """What is kept with a work that was opened for a capability.

    `accept_within`: seconds that the caller gives each peer to accept (0: without limit), None: FAILOVER_AFTER while another peer
    is left. `progress_within`: seconds, as configured without it. `hedge`: an accepted work goes on, too, when its peer is gone.
    `tried` has the works before this one, oldest first. `last`: the peer was tried before.
    """

    capability: str
    accept_within: float | None = None
    progress_within: float | None = None
    hedge: bool = False
    tried: tuple[Tried, ...] = ()
    last: bool = False

    def limit(self, others: int) -> float | None:
        """Seconds within which a peer has to accept, with so many `others` that are left; None without a limit."""
        if self.accept_within is not None:
            return self.accept_within or None
        return FAILOVER_AFTER if others and not self.last else None


def least_busy_first(candidates: Iterable[Candidate]) -> list[Candidate]:
    """Contacts before others, verified ones before others, then by the works that each has for each that it takes at a time."""
    return sorted(
        candidates,
        key=lambda one: (not one.is_contact, one.trust != "verified", _busyness(one), -one.last_seen_ms, one.peer_id),
    )


def _busyness(candidate: Candidate) -> float:
    if candidate.load is None:  # of another implementation
        return 0.5 + candidate.ours
    open_works, takes = max(candidate.load.open, candidate.ours), candidate.load.takes
    return open_works / takes if takes else 1.0 + open_works


def next_candidates(ordered: list[Candidate], handover: Handover) -> list[Candidate]:
    """Those of `ordered` that may get the work now: none that was tried; without such a one, and without a limit of the caller,
    once more those that only did not accept in time."""
    if len(handover.tried) >= MAX_TRIED:
        return []
    tried = Counter(one.peer for one in handover.tried)
    fresh = [one for one in ordered if one.peer_id not in tried]
    if fresh or handover.last or handover.accept_within:
        return fresh
    refused = {one.peer for one in handover.tried if one.refused}
    return [one for one in ordered if one.peer_id not in refused and tried[one.peer_id] < 2]


def load_of(ext: Mapping[str, Any]) -> Load | None:
    """The load that a greet tells; None without one that is valid."""
    said = ext.get(LOAD_KEY)
    if isinstance(said, list) and len(said) == 2 and all(type(one) is int and 0 <= one <= MAX_COUNT for one in said):
        return Load(*said)
    return None


def accept_limit(ext: Mapping[str, Any]) -> float | None:
    """The seconds of ACCEPT_KEY; None without a valid number."""
    said = ext.get(ACCEPT_KEY)
    if isinstance(said, bool) or not isinstance(said, int | float):
        return None
    return float(said) if 0 < said < MAX_COUNT else None
