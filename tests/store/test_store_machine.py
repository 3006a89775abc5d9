"""The store against a model in plain dictionaries: any order of sends, receipts, duplicates, leases, failures and restarts."""

import asyncio
import contextlib
import tempfile
from collections.abc import Coroutine
from pathlib import Path
from typing import Any, TypeVar

import hypothesis.strategies as st
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.lifecycle import WorkView, after, opened_by, transition
from aghbus.protocol.base.errors import NotFound
from aghbus.store.apply_effects import load_state
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.errors import InboxFull
from aghbus.store.tables import inbox, outbox
from aghbus.store.tables.works import reads
from tests.support.makers import BOB, EVE, NOW_MS, US, inbox_states, receipt, receiving, rows, say, trace

T = TypeVar("T")
CAPACITY = 4
WORKS = st.sampled_from([None, "work_a", "work_b", "work_c"])
STATES = st.sampled_from(["working", "needs_input", "completed", "failed", "canceled", "submitted"])
SENDERS = st.sampled_from([BOB, EVE])


class StoreMachine(RuleBasedStateMachine):
    """`works`, `inbox` and `ids` are what should be in the store."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "store.db"
        self.openings: dict[str, int] = {}  # sequences
        self.works: dict[str, WorkView] = {}
        self.history: dict[str, list[str]] = {}
        self.inbox: dict[int, str] = {}
        self.stored: list[str] = []
        self.past: list[Envelope] = []
        self.now_ms = NOW_MS

    def run(self, task: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(task)

    @initialize()
    def open(self) -> None:
        self.store = self.run(Store.open(self.path, synchronous="normal"))

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.run(self.store.close())
        self.loop.close()
        self.folder.cleanup()

    def receive(self, envelope: Envelope) -> None:
        opening = envelope.kind == "say"
        work = self.works.get(envelope.work_id or "")
        verdict = transition(work, envelope) if envelope.work_id else None
        delivers = opening and (verdict is None or verdict.outcome not in ("ignored", "rejected"))
        if delivers and self.waiting() >= CAPACITY:
            with contextlib.suppress(InboxFull):
                self.run(self.store.write(receiving(envelope, capacity=CAPACITY)))
                raise AssertionError("there was no room in the inbox")
            return
        _, applied = self.run(self.store.write(receiving(envelope, capacity=CAPACITY)))
        assert applied.delivered == delivers
        assert applied.seq is not None
        self.past.append(envelope)
        self.stored.append(envelope.id)
        if delivers:
            self.inbox[applied.seq] = "ready"
        if verdict is not None and verdict.outcome == "opened":
            self.works[envelope.work_id or ""] = opened_by(envelope)
            self.openings[envelope.work_id or ""] = applied.seq
            self.history[envelope.work_id or ""] = [envelope.id]
        elif verdict is not None and work is not None and verdict.outcome in ("advanced", "unchanged"):
            self.works[work.work_id] = after(work, envelope, verdict)
            self.history[work.work_id].append(envelope.id)
            if self.works[work.work_id].is_terminal:
                self.inbox[self.openings[work.work_id]] = "acked"

    def waiting(self) -> int:
        return sum(state in ("ready", "leased") for state in self.inbox.values())

    @rule(sender=SENDERS, work=WORKS)
    def a_say_comes(self, sender: str, work: str | None) -> None:
        self.receive(say(sender, work_id=work))

    @rule(sender=SENDERS, work=WORKS.filter(bool), state=STATES)
    def a_trace_comes(self, sender: str, work: str, state: str) -> None:
        self.receive(trace(state, sender, work_id=work))

    @rule(sender=SENDERS, work=WORKS.filter(bool), status=st.sampled_from(["accepted", "rejected", "canceled"]))
    def a_receipt_comes(self, sender: str, work: str, status: str) -> None:
        self.receive(receipt(status, "msg_x", sender, work_id=work))

    @precondition(lambda self: self.past)
    @rule(data=st.data())
    def a_duplicate_comes(self, data: st.DataObject) -> None:
        envelope = data.draw(st.sampled_from(self.past))
        _, applied = self.run(self.store.write(receiving(envelope, capacity=CAPACITY)))
        assert applied.seq is None
        assert not applied.delivered
        # An answer on an open work is one more row of its history, whose state it leaves.
        for seq in applied.queued:
            ((message_id, after_state),) = self.run(
                rows(self.store, "SELECT msg_id, state_after FROM envelopes WHERE seq = ?", seq)
            )
            if after_state is not None:
                self.history[envelope.work_id or ""].append(message_id)

    @rule(work=WORKS.filter(bool))
    def a_job_fails_after_it_wrote(self, work: str) -> None:
        def doomed(tx: Transaction) -> None:
            receiving(say(work_id=work), capacity=10**6)(tx)
            raise NotFound("changed its mind")

        with contextlib.suppress(NotFound):
            self.run(self.store.write(doomed))
            raise AssertionError("the job's own error was lost")

    @rule()
    def the_agent_leases(self) -> None:
        ready = sorted(seq for seq, state in self.inbox.items() if state == "ready")
        item = self.run(self.store.write(lambda tx: inbox.lease_next(tx, self.now_ms, 10_000, "t", max_attempts=99)))
        assert (item.seq if item is not None else None) == (ready[0] if ready else None)
        if item is not None:
            self.inbox[item.seq] = "leased"

    @precondition(lambda self: self.waiting())
    @rule(data=st.data())
    def the_agent_acks(self, data: st.DataObject) -> None:
        seq = data.draw(st.sampled_from(sorted(seq for seq, state in self.inbox.items() if state != "acked")))
        self.run(self.store.write(lambda tx: inbox.ack(tx, seq)))
        self.inbox[seq] = "acked"

    @rule()
    def leases_run_out(self) -> None:
        self.now_ms += 10_000
        count = self.run(self.store.write(lambda tx: inbox.expire_leases(tx, self.now_ms, 99)))
        assert count == sum(state == "leased" for state in self.inbox.values())
        self.inbox = {seq: "ready" if state == "leased" else state for seq, state in self.inbox.items()}

    @rule()
    def it_is_reopened(self) -> None:
        self.run(self.store.close())
        self.open()

    @invariant()
    def the_works_are_those_of_the_model(self) -> None:
        if not hasattr(self, "store"):
            return
        for name in ("work_a", "work_b", "work_c"):
            view = self.run(self.store.write(lambda tx, name=name: load_state(tx, say(work_id=name), US)))  # type: ignore[misc]
            assert view.work == self.works.get(name)
            detail = self.run(reads.work(self.store.reader, name))
            assert [entry.id for entry in detail.history] == self.history[name] if detail else name not in self.works

    @invariant()
    def the_inbox_is_that_of_the_model(self) -> None:
        if not hasattr(self, "store"):
            return
        assert self.run(inbox_states(self.store)) == self.inbox
        assert self.store.memory.inbox.waiting == self.waiting()

    @invariant()
    def what_came_is_stored_once_and_remembered(self) -> None:
        if not hasattr(self, "store"):
            return
        found = self.run(rows(self.store, "SELECT msg_id FROM envelopes WHERE direction = 'in' ORDER BY seq"))
        assert [message_id for (message_id,) in found] == self.stored
        assert len(self.store.memory.dedup) == len(self.stored)
        queued = self.run(outbox.queued(self.store.reader, 0, 10_000))
        assert [row.seq for row in queued] == sorted(row.seq for row in queued)


StoreMachine.TestCase.settings = settings(
    max_examples=25, stateful_step_count=25, deadline=None, suppress_health_check=list(HealthCheck)
)
TestStoreMachine = StoreMachine.TestCase
