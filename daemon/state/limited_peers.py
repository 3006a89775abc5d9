"""Which peers are over a limit now, which limit that is, and how much was rejected: the problems of `aghctl status`."""

from collections import Counter
from collections.abc import Iterator
from typing import Final

from aghbus.daemon.state.lanes import LANE_NAMES, Lane

LIFE: Final = 60.0
"""Seconds for which a limit is reported after the last message over it."""

MAX_NAMES: Final = 5
"""Names reported for one limit; the latest are kept."""

_WHAT: Final = {
    "receipts": "automatic receipts are not sent",
    "answers": "whois is not answered",
    "reactions": "questions or ends of own works are not put into the inbox, only stored (`aghctl work list`),",
    "works": "works of others are refused",
}
REASONS: Final = {
    "sender": "a peer sends more than limits.messages_per_minute",
    "signatures": "too many signatures failed recently",
    "processing": "limits.processor_percent is used up",
    "memory": "the dedup window is full of ids (receive.remembered)",
    "store": "the store cannot write",
    "identity": "another daemon has our peer id",
    "inbox.sender": "a quarter of the inbox holds unread messages of one sender",
    "inbox.other": "the inbox is half full, and takes messages of contacts only (`aghctl trust admit` makes one)",
    "inbox.plain": "the inbox is three quarters full, and takes only messages of contacts with a key",
    "inbox.held": "a quarter of the inbox is full of openings that are held since the restore",
    "reactions": "too many of them are unread",
    "inbox.store.other": "others may not add to what the store has to keep (`aghctl inbox purge --others` makes room)",
    "inbox.store.plain": "what the store has to keep of contacts is three eighths of store.retention_size",
    "inbox.store.contact": "what the store has to keep of contacts is half of store.retention_size",
    "works": "others have as many open works as they may (`aghctl inbox purge --others` closes those that nobody accepted)",
    "receipts": "limits.receipts_per_minute or limits.all_receipts_per_minute is used up",
    "answers": "limits.answers_per_minute or limits.answer_bytes_per_minute is used up",
}


class _Limit:
    """One limit while it lasts."""

    def __init__(self, since: float) -> None:
        self.since = self.last = since
        self.counts: Counter[Lane] = Counter()
        self.names: dict[str, None] = {}


class LimitedPeers:
    """Limits that messages were over in the last minute. Noting a message over one costs the same however many there are."""

    def __init__(self) -> None:
        self._limits: dict[str, _Limit] = {}

    def note(self, reason: str, sender: str, lane: Lane, now: float) -> bool:
        """A message of `sender`, of characters of peer ids or empty, was over the limit `reason` at monotonic second `now`.

        Returns whether it is the first one for a minute.
        """
        limit = self._limits.get(reason)
        if new := limit is None or now - limit.last > LIFE:
            limit = self._limits[reason] = _Limit(now)
        limit.last = now
        limit.counts[lane] += 1
        if sender:
            limit.names.pop(sender, None)
            limit.names[sender] = None
            if len(limit.names) > MAX_NAMES:
                del limit.names[next(iter(limit.names))]
        return new

    def names(self, now: float) -> list[str]:
        """The limits that last at monotonic second `now`."""
        return [reason for reason, limit in self._limits.items() if now - limit.last <= LIFE]

    def problems(self, now: float) -> Iterator[str]:
        """One sentence for each of them."""
        for reason in self.names(now):
            yield _sentence(reason, self._limits[reason], now)


def _sentence(reason: str, limit: _Limit, now: float) -> str:
    what = _WHAT.get(reason, "messages are rejected")
    why = REASONS.get(reason, f"the {reason} is full")
    who = ", ".join(f"{count} of {LANE_NAMES[lane]}" for lane, count in limit.counts.most_common())
    names = f"; the last, as they call themselves: {', '.join(limit.names)}" if limit.names else ""
    return f"overload: {what} because {why} (in {now - limit.since:.0f} s: {who}{names})"
