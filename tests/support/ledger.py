"""The books of a crash test: what the daemons have said yes to, and whether all of it is still true at the end.

Everything is read through the API, as a user would: a promise that only the database knows is none.
"""

import threading
from collections import Counter
from collections.abc import Iterable
from typing import Any, NamedTuple

from tests.support.daemons import Daemon

TERMINAL = frozenset({"completed", "failed", "canceled"})
_PAGE = 500  # messages at once


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


class Books:
    """One daemon's own view at one moment: all its messages, and the works it was asked about."""

    def __init__(self, daemon: Daemon) -> None:
        self.name = daemon.name
        self.messages = all_messages(daemon)
        self._daemon = daemon

    def of(self, direction: str) -> dict[str, dict[str, Any]]:
        """Messages of one direction by id. Fails when an id is there twice."""
        chosen = [message for message in self.messages if message["direction"] == direction]
        twice = [one for one, times in Counter((m["sender"], m["id"]) for m in chosen).items() if times > 1]
        assert not twice, f"{self.name} has {direction} messages twice: {twice}"
        return {message["id"]: message for message in chosen}

    def unsettled(self) -> list[str]:
        """What is still under way here: directed messages without an answer, messages that the agent has not acked."""
        return [
            f"{m['direction']} {m['kind']} {m['id']} {m['delivery']}"
            for m in self.messages
            if (m["direction"] == "out" and m["to"] and m["delivery"] not in ("receipted", "refused"))
            or (m["direction"] == "in" and m["delivery"] in ("ready", "leased"))
        ]

    def story(self, work_id: str) -> list[str]:
        """One line for each message of a work, for the report of a failure."""
        return [
            f"{self.name} {m['seq']:5} {m['received_ms']} {m['direction']:3} {m['id']} {m['kind']}"
            f" {m['envelope']['body'].get('status') or m['envelope']['body'].get('state') or ''}"
            f" -> {m['outcome']} {m['reason'] or ''} [{m['delivery']}: {m['delivery_detail'] or ''}]"
            for m in self.messages
            if m["work_id"] == work_id
        ]

    def work(self, work_id: str) -> dict[str, Any]:
        """A work with its history."""
        answer: dict[str, Any] = self._daemon.get(f"/v1/works/{work_id}")
        return answer


def all_messages(daemon: Daemon) -> list[dict[str, Any]]:
    """Every message of the store, by pages, in the order of the sequence."""
    found: list[dict[str, Any]] = []
    since = 0
    while page := daemon.get(f"/v1/messages?since={since}&limit={_PAGE}")["messages"]:
        found += page
        since = page[-1]["seq"]
    return found


def balance(ledger: Ledger, left: Daemon, right: Daemon) -> dict[str, int]:
    """Compare the books of two daemons with the ledger and with each other; figures for the report.

    Fails on anything lost, invented, processed twice, left over, or different on the two sides.
    """
    books = {daemon.name: Books(daemon) for daemon in (left, right)}
    for one, other in ((left, right), (right, left)):
        _nothing_lost(books[one.name], books[other.name], ledger)
        _nothing_left_over(books[one.name], one, ledger)
    late: Counter[str] = Counter()
    for work_id in ledger.opened:
        late += _same_work(books[left.name], books[right.name], work_id)
    known = {work["work_id"] for daemon in (left, right) for work in _works(daemon)}
    assert known == set(ledger.opened), f"works that nobody opened: {known ^ set(ledger.opened)}"
    return {
        "works": len(ledger.opened),
        "messages": sum(len(book.of("out")) for book in books.values()),
        "yes": len(ledger.yes),
        "asked again": ledger.repeated,
        "crossed": late["crossed"],
    }


def _nothing_lost(book: Books, other: Books, ledger: Ledger) -> None:
    sent, arrived = book.of("out"), other.of("in")
    told = {yes.message_id for yes in ledger.yes if yes.daemon == book.name}
    assert not told - sent.keys(), f"{book.name} said yes and has it no more: {sorted(told - sent.keys())}"
    assert not sent.keys() - arrived.keys(), f"lost on the way: {sorted(sent.keys() - arrived.keys())}"
    invented = [message for message in arrived.values() if message["id"] not in sent and not _is_unstored(message)]
    assert not invented, f"arrived, but never committed: {invented}"
    for message_id, message in sent.items():
        there = arrived[message_id]
        assert there["envelope"] == message["envelope"]
        if message["to"]:
            refused = there["outcome"] in ("ignored", "rejected")
            assert message["delivery"] == ("refused" if refused else "receipted"), (message, there)
    _in_order(sent, other)


def _is_unstored(message: dict[str, Any]) -> bool:
    """Whether its sender may keep no row of it: the answer to a duplicate, or to a peer that it does not know (docs/limits.md)."""
    return bool(message["kind"] == "receipt" and message["envelope"]["body"]["status"] in ("duplicate", "rejected"))


def _in_order(sent: dict[str, dict[str, Any]], other: Books) -> None:
    """Each stream was processed in the order in which it was accepted here."""
    last: dict[tuple[Any, ...], int] = {}
    for message in other.messages:
        if message["direction"] == "in" and message["id"] in sent and message["to"]:
            stream = message["channel"], message["sender"], message["thread_id"], message["direct_id"]
            seq = sent[message["id"]]["seq"]
            assert last.get(stream, 0) < seq, f"out of order: {message}"
            last[stream] = seq


def _nothing_left_over(book: Books, daemon: Daemon, ledger: Ledger) -> None:
    assert book.unsettled() == []
    status = daemon.get("/v1/status")
    assert {**status["outbox"], "refused": 0} == {"queued": 0, "refused": 0, "expired": 0, "dead": 0}
    assert {**status["inbox"], "capacity": 0} | {"ready": 0, "leased": 0, "dead": 0} == {
        **status["inbox"],
        "capacity": 0,
    }
    assert status["counters"].get("internal_errors", 0) == 0
    for message_id, message in book.of("in").items():
        delivered = message["kind"] in ("say", "capability") and message["outcome"] not in ("ignored", "rejected")
        assert message["delivery"] == ("acked" if delivered or _needs_reaction(message) else None), message
        if (
            delivered and not ledger.acked[book.name, message_id]
        ):  # only the opening of a work that was canceled meanwhile
            assert message["outcome"] == "opened", f"acked by nobody: {message_id}"
            assert book.work(message["work_id"])["work"]["state"] == "canceled", f"acked by nobody: {message_id}"


def _needs_reaction(message: dict[str, Any]) -> bool:
    """Whether it is a question or the end of a work that the daemon's agent opened."""
    body = message["envelope"]["body"]
    if message["outcome"] != "advanced":
        return False
    return body.get("status") == "rejected" or body.get("state") in ("needs_input", "completed", "failed", "canceled")


def _same_work(left: Books, right: Books, work_id: str) -> Counter[str]:
    """One work in both books: the same end and the same steps; how many steps came too late to count on one side.

    Both sides may send at the same time, so what was applied here before the end may arrive there after it (spec section 6:
    kept, and ignored or rejected as work_closed): `crossed`. Anything else that only one side applied is a fault.
    """
    ours, theirs = left.work(work_id), right.work(work_id)
    told = "\n".join((work_id, *left.story(work_id), *right.story(work_id)))
    assert ours["work"]["state"] == theirs["work"]["state"], told
    assert ours["work"]["state"] in TERMINAL, told
    steps = [_steps(detail["history"], work_id) for detail in (ours, theirs)]
    end = next(row for row in ours["history"] if row["after"] in TERMINAL)
    late: Counter[str] = Counter()
    unstored = {message["id"] for book in (left, right) for message in book.messages if _is_unstored(message)}
    for mine, other, book in ((steps[0], steps[1], right), (steps[1], steps[0], left)):
        missing = mine.keys() - other.keys() - unstored
        arrived = book.of("in")
        for message_id in missing:
            assert arrived[message_id]["reason"] == "work_closed", told
            assert mine[message_id][1] != end["actor"], f"the end overtook it: {told}"
            late["crossed"] += 1
    for message_id in steps[0].keys() & steps[1].keys():
        assert steps[0][message_id] == steps[1][message_id]
    return late


def _steps(history: Iterable[dict[str, Any]], work_id: str) -> dict[str, tuple[Any, ...]]:
    rows = list(history)
    steps = {row["id"]: (row["event"], row["actor"], row["message"], str(row["result"])) for row in rows}
    assert len(steps) == len(rows), f"a step of {work_id} was applied twice: {rows}"
    return steps


def _works(daemon: Daemon) -> list[dict[str, Any]]:
    works: list[dict[str, Any]] = daemon.get("/v1/works?limit=1000")["works"]
    return works
