"""The ledger of the crash tests finds what it is for. The rows are made by hand: one work of ops, carried out by worker."""

import time
from collections.abc import Callable
from typing import Any, Literal

import pytest

from tests.support.books import Books, Row
from tests.support.ledger import Ledger, compare

AT = 1_000_000  # milliseconds: the opening of the first work
AT_REST = {
    "outbox": {"queued": 0, "refused": 0, "expired": 0, "dead": 0},
    "inbox": {"ready": 0, "leased": 0, "dead": 0},
    "counters": {},
}


class Side:
    """One daemon's rows, states and starts, before they become its books."""

    def __init__(self, name: str) -> None:
        self.name = name
        self.rows: list[Row] = []
        self.states: dict[str, str] = {}
        self.starts: list[int] = []
        self.status: dict[str, Any] = AT_REST

    def add(self, message_id: str, kind: str, sender: str, to: str, work_id: str, **rest: Any) -> None:
        direction: Literal["in", "out"] = "out" if sender == self.name else "in"
        seq = len(self.rows) + 1
        row = Row(
            seq=seq,
            id=message_id,
            direction=direction,
            kind=kind,
            channel="main",
            sender=sender,
            to=to,
            room="thread_1",
            work_id=work_id,
            received_ms=AT + 10 * seq,
            outcome=None,
            reason=None,
            delivery=None,
            delivery_detail=None,
            digest=message_id.encode(),
            mark="",
            for_id=None,
            reason_code=None,
            event=None,
            after=None,
        )
        self.rows.append(row._replace(**rest))

    def change(self, message_id: str, **changes: Any) -> None:
        self.rows = [row._replace(**changes) if row.id == message_id else row for row in self.rows]

    def lose(self, message_id: str) -> None:
        self.rows = [row for row in self.rows if row.id != message_id]

    def repeat(self, message_id: str) -> None:
        row = next(row for row in self.rows if row.id == message_id)
        self.rows.append(row._replace(seq=len(self.rows) + 1))

    def books(self) -> Books:
        return Books(self.name, self.rows, self.states, self.status, self.starts)


class Pair:
    """Both sides and the ledger."""

    def __init__(self, works: int = 1) -> None:
        self.ops, self.worker = Side("ops"), Side("worker")
        self.ledger = Ledger()
        for number in range(works):
            self.work(f"work_{number}")

    def work(self, work_id: str) -> None:
        opening, accepting, end = (f"{work_id}_{what}" for what in ("opening", "accept", "end"))
        self.step(opening, "say", "ops", work_id, "message", "opened", "submitted", acked=True)
        self.step(accepting, "receipt", "worker", work_id, "receipt:accepted", "advanced", "working")
        self.step(end, "trace", "worker", work_id, "trace:completed", "advanced", "completed", acked=True)
        for side in (self.ops, self.worker):
            side.states[work_id] = "completed"

    def step(
        self,
        message_id: str,
        kind: str,
        sender: str,
        work_id: str,
        event: str,
        outcome: str,
        after: str,
        *,
        acked: bool = False,
    ) -> None:
        """A message that both sides have and applied."""
        to = "worker" if sender == "ops" else "ops"
        for side in (self.ops, self.worker):
            delivery = "receipted" if side.name == sender else "acked" if acked else None
            done = {"event": event, "outcome": outcome, "after": after, "delivery": delivery}
            side.add(message_id, kind, sender, to, work_id, **done)
        answer = {"id": message_id, "kind": kind, "work_id": work_id}
        self.ledger.said_yes(sender, answer, opening=outcome == "opened")
        if acked:
            self.ledger.said_acked(to, message_id)

    def late_say(self) -> None:
        """ops says one thing more when worker has ended the work, and worker refuses it with a receipt that it does not store."""
        self.step("late", "say", "ops", "work_0", "message", "advanced", "working")
        end = next(row for row in self.ops.rows if row.id == "work_0_end")
        self.ops.lose("work_0_end")
        self.ops.rows.append(end._replace(seq=9))
        self.ops.change("late", delivery="refused")
        self.worker.change("late", outcome="rejected", reason="work_closed", after="completed")
        self.answer("rejected", reason_code="work_closed", for_id="late")

    def answer(self, mark: str, **rest: Any) -> None:
        """A receipt of worker's to ops, of which worker has no row."""
        number = len(self.ops.rows)
        event = f"receipt:{mark}"
        facts = {"mark": mark, "event": event, "outcome": "unchanged", "after": "completed", "seq": 20 + number}
        self.ops.add(f"answer_{number}", "receipt", "worker", "ops", "work_0", **{**facts, **rest})

    def balance(self) -> dict[str, int]:
        return compare(self.ledger, self.ops.books(), self.worker.books())


def test_books_that_agree_are_balanced() -> None:
    figures = Pair(2).balance()
    assert figures == {"works": 2, "messages": 6, "yes": 6, "asked again": 0, "crossed": 0, "unstored": 0}


FAULTS: dict[str, tuple[Callable[[Pair], object], str]] = {
    "a message that the receiver does not have": (
        lambda pair: pair.worker.lose("work_0_opening"),
        "lost on the way",
    ),
    "a message that its sender has no more": (lambda pair: pair.ops.lose("work_0_opening"), "has it no more"),
    "a message that was never sent": (
        lambda pair: pair.ops.add("new", "trace", "worker", "ops", "work_0"),
        "never committed",
    ),
    "a message received twice": (lambda pair: pair.worker.repeat("work_0_opening"), "in messages twice"),
    "a message sent twice": (lambda pair: pair.worker.repeat("work_0_end"), "out messages twice"),
    "an envelope that was changed": (
        lambda pair: pair.ops.change("work_0_end", digest=b"other"),
        "changed on the way",
    ),
    "a message without an answer": (
        lambda pair: pair.ops.change("work_0_opening", delivery="published"),
        "work_0_opening",
    ),
    "a message that waits in the inbox": (
        lambda pair: pair.worker.change("work_0_opening", delivery="ready"),
        "work_0_opening",
    ),
    "a message that nobody acked": (lambda pair: pair.ledger.acked.clear(), "acked by nobody"),
    "a dead message": (
        lambda pair: setattr(pair.ops, "status", {**AT_REST, "outbox": {**AT_REST["outbox"], "dead": 1}}),
        "dead",
    ),
    "another state on the other side": (lambda pair: pair.ops.states.update(work_0="failed"), "work_0"),
    "a work that has not ended": (
        lambda pair: [side.states.update(work_0="working") for side in (pair.ops, pair.worker)],
        "work_0",
    ),
    "a state that no step led to": (
        lambda pair: [side.states.update(work_0="failed") for side in (pair.ops, pair.worker)],
        "work_0",
    ),
    "a step that one side did not apply": (
        lambda pair: pair.ops.change("work_0_accept", outcome="ignored", reason="unknown_work"),
        "work_0",
    ),
    "a work that one side does not know": (lambda pair: pair.worker.states.clear(), "work_0"),
    "a work that nobody opened": (lambda pair: pair.ops.states.update(new="completed"), "nobody opened"),
    "another order than that of sending": (
        lambda pair: setattr(pair.ops, "rows", [pair.ops.rows[i] for i in (0, 2, 1)]),
        "out of order",
    ),
}


@pytest.mark.parametrize("fault", FAULTS)
def test_a_fault_is_found(fault: str) -> None:
    plant, told = FAULTS[fault]
    pair = Pair()
    plant(pair)
    with pytest.raises(AssertionError, match=told):
        pair.balance()


def test_late_message_is_no_fault_if_its_refusal_may_be_unstored() -> None:
    pair = Pair()
    pair.late_say()
    pair.worker.starts = [AT, AT + 32]  # between the end and the late message
    figures = pair.balance()
    assert (figures["crossed"], figures["unstored"]) == (1, 1)


def unknown_message(pair: Pair) -> None:
    pair.answer("rejected", reason_code="work_closed", for_id="never_sent")


def other_reason(pair: Pair) -> None:
    pair.late_say()
    pair.worker.change("late", reason="rate_limited")


def known_since_the_start(pair: Pair) -> None:
    pair.late_say()
    pair.worker.change("late", received_ms=AT + 60_000)


def second_refusal(pair: Pair) -> None:
    pair.late_say()
    pair.answer("rejected", reason_code="work_closed", for_id="late")


def copies_at_once(pair: Pair) -> None:
    for _ in range(2):
        pair.answer("duplicate", reason_code="duplicate", for_id="work_0_opening")


def never_unstored(pair: Pair) -> None:
    pair.answer("accepted", for_id="work_0_opening")


@pytest.mark.parametrize(
    ("plant", "told"),
    [
        (unknown_message, "answers no message"),
        (other_reason, "not refused for this reason"),
        (known_since_the_start, "its receiver was known"),
        (second_refusal, "for the second time"),
        (copies_at_once, "too often"),
        (never_unstored, "always stored"),
    ],
)
def test_a_receipt_without_a_row_is_a_fault_where_the_product_stores_it(
    plant: Callable[[Pair], None], told: str
) -> None:
    pair = Pair()
    pair.worker.starts = [AT]
    plant(pair)
    with pytest.raises(AssertionError, match=told):
        pair.balance()


def test_a_peer_of_a_work_that_was_open_at_the_start_is_known() -> None:
    pair = Pair()
    pair.late_say()
    pair.worker.starts = [AT, AT + 25]  # between acceptance and end
    with pytest.raises(AssertionError, match="its receiver was known"):
        pair.balance()


def test_an_answer_to_a_copy_has_no_row() -> None:
    pair = Pair()
    pair.answer("duplicate", reason_code="duplicate", for_id="work_0_opening")
    pair.answer("duplicate", reason_code="duplicate", for_id="work_0_opening", received_ms=AT + 70_000)
    assert pair.balance()["unstored"] == 2


def test_the_time_of_balancing_grows_with_the_number_of_works() -> None:
    small, large = Pair(500), Pair(8_000)
    small.balance()
    times = []
    for pair in (small, large):
        began = time.process_time()
        pair.balance()
        times.append(time.process_time() - began)
    assert times[1] < 64 * times[0], times  # 16 times as many works: a square would be 256
