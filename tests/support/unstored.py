"""Receipts without a row at their sender (docs/limits.md, Answers): whether one that arrived may be such a receipt.

Automatic receipts are published once and not stored when they answer a copy of a message (`duplicate`), or a peer that is not
known. A peer is known once the agent has sent it a message since the daemon's start, or if the agent took part in an open work
with it at that start (daemon/state/standing.py).
"""

from functools import cache, cached_property
from itertools import pairwise
from typing import Final

from tests.support.books import TERMINAL, Books, Row

_COMMIT_MS: Final = 2_000  # from the commit of a sent message until its receiver counts as known, on a slow disk
_REPEAT_MS: Final = 50_000  # between two receipts to copies of one message: a minute, less what the way may take


class Answers:
    """Judges receipts that `asker` received from `answerer`, which has no rows of them. `told` are the ids of the messages that
    the agent of `answerer` sent."""

    def __init__(self, answerer: Books, asker: Books, told: set[str]) -> None:
        self._answerer = answerer
        self._asker = asker
        self._told = told
        self._known_at_start = cache(self._had_open_work)

    def why_not(self, receipt: Row) -> str:
        """Why this message cannot be a receipt that was not stored; empty when it can."""
        asked = self._asker.sent.get(receipt.for_id or "")
        answered = self._answerer.arrived.get(receipt.for_id or "")
        if receipt.kind != "receipt" or asked is None or answered is None:
            return "answers no message that was sent and arrived"
        if (receipt.work_id, receipt.sender, receipt.to) != (asked.work_id, asked.to, asked.sender):
            return "is of another work or peer than the message that it answers"
        if receipt.mark == "duplicate":
            return self._why_no_duplicate(answered)
        if receipt.mark == "rejected":
            return self._why_no_rejection(receipt, answered)
        return "has a status that is always stored"

    def _why_no_duplicate(self, answered: Row) -> str:
        """One a minute for each message, and one more after each start."""
        copies = self._copies["duplicate", answered.id]
        minutes = sum(later.received_ms - first.received_ms >= _REPEAT_MS for first, later in pairwise(copies))
        starts = [start for start in self._answerer.starts if start > answered.received_ms]
        return "" if len(copies) <= 1 + minutes + len(starts) else "copies of the message were answered too often"

    def _why_no_rejection(self, receipt: Row, answered: Row) -> str:
        if answered.outcome != "rejected" or answered.reason != receipt.reason_code:
            return "refuses a message that was not refused for this reason"
        if len(self._copies["rejected", answered.id]) > 1:
            return "refuses a message for the second time"
        if self._is_known(answered.received_ms):
            return "its receiver was known, so it has to be stored"
        return ""

    @cached_property
    def _copies(self) -> dict[tuple[str, str], list[Row]]:
        """The receipts that the asker has, by status and by the message that they answer."""
        found: dict[tuple[str, str], list[Row]] = {}
        for row in self._asker.arrived.values():
            if row.kind == "receipt" and row.for_id is not None:
                found.setdefault((row.mark, row.for_id), []).append(row)
        return found

    def _is_known(self, at_ms: int) -> bool:
        start = self._answerer.started_before(at_ms)
        first = self._first_sent.get(start)
        return (first is not None and first < at_ms - _COMMIT_MS) or self._known_at_start(start)

    @cached_property
    def _first_sent(self) -> dict[int, int]:
        """By the daemon's start: when its agent sent its first message after it."""
        found: dict[int, int] = {}
        for row in self._answerer.sent.values():
            if row.id in self._told and row.to is not None:
                found.setdefault(self._answerer.started_before(row.received_ms), row.received_ms)
        return found

    def _had_open_work(self, start: int) -> bool:
        return any(began <= start < ended for began, ended in self._engagements)

    @cached_property
    def _engagements(self) -> list[tuple[int, int]]:
        """For each work, from when until when our agent took part in it: it opened it or answered it, and it had not ended."""
        found = []
        for work_id in self._answerer.by_work:
            steps = self._answerer.steps(work_id).values()
            began = next((s.received_ms for s in steps if _takes_part(s)), None)
            ended = next((s.received_ms for s in steps if s.after in TERMINAL), None)
            if began is not None and ended is not None and began < ended:
                found.append((began, ended))
        return found


def _takes_part(step: Row) -> bool:
    """Whether the work is our agent's from this step on."""
    return step.after != "submitted" or (step.direction == "out" and step.outcome == "opened")
