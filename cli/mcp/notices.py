"""When a session is told that messages wait. Pure: time is an argument, in seconds of a monotonic clock.

One notice is outstanding until the session fetched its messages; until then it is only repeated, with growing pauses. Messages
that were fetched and stay in the inbox are mentioned again in the same way. A peer that wakes the session too often loses that
right for a while, so that two agents cannot keep each other busy without end.
"""

from __future__ import annotations

from collections.abc import Iterable

from aghbus.protocol.base.backoff import Backoff

FIRST_REPEAT, LAST_REPEAT = 30.0, 300.0
"""Seconds between a notice and its repetition: the first, and the longest that doubling leads to."""
ADMISSION_SECONDS = 5.0
"""Seconds between two looks while only messages of others wait: their admission makes no event."""
TURN_SECONDS = 30.0
"""Seconds between two sessions that are told of the same messages: the one that called a tool last comes first."""
HELD_SECONDS = 5.0
"""Seconds between two looks while another consumer holds messages, or may fetch them first: that makes no event."""
COLLECT_SECONDS = 0.2
"""Messages that arrive within this time after the first one share a notice."""
WAKES, WINDOW = 20, 600.0
"""One contact, or all others together, may cause so many notices in so many seconds, and none in as many seconds after that."""
OTHERS = "peers that are no contacts"
"""What causes the notices of their messages, because names are free. It is no peer id."""
NEVER = float("inf")


class Waiting:
    """A message of the inbox that nobody has acknowledged. `cause` is its sender, or OTHERS; `state` is `held` when another
    consumer has leased it; `is_end`: it is ready, and ends its work."""

    def __init__(self, seq: int, cause: str, work_id: str | None, state: str, *, is_end: bool = False) -> None:
        self.seq = seq
        self.cause = cause
        self.work_id = work_id
        self.state = state
        self.is_end = is_end


class Look:
    """The inbox at one moment: the number of ready messages, those after the ones that are covered, the oldest ready or leased
    ones, and the number of messages of OTHERS where these are none of them. `before`: how many sessions are told first."""

    def __init__(
        self, ready: int, fresh: list[Waiting], oldest: list[Waiting], others: int = 0, before: int = 0
    ) -> None:
        self.ready = ready
        self.fresh = fresh
        self.oldest = oldest
        self.others = others
        self.before = before

    @property
    def newest(self) -> int:
        """The last sequence of these messages."""
        return max(each.seq for each in (*self.fresh, *self.oldest))


class LoopGuard:
    """How often each peer, or OTHERS, caused a notice."""

    def __init__(self, wakes: int = WAKES, window: float = WINDOW) -> None:
        self._wakes = wakes
        self._window = window
        self._counts: dict[str, tuple[int, float]] = {}  # notices of a peer, and when they are forgotten

    def held_back(self, now: float) -> list[str]:
        """The peers that may not cause a notice now, sorted."""
        self._counts = {peer: entry for peer, entry in self._counts.items() if entry[1] > now}
        return sorted(peer for peer, (count, _) in self._counts.items() if count >= self._wakes)

    def count(self, peers: Iterable[str], now: float) -> list[str]:
        """Note that `peers` caused a notice. Those that reached the limit with it."""
        held = set(self.held_back(now))
        for peer in peers:
            count, end = self._counts.get(peer, (0, now + self._window))
            count += 1
            self._counts[peer] = (count, now + self._window if count == self._wakes else end)
        return [peer for peer in self.held_back(now) if peer not in held]

    def next_end(self, peers: Iterable[str]) -> float:
        """When the first of these peers that are held back may cause notices again."""
        return min((self._counts[peer][1] for peer in peers if peer in self._counts), default=NEVER)


class Notices:
    """The notices of one session. `state` is that of the latest one, "" before the first (protocol/api/mcp.py)."""

    def __init__(self, guard: LoopGuard) -> None:
        self.guard = guard
        self.state = ""
        self.how: str | None = None
        self.messages = 0
        self.attempts = 0
        self.number = 1  # of the next notice
        self.through = 0
        self.covered = 0
        """The session was told of the messages up to this sequence, or fetched since they came."""
        self.due = NEVER
        """When the inbox is to be looked at next."""
        self._wanted_since = NEVER
        self._repeat_at = NEVER
        self._repeats = Backoff(FIRST_REPEAT, LAST_REPEAT)
        self._seen = 0
        self._seen_at_call = 0
        self._fetched_since_look = False

    # what happens

    def look_soon(self, now: float, after: float = 0.0) -> None:
        """Look at the inbox `after` so many seconds."""
        self.due = min(self.due, now + after)

    def arrived(self, seq: int, now: float) -> None:
        """A message came to the inbox."""
        self._seen = max(self._seen, seq)
        if self.state not in ("stored", "noticed"):
            self.look_soon(now, COLLECT_SECONDS)

    def fetching(self) -> None:
        """The session calls the tool `inbox`."""
        self._seen_at_call = self._seen

    def fetched(self, now: float) -> None:
        """The session got the answer of the tool `inbox`."""
        self._fetched_since_look = True
        self.covered = max(self.covered, self._seen_at_call)
        if self.state in ("stored", "noticed"):
            self.state = "fetched"
        self._repeats.reset()
        self._repeat_at = now + self._repeats.next()
        self.look_soon(now, COLLECT_SECONDS)

    # what to do

    def looking(self) -> None:
        """A look at the inbox begins: what happens from now on needs another one."""
        self.due, self._fetched_since_look = NEVER, False

    def causes(self, look: Look, now: float) -> list[str]:
        """The peers because of whose messages the session is to be told now; empty when it is not. Sets `due`."""
        if not look.oldest or (self.state != "stored" and look.oldest[0].seq > self.covered):
            self._all_acked()
        if any(each.state == "held" for each in look.oldest):
            self.look_soon(now, HELD_SECONDS)
        if not look.oldest:
            self._wanted_since = NEVER
            if look.others:
                self.look_soon(now, ADMISSION_SECONDS)
            return []
        if self.state == "noticed" and now < self._repeat_at:
            self.due = min(self.due, self._repeat_at)
            return []
        admitted = self._repeat_at == NEVER and not look.fresh  # or requeued: the session was not told of any
        waiting = look.oldest if now >= self._repeat_at or admitted else look.fresh
        ready = {each.cause for each in waiting if each.state == "ready"}
        held = ready.intersection(self.guard.held_back(now))
        if ready - held:
            return self._in_turn(sorted(ready - held), look.before, now)
        self._wanted_since = NEVER
        if now >= self._repeat_at:
            self._repeat_at = now + LAST_REPEAT
        self.due = min(self.due, self._repeat_at, self.guard.next_end(held), now + LAST_REPEAT)
        return []

    def _in_turn(self, causes: list[str], before: int, now: float) -> list[str]:
        """The causes, once the sessions that are told first have had their time to fetch."""
        self._wanted_since = min(self._wanted_since, now)
        turn = self._wanted_since + before * TURN_SECONDS
        if now >= turn:
            return causes
        self.look_soon(now, min(HELD_SECONDS, turn - now))
        return []

    def _all_acked(self) -> None:
        """Nothing that the session was told of, or fetched, is in the inbox any more."""
        if self.state:
            self.state = "acked"
        self._repeats.reset()
        self._repeat_at = NEVER

    def told(self, look: Look, causes: list[str], how: str | None, now: float) -> list[str]:
        """The session was told in this way; None: there was none. Peers that reach their limit by this notice."""
        if self.state not in ("stored", "noticed"):
            self.attempts, self.how = 0, None
        self.messages = look.ready
        self._wanted_since = NEVER
        self.through = look.newest
        self._repeat_at = now + self._repeats.next()
        self.due = min(self.due, self._repeat_at)
        if how is not None:
            self.how = how
            self.attempts += 1
            self.number += 1
            self.covered = max(self.covered, self.through)
        self.state = "noticed" if self.attempts else "stored"
        if self._fetched_since_look:  # the host was faster than the return from telling it
            self.fetched(now)
        return self.guard.count(causes, now) if how is not None and self.attempts == 1 else []


def text_of(look: Look, number: int) -> str:
    """The notice for a model: how many messages wait, and ids that no peer can have written sentences into.

    A host may drop a message that says the same as the one before (Claude Code does, for 30 s): number and sequence differ.
    """
    named = [each.work_id for each in look.fresh or look.oldest if each.work_id is not None and is_plain(each.work_id)]
    ids = ", ".join(list(dict.fromkeys(named))[:MAX_IDS])
    count = f"{look.ready} message{'s wait' if look.ready != 1 else ' waits'} up to seq {look.newest}"
    others = f"; {look.others} from others wait: aghctl requests" if look.others else ""
    return f"aghbus notice {number}: {count}{f' ({ids})' if ids else ''}{others}. Call the inbox tool."


MAX_IDS = 5
"""Ids in a notice."""


def is_plain(work_id: str) -> bool:
    """Whether an id is `work_` and 32 hexadecimal digits, as daemons make them: any other may be words of its peer."""
    return len(work_id) == 37 and work_id.startswith("work_") and not work_id[5:].strip("0123456789abcdef")
