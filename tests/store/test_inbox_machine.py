"""The inbox against a model: any order of deliveries, leases, returns, failed jobs, expiries and restarts."""

import asyncio
import tempfile
from collections import Counter
from collections.abc import Callable, Coroutine
from pathlib import Path
from typing import Any, TypeVar

import hypothesis.strategies as st
import msgspec
from hypothesis import HealthCheck, settings
from hypothesis.stateful import RuleBasedStateMachine, initialize, invariant, precondition, rule

from aghbus.protocol.base.errors import Refused
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.retention import RetentionPolicy, sweep
from aghbus.store.tables import inbox, inbox_list
from tests.support.makers import BOB, NOW_MS, US, inbox_states, receiving, say, sending

T = TypeVar("T")
VISIBLE = 10_000  # milliseconds
MAX_ATTEMPTS = 2
WORKS = st.sampled_from([None, "work_a", "work_b"])


class Message(msgspec.Struct):
    """A message as the model has it. `lease` is the last one."""

    work_id: str | None
    sender: str
    state: str = "ready"
    attempts: int = 0
    available_ms: int = 0
    lease: str | None = None
    lease_until_ms: int = 0

    def is_ready(self, now_ms: int, work_id: str | None) -> bool:
        return self.state == "ready" and self.available_ms <= now_ms and work_id in (None, self.work_id)


class InboxMachine(RuleBasedStateMachine):
    """`messages` is what should be in the inbox, by sequence; `sent` own messages of which nobody was notified. `died` are the
    messages that used up their attempts, `told` those that the store reported as dead."""

    def __init__(self) -> None:
        super().__init__()
        self.loop = asyncio.new_event_loop()
        self.folder = tempfile.TemporaryDirectory()
        self.path = Path(self.folder.name) / "store.db"
        self.messages: dict[int, Message] = {}
        self.sent: list[int] = []
        self.now_ms = NOW_MS
        self.leases = 0
        self.died: list[int] = []
        self.told: list[int] = []

    def run(self, task: Coroutine[Any, Any, T]) -> T:
        return self.loop.run_until_complete(task)

    def write(self, job: Callable[[Transaction], T]) -> T:
        return self.run(self.store.write(job))

    @initialize()
    def open(self) -> None:
        self.store = self.run(Store.open(self.path, synchronous="normal"))
        self.store.memory.inbox.on_dead = self.told.append

    def teardown(self) -> None:
        if hasattr(self, "store"):
            self.run(self.store.close())
        self.loop.close()
        self.folder.cleanup()

    def drawn(self, data: st.DataObject, *states: str) -> int | None:
        """The sequence of a message in one of `states`; None when there is none."""
        found = sorted(seq for seq, message in self.messages.items() if message.state in states)
        return data.draw(st.sampled_from(found)) if found else None

    def expire(self) -> None:
        for seq, message in self.messages.items():
            if message.state == "leased" and message.lease_until_ms <= self.now_ms:
                self.returned(seq)

    def returned(self, seq: int) -> None:
        message = self.messages[seq]
        message.state = "dead" if message.attempts >= MAX_ATTEMPTS else "ready"
        message.lease = None
        if message.state == "dead":
            self.died.append(seq)

    def lease(
        self, tx: Transaction, work_id: str | None, *, ack: bool, fresh: int | None = None, concurrent: bool = False
    ) -> int | None:
        token, options = f"lease_{self.leases}", {"ack": ack, "fresh": fresh, "concurrent": concurrent}
        item = inbox.lease_next(tx, self.now_ms, VISIBLE, token, work_id, max_attempts=MAX_ATTEMPTS, **options)  # type: ignore[arg-type]
        return None if item is None else item.seq

    def leased(self, seq: int, *, ack: bool) -> None:
        message = self.messages[seq]
        message.state, message.lease = "acked" if ack else "leased", f"lease_{self.leases}"
        message.attempts += 1
        message.lease_until_ms = self.now_ms + VISIBLE
        self.leases += 1

    def oldest_ready(self, work_id: str | None, *, concurrent: bool = False) -> int | None:
        ready = [seq for seq, one in self.messages.items() if one.is_ready(self.now_ms, work_id)]
        return min((seq for seq in ready if concurrent or not self.is_held_back(seq)), default=None)

    def is_held_back(self, seq: int) -> bool:
        """Whether an earlier message of the same sender and work is leased, or returned with a delay. No work is accepted."""
        group = self.messages[seq].sender, self.messages[seq].work_id
        return any(
            message.state == "leased" or (message.state == "ready" and message.available_ms > self.now_ms)
            for earlier, message in self.messages.items()
            if earlier < seq and (message.sender, message.work_id) == group
        )

    @rule(work=WORKS, sender=st.sampled_from([BOB, "carol"]), size=st.integers(1, 100))
    def a_message_is_delivered(self, work: str | None, sender: str, size: int) -> None:
        _, applied = self.write(receiving(say(sender, text="x" * size, work_id=work)))
        if applied.delivered:
            assert applied.seq is not None
            self.messages[applied.seq] = Message(work, sender)

    @rule(work=WORKS, ack=st.booleans(), concurrent=st.booleans())
    def the_oldest_is_leased(self, work: str | None, ack: bool, concurrent: bool) -> None:
        self.expire()
        expected = self.oldest_ready(work, concurrent=concurrent)
        assert self.write(lambda tx: self.lease(tx, work, ack=ack, concurrent=concurrent)) == expected
        if expected is not None:
            self.leased(expected, ack=ack)

    @rule(work=WORKS, ack=st.booleans())
    def a_message_is_delivered_to_a_waiting_consumer(self, work: str | None, ack: bool) -> None:
        """The consumer waits for messages of this work, and has found none."""
        self.expire()
        self.write(lambda tx: inbox.expire_leases(tx, self.now_ms, MAX_ATTEMPTS))
        if self.oldest_ready(work) is not None:
            return

        def job(tx: Transaction) -> tuple[int | None, int | None]:
            _, applied = receiving(say(work_id=work))(tx)
            if not applied.delivered:
                return None, None
            return applied.seq, self.lease(tx, work, ack=ack, fresh=applied.seq)

        delivered, taken = self.write(job)
        if delivered is not None:
            self.messages[delivered] = Message(work, BOB)
            held_back = self.is_held_back(delivered)
            assert taken == (None if held_back else delivered)
            if not held_back:
                self.leased(delivered, ack=ack)

    @rule(data=st.data())
    def one_is_leased_by_its_sequence(self, data: st.DataObject) -> None:
        self.expire()
        self.write(lambda tx: inbox.expire_leases(tx, self.now_ms, MAX_ATTEMPTS))
        seq = self.drawn(data, "ready")
        if seq is not None and self.messages[seq].is_ready(self.now_ms, None):
            token = f"lease_{self.leases}"
            _, new = self.write(lambda tx: inbox.lease(tx, seq, token, self.now_ms, VISIBLE, MAX_ATTEMPTS))
            assert new
            self.leased(seq, ack=False)

    @rule(data=st.data())
    def a_lease_is_renewed(self, data: st.DataObject) -> None:
        self.expire()
        self.write(lambda tx: inbox.expire_leases(tx, self.now_ms, MAX_ATTEMPTS))
        seq = self.drawn(data, "leased")
        if seq is not None:
            message, token = self.messages[seq], self.messages[seq].lease or ""
            _, new = self.write(lambda tx: inbox.lease(tx, seq, token, self.now_ms, VISIBLE, MAX_ATTEMPTS))
            assert not new
            message.lease_until_ms = self.now_ms + VISIBLE

    @rule(data=st.data(), with_lease=st.booleans())
    def one_is_acked(self, data: st.DataObject, with_lease: bool) -> None:
        self.expire()
        self.write(lambda tx: inbox.expire_leases(tx, self.now_ms, MAX_ATTEMPTS))
        seq = self.drawn(data, "leased") if with_lease else self.drawn(data, "ready", "leased", "acked", "dead")
        if seq is not None:
            message = self.messages[seq]
            item = self.write(lambda tx: inbox.ack(tx, seq, message.lease if with_lease else None))
            message.state, message.attempts = "acked", max(1, message.attempts)
            assert (item.seq, item.state, item.attempts) == (seq, "acked", message.attempts)

    @rule(data=st.data())
    def one_is_acked_under_a_replaced_lease(self, data: st.DataObject) -> None:
        seq = self.drawn(data, "ready", "leased", "dead")
        if seq is not None:
            try:
                self.write(lambda tx: inbox.ack(tx, seq, "lease_replaced"))
            except Refused as error:
                assert error.error_code == "lease_lost"
            else:
                raise AssertionError("the lease was accepted")

    @rule(data=st.data(), delay_ms=st.sampled_from([None, 0, 5_000]))
    def one_is_returned(self, data: st.DataObject, delay_ms: int | None) -> None:
        self.expire()
        self.write(lambda tx: inbox.expire_leases(tx, self.now_ms, MAX_ATTEMPTS))
        seq = self.drawn(data, "ready", "leased")
        if seq is not None:
            message = self.messages[seq]
            item = self.write(
                lambda tx: inbox.nack(tx, seq, now_ms=self.now_ms, delay_ms=delay_ms, max_attempts=MAX_ATTEMPTS)
            )
            self.returned(seq)
            delay = inbox.backoff_ms(message.attempts) if delay_ms is None else delay_ms
            message.available_ms = self.now_ms + delay
            assert (item.state, item.attempts, item.available_ms) == (
                message.state,
                message.attempts,
                message.available_ms,
            )

    @rule(data=st.data())
    def a_lease_is_given_back(self, data: st.DataObject) -> None:
        self.expire()
        self.write(lambda tx: inbox.expire_leases(tx, self.now_ms, MAX_ATTEMPTS))
        seq = self.drawn(data, "leased", "acked")
        if seq is not None and (lease := self.messages[seq].lease) is not None:
            message = self.messages[seq]
            item = self.write(lambda tx: inbox.give_back(tx, seq, lease))
            message.state, message.attempts, message.lease = "ready", message.attempts - 1, None
            assert item is not None
            assert (item.state, item.attempts, item.lease) == ("ready", message.attempts, None)

    @rule(data=st.data())
    def the_work_of_one_ends(self, data: st.DataObject) -> None:
        self.expire()
        self.write(lambda tx: inbox.expire_leases(tx, self.now_ms, MAX_ATTEMPTS))
        seq = self.drawn(data, "ready", "leased", "acked", "dead")
        if seq is not None:
            message = self.messages[seq]
            waits = message.state in ("ready", "leased")
            assert self.write(lambda tx: inbox.settle(tx, seq)) == waits
            if waits:
                message.state, message.attempts, message.available_ms = "acked", max(1, message.attempts), 0

    @rule(work=WORKS)
    def the_work_of_a_message_ends_before_a_waiting_consumer_gets_it(self, work: str | None) -> None:
        self.expire()
        self.write(lambda tx: inbox.expire_leases(tx, self.now_ms, MAX_ATTEMPTS))
        expected = self.oldest_ready(work)

        def job(tx: Transaction) -> tuple[int | None, int | None]:
            _, applied = receiving(say(work_id=work))(tx)
            if not applied.delivered or applied.seq is None:
                return None, None
            assert inbox.settle(tx, applied.seq)
            return applied.seq, self.lease(tx, work, ack=False, fresh=applied.seq)

        delivered, taken = self.write(job)
        if delivered is not None:
            self.messages[delivered] = Message(work, BOB, "acked", attempts=1)
            assert taken == expected
            if taken is not None:
                self.leased(taken, ack=False)

    @rule(data=st.data())
    def one_is_requeued(self, data: st.DataObject) -> None:
        seq = self.drawn(data, "ready", "leased", "acked", "dead")
        if seq is not None:
            item = self.write(lambda tx: inbox.requeue(tx, seq))
            assert (item.state, item.attempts, item.available_ms) == ("ready", 0, 0)
            self.messages[seq] = Message(self.messages[seq].work_id, self.messages[seq].sender)

    @rule()
    def a_message_is_sent(self) -> None:
        self.sent.append(self.write(sending(say(US, BOB))).last_seq)

    @precondition(lambda self: self.sent)
    @rule()
    def the_agent_is_notified(self) -> None:
        seq = self.sent.pop()
        self.write(lambda tx: inbox.notify(tx, seq, "expired"))
        self.messages[seq] = Message(None, US)

    @rule(data=st.data(), work=WORKS, ack=st.booleans())
    def a_job_fails_after_it_wrote(self, data: st.DataObject, work: str | None, ack: bool) -> None:
        acked = self.drawn(data, "ready", "leased", "acked", "dead")

        def job(tx: Transaction) -> None:
            receiving(say(work_id=work))(tx)
            self.lease(tx, work, ack=ack)
            if acked is not None:
                inbox.ack(tx, acked)
            raise Refused("changed its mind", code="conflict", hint="")

        async def beside_another() -> Any:
            """The other job shares the transaction, and is not undone."""
            jobs = [self.store.write(job), self.store.write(receiving(say()))]
            return await asyncio.gather(*jobs, return_exceptions=True)

        error, (_, applied) = self.run(beside_another())
        assert isinstance(error, Refused)
        self.messages[applied.seq] = Message(None, BOB)

    @rule(work=WORKS)
    def a_consumer_dies(self, work: str | None) -> None:
        self.the_oldest_is_leased(work, ack=False, concurrent=True)
        self.now_ms += VISIBLE

    @rule(seconds=st.sampled_from([1, 5, 10]))
    def time_passes(self, seconds: int) -> None:
        self.now_ms += seconds * 1000

    @rule()
    def nothing_old_is_removed(self) -> None:
        self.run(sweep(self.store, RetentionPolicy(max_age=None, max_bytes=None), self.now_ms))

    @rule(ending=st.sampled_from(["close", "copy"]))
    def it_is_reopened(self, ending: str) -> None:
        """`copy`: the files as a crash would leave them."""
        if ending == "copy":
            copy = self.path.with_name(f"{self.leases}-{len(self.messages)}-{self.path.name}")
            for suffix in ("", "-wal"):
                source = self.path.with_name(self.path.name + suffix)
                if source.exists():
                    copy.with_name(copy.name + suffix).write_bytes(source.read_bytes())
            self.run(self.store.close())
            self.path = copy
        else:
            self.run(self.store.close())
        self.open()

    async def waiting(self) -> tuple[dict[str, tuple[int, int]], dict[str, int]]:
        """What is ready or leased, as the store has it: messages and bytes by sender, messages by work."""
        page = await inbox_list.items(self.store.reader, states=frozenset(["ready", "leased"]), limit=10_000)
        sizes: dict[str, list[int]] = {}
        for item in page.items:
            sizes.setdefault(item.message.sender, []).append(len(item.message.envelope))
        works = Counter(item.message.work_id for item in page.items if item.message.work_id is not None)
        return {sender: (len(found), sum(found)) for sender, found in sizes.items()}, works

    @invariant()
    def every_message_is_as_in_the_model(self) -> None:
        if hasattr(self, "store"):
            expected = {seq: message.state for seq, message in sorted(self.messages.items())}
            assert self.run(inbox_states(self.store)) == expected
            waiting = self.store.memory.inbox.waiting
            found = list(expected.values())
            assert waiting == found.count("ready") + found.count("leased")
            held = self.store.memory.inbox.messages
            assert (held.senders, held.works) == self.run(self.waiting())
            counts = {state: found.count(state) for state in ("ready", "leased", "dead")}
            assert self.run(inbox_list.counts(self.store.reader, self.store.memory.inbox)) == counts

    @invariant()
    def every_death_is_told_once(self) -> None:
        assert sorted(self.told) == sorted(self.died)


InboxMachine.TestCase.settings = settings(
    max_examples=25, stateful_step_count=40, deadline=None, suppress_health_check=list(HealthCheck)
)
TestInboxMachine = InboxMachine.TestCase
