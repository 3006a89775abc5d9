"""The ledger of a crash test: what the daemons have acknowledged, and whether all of it is still true at the end.

Everything is read through the API, as a user would: a promise that only the database knows is none. The books of both daemons
(tests/support/books.py) are compared in time that grows with the number of messages, no faster.
"""

import random
import threading
from collections import Counter
from collections.abc import Iterable
from concurrent.futures import ThreadPoolExecutor
from functools import cache, cached_property
from itertools import pairwise
from typing import Any, Final, NamedTuple

from tests.support.books import TERMINAL, Books, Row, read_books
from tests.support.daemons import Daemon

_HISTORIES: Final = 400
"""Works whose history is read from `GET /v1/works/{id}` too, on both sides; of more works so many, chosen at random."""
_REACTIONS: Final = frozenset(
    {"receipt:rejected", "trace:needs_input", "trace:completed", "trace:failed", "trace:canceled"}
)
_PAGE: Final = 500  # messages at once


class Yes(NamedTuple):
    """One request that a daemon answered with yes."""

    daemon: str
    message_id: str
    kind: str
    work_id: str


class Ledger:
    """Kept by the driver, from several threads; the daemons under test know nothing of it."""

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self.yes: list[Yes] = []
        self.opened: list[str] = []
        self.acked: Counter[tuple[str, str]] = Counter()
        self.repeated = 0

    def said_yes(self, daemon: str, answer: dict[str, Any], *, opening: bool = False) -> None:
        """The daemon answered a send with `answer`."""
        with self._lock:
            self.yes.append(Yes(daemon, answer["id"], answer["kind"], answer["work_id"]))
            if opening:
                self.opened.append(answer["work_id"])

    def said_acked(self, daemon: str, message_id: str) -> None:
        """The daemon confirmed that the agent is done with this message."""
        with self._lock:
            self.acked[daemon, message_id] += 1

    def asked_again(self) -> None:
        """A request got no answer and was repeated."""
        with self._lock:
            self.repeated += 1

    def told(self, daemon: str) -> set[str]:
        """The ids of the messages that this daemon acknowledged."""
        return {yes.message_id for yes in self.yes if yes.daemon == daemon}


def all_messages(daemon: Daemon) -> list[dict[str, Any]]:
    """Every message of the store, by pages, in the order of the sequence."""
    found: list[dict[str, Any]] = []
    since = 0
    while page := daemon.get(f"/v1/messages?since={since}&limit={_PAGE}")["messages"]:
        found += page
        since = page[-1]["seq"]
    return found


def unrest(*daemons: Daemon) -> list[str]:
    """What is still under way in these daemons. The messages are read only when nothing else is."""
    return busy(*daemons) or [line for daemon in daemons for line in read_books(daemon).unsettled()]


def busy(*daemons: Daemon) -> list[str]:
    """Open works, messages in inboxes, and messages to send, by the status of these daemons."""
    return [line for daemon in daemons for line in _busy(daemon)]


def _busy(daemon: Daemon) -> list[str]:
    status = daemon.get("/v1/status")
    counts = {
        **{f"works {state}": count for state, count in status["works"].items() if state not in TERMINAL},
        **{f"inbox {state}": status["inbox"][state] for state in ("ready", "leased")},
        "outbox queued": status["outbox"]["queued"],
    }
    return [f"{daemon.name}: {count} {what}" for what, count in counts.items() if count]


def balance(ledger: Ledger, left: Daemon, right: Daemon) -> dict[str, int]:
    """Compare the books of two daemons with the ledger and with each other; figures for the report.

    Fails on anything lost, invented, processed twice, left over, or different on the two sides.
    """
    with ThreadPoolExecutor(2) as pool:
        books = list(pool.map(read_books, (left, right)))
        figures = compare(ledger, *books)
        chosen = random.sample(ledger.opened, min(_HISTORIES, len(ledger.opened)))
        for _ in pool.map(_same_histories, (left, right), books, (chosen, chosen)):
            pass  # raises what was found
    return figures


def compare(ledger: Ledger, left: Books, right: Books) -> dict[str, int]:
    """As `balance`, of books that were read before."""
    unstored: set[str] = set()
    for one, other in ((left, right), (right, left)):
        unstored |= _nothing_lost(one, other, ledger)
        _nothing_left_over(one, ledger)
    late: Counter[str] = Counter()
    for work_id in ledger.opened:
        late += _same_work(left, right, work_id, unstored)
    known = left.states.keys() | right.states.keys()
    assert known == set(ledger.opened), f"works that nobody opened: {known ^ set(ledger.opened)}"
    return {
        "works": len(ledger.opened),
        "messages": len(left.sent) + len(right.sent),
        "yes": len(ledger.yes),
        "asked again": ledger.repeated,
        "crossed": late["crossed"],
        "unstored": len(unstored),
    }


def _nothing_lost(book: Books, other: Books, ledger: Ledger) -> set[str]:
    """The ids of receipts that `book` published without a row."""
    sent, arrived, told = book.sent, other.arrived, ledger.told(book.name)
    assert not told - sent.keys(), f"{book.name} said yes and has it no more: {sorted(told - sent.keys())}"
    assert not sent.keys() - arrived.keys(), f"lost on the way: {sorted(sent.keys() - arrived.keys())}"
    answers = Answers(book, other, told)
    extra = [row for row in arrived.values() if row.id not in sent]
    invented = [f"{row.line()}: {why}" for row in extra if (why := answers.why_not(row))]
    assert not invented, f"arrived, but never committed: {invented}"
    for message_id, message in sent.items():
        there = arrived[message_id]
        assert there.digest == message.digest, f"changed on the way: {message_id}"
        if message.to:
            refused = there.outcome in ("ignored", "rejected")
            assert message.delivery == ("refused" if refused else "receipted"), (message, there)
    _in_order(sent, other)
    return {row.id for row in extra}


def _in_order(sent: dict[str, Row], other: Books) -> None:
    """Each flow was processed in the order in which it was accepted here."""
    last: dict[tuple[Any, ...], int] = {}
    for row in other.rows:
        if row.direction == "in" and row.id in sent and row.to:
            flow = row.channel, row.sender, row.room
            seq = sent[row.id].seq
            assert last.get(flow, 0) < seq, f"out of order: {row}"
            last[flow] = seq


def _nothing_left_over(book: Books, ledger: Ledger) -> None:
    unsettled, status = book.unsettled(), book.status
    assert not unsettled, f"{book.name} has not settled: {unsettled}"
    outbox = {state: status["outbox"][state] for state in ("queued", "expired", "dead")}
    inbox = {state: status["inbox"][state] for state in ("ready", "leased", "dead")}
    left = [*outbox.values(), *inbox.values(), status["counters"].get("internal_errors", 0)]
    assert not any(left), f"{book.name} has something left: {status['outbox']} {status['inbox']} {status['counters']}"
    for message_id, row in book.arrived.items():
        delivered = row.kind in ("say", "capability") and row.outcome not in ("ignored", "rejected")
        assert row.delivery == ("acked" if delivered or _needs_reaction(row) else None), row
        if delivered and not ledger.acked[book.name, message_id]:
            # Only the opening of a work that was canceled meanwhile.
            assert row.outcome == "opened", f"acked by nobody: {message_id}"
            assert book.states.get(row.work_id or "") == "canceled", f"acked by nobody: {message_id}"


def _needs_reaction(row: Row) -> bool:
    """Whether it is a question or the end of a work that the daemon's agent opened."""
    return row.outcome == "advanced" and row.event in _REACTIONS


def _same_work(left: Books, right: Books, work_id: str, unstored: set[str]) -> Counter[str]:
    """One work in both books: the same end and the same steps; how many steps came too late to count on one side.

    Both sides may send at the same time, so what was applied here before the end may arrive there after it (spec section 6:
    kept, and ignored or rejected as work_closed): `crossed`. Anything else that only one side applied is a fault.
    """

    def told() -> str:
        return "\n".join((work_id, *left.story(work_id), *right.story(work_id)))

    state = left.states.get(work_id)
    assert state == right.states.get(work_id), told()
    assert state in TERMINAL, told()
    ours, theirs = left.steps(work_id), right.steps(work_id)
    end = _end(ours)
    assert end is not None and _end(theirs) is not None, told()
    assert {list(steps.values())[-1].after for steps in (ours, theirs)} == {state}, told()
    late: Counter[str] = Counter()
    for mine, other, book in ((ours, theirs, right), (theirs, ours, left)):
        for message_id in mine.keys() - other.keys() - unstored:
            assert book.arrived[message_id].reason == "work_closed", told()
            assert mine[message_id].sender != end.sender, f"the end overtook it: {told()}"
            late["crossed"] += 1
    for message_id in ours.keys() & theirs.keys():
        assert _step(ours[message_id]) == _step(theirs[message_id]), told()
    return late


def _end(steps: dict[str, Row]) -> Row | None:
    return next((row for row in steps.values() if row.after in TERMINAL), None)


def _step(row: Row) -> tuple[Any, ...]:
    return row.event, row.sender, row.digest


def _same_histories(daemon: Daemon, book: Books, work_ids: Iterable[str]) -> None:
    """The works, asked for one by one, have the states and steps of the books."""
    for work_id in work_ids:
        answer = daemon.get(f"/v1/works/{work_id}")
        assert answer["work"]["state"] == book.states[work_id], book.story(work_id)
        told = [(row["id"], row["event"], row["actor"], row["after"]) for row in answer["history"]]
        steps = [(row.id, row.event, row.sender, row.after) for row in book.steps(work_id).values()]
        assert told == steps, (told, book.story(work_id))


_COMMIT_MS: Final = 2_000  # from the commit of a sent message until its receiver counts as known, on a slow disk
_REPEAT_MS: Final = 50_000  # between two receipts to copies of one message: a minute, less what the way may take


class Answers:
    """Judges receipts that `asker` received from `answerer`, which has no rows of them (docs/limits.md, Answers).

    `told` are the ids of the messages that the agent of `answerer` sent. Automatic receipts are published once and not stored when
    they answer a copy of a message (`duplicate`), or a peer that is not known. A peer is known once the agent has sent it a message
    since the daemon's start, or if the agent took part in an open work with it at that start (daemon/state/standing.py).
    """

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
