"""From the outbox to the broker: what is committed as queued goes out in order, and again until it is answered.

Published means that the broker has it, nothing more (spec section 7). A directed message is tried again, the same bytes, until
its receiver's daemon acknowledges the commit, a receipt or trace answers it, it is stale, or the limit of tries is reached;
then it is given up, its work is closed and the agent is told. Receivers deduplicate by id.
"""

import asyncio
import contextlib
import logging
import re
from collections import deque
from collections.abc import Sequence
from functools import partial
from typing import Final, NamedTuple

from aghbus.daemon.base.failpoints import failpoint
from aghbus.daemon.nats.carrier import Carrier
from aghbus.daemon.nats.link import InboundMessage, LinkError
from aghbus.daemon.send.closing import after_failure
from aghbus.daemon.send.retry_timer import Outlook
from aghbus.daemon.send.unresponsive_peers import FIRST_PAUSE, Silences
from aghbus.daemon.state.context import Core
from aghbus.protocol.acks import MAX_ANSWER_BYTES, Ack, is_answer_of, parse_ack
from aghbus.protocol.base.backoff import exponential_delay
from aghbus.protocol.errors import REASON_CODES
from aghbus.protocol.rate_limit import Budgets
from aghbus.store.audit import events as audit
from aghbus.store.engine.transaction import Transaction
from aghbus.store.errors import StoreUnavailable
from aghbus.store.tables import outbox, retry
from aghbus.store.tables.outbox import Outgoing
from aghbus.store.tables.retry import Schedule

_BATCH: Final = 1024  # envelopes between two confirmations, at most
_FRESH: Final = 1024  # envelopes in memory that wait for the broker; more are read from the store again
_LONGEST: Final = 30.0  # seconds between two looks for what is due: a wall clock may be set while we wait
_SHORTEST: Final = 0.05  # seconds between two looks, when the clock says that something is due
_NOT_TAKEN: Final = 0.5  # seconds before what the broker did not take now is offered again
_JITTER: Final = 0.25  # of a pause between two tries, both ways
_HASTES: Final = 3.0  # times in a row that a peer's return hastens what waits for it: anybody may greet under its name
_HASTES_PER_SECOND: Final = 1 / 15  # thereafter
_NOBODY: Final = "503"  # status by which a broker says that nobody listens on the subject of a message
_SEQUENCE: Final = re.compile(r"[0-9]{1,18}").fullmatch  # last token of our reply subjects; fits SQLite's 63 bits


class _Answer(NamedTuple):
    """The acknowledgement of our envelope `seq`, as it came."""

    seq: int
    ack: Ack
    raw: bytes


class _Due(NamedTuple):
    """What the store has for the next round of tries."""

    rows: list[Outgoing]
    back: frozenset[str] = frozenset()  # subjects of peers that are back, to which all that waits is due
    whole: bool = True  # whether `rows` are all that is due


class Publisher:
    """Two tasks: `run` empties the outbox whenever something is queued and the link is up, `retry` sends again."""

    def __init__(self, core: Core, carrier: Carrier) -> None:
        self._core = core
        self._carrier = carrier
        self._fresh: deque[Outgoing] = deque()
        self._bell = asyncio.Event()
        self._outlook = Outlook()
        self._reload = True
        self._silences = Silences(core.clock)
        self._turn = asyncio.Lock()  # one task at a time publishes to silent peers
        self._ahead: set[int] = set()  # sequences behind whose answer others are held back
        self._known_from = float("-inf")  # monotonic; a peer not heard until then counts as not acknowledging
        self._hastened = Budgets(_HASTES, _HASTES_PER_SECOND)
        self._answers: list[_Answer] = []  # that came since their job was submitted
        self._idle = asyncio.Event()
        self._idle.set()

    def enqueue(self, rows: Sequence[Outgoing]) -> None:
        """What a commit has just queued, in order."""
        for row in rows:
            self._outlook.waits(row.expires_at)
            self._fresh.append(row)
        if not rows:
            return
        if self._core.link.state != "up" or len(self._fresh) > _FRESH:
            self._fresh.clear()  # they are in the store: neither an outage nor a slow broker fills our memory
            self._reload = True
        self._idle.clear()
        self._bell.set()

    def link_up(self) -> None:
        """The link is (back) up: everything still queued in the store goes out."""
        self._reload = True
        self._known_from = self._core.clock.monotonic() + self._core.settings.discovery.max_wait
        self._idle.clear()
        self._bell.set()
        self._outlook.ring()

    # publishing

    async def run(self) -> None:
        """Publish until cancelled."""
        while True:
            await self._bell.wait()
            self._bell.clear()
            if self._core.link.state != "up":
                continue
            try:
                await self._empty()
            except (LinkError, StoreUnavailable) as error:
                self._again()
                self._core.counters.add("outbox.interrupted")
                self._core.noise.event(logging.INFO, "outbox", "publishing interrupted", cause=str(error))

    def _again(self) -> None:
        """What was under way is still queued in the store: once more soon. The link may never count as lost: a late PONG."""
        self._reload = True
        self._idle.clear()
        asyncio.get_running_loop().call_later(_NOT_TAKEN, self._bell.set)

    async def drained(self, timeout: float) -> bool:
        """Wait until nothing is left to publish; False when `timeout` seconds passed before."""
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def _empty(self) -> None:
        while self._reload or self._fresh:
            if self._reload:
                await self._publish_stored()
            batch = [self._fresh.popleft() for _ in range(min(_BATCH, len(self._fresh)))]
            await self._publish_in_turn(batch)
        self._idle.set()

    async def _publish_stored(self) -> None:
        """Everything that the store has as queued, oldest first; what is fresh is part of it or comes after."""
        store = self._core.store
        if not store.writable and not await store.probe():  # what cannot be noted would go out again and again
            raise StoreUnavailable("the store cannot write", hint="see `aghctl status`")
        self._reload = False
        self._fresh.clear()
        after = 0
        while rows := await store.write(partial(outbox.load_queued, after_seq=after, limit=_BATCH)):
            await self._publish_in_turn(rows)
            after = rows[-1].seq

    async def _publish_in_turn(self, rows: list[Outgoing]) -> None:
        """Not between what is due and its publication, where that may be older and go to the same peer."""
        async with self._turn if self._silences.concern(rows) else contextlib.nullcontext():
            await self._publish(rows)

    async def _publish(self, rows: list[Outgoing], catching_up: frozenset[str] = frozenset()) -> None:
        """`rows`, as far as they may go out now. They are all that is due on the subjects of `catching_up`."""
        now = self._core.clock.seconds()
        fresh = [row for row in rows if row.expires_at > now]
        if len(fresh) < len(rows):
            self._outlook.ring()  # the other task gives up what is stale
        if not fresh:
            return
        counted = {row.seq for row in fresh}  # what goes out in front of them is no try of its own
        if self._silences.concern(fresh):
            fresh = await self._core.store.write(lambda tx: self._in_order(tx, fresh, catching_up))
        if any(row.behind is not None and self._waits_for(row.recipient) for row in fresh):
            fresh = await self._core.store.write(lambda tx: self._without_held(tx, fresh))
        if not fresh:
            return
        failpoint("publish.before")
        carried = await self._carrier.carry(fresh)
        failpoint("publish.confirmed")
        taken = set(carried.published)
        self._core.counters.add("outbox.published", len(taken))
        counted &= taken
        noted = [row for row in fresh if row.seq in counted]
        note = self._core.store.submit_behind(lambda tx: self._note(tx, noted, carried.impossible))
        note.add_done_callback(self._noted)
        if len(taken) + len(carried.impossible) < len(fresh):
            self._core.counters.add("outbox.not_taken", len(fresh) - len(taken) - len(carried.impossible))
            self._reload = True
            await asyncio.sleep(_NOT_TAKEN)

    def _noted(self, future: asyncio.Future[None]) -> None:
        error = None if future.cancelled() else future.exception()
        if isinstance(error, StoreUnavailable):
            self._again()  # it went out, but would wait for no answer
        elif error is not None:
            self._core.log.error("what was published could not be noted", exc_info=error)

    def _note(self, tx: Transaction, rows: list[Outgoing], impossible: list[tuple[int, str]]) -> None:
        now_ms = self._core.steps.settle(tx)
        schedules = [Schedule(row.seq, self._next_ms(row, now_ms)) for row in rows]
        retry.published(tx, schedules, now_ms)
        first_ms = min((one.next_ms for one in schedules if one.next_ms is not None), default=None)
        if first_ms is not None:
            tx.after_commit(partial(self._outlook.due_at, self._monotonic(first_ms)))
        for seq, why in impossible:
            self._core.counters.add("outbox.dead")
            self._fail(tx, seq, "dead", why)

    def _in_order(self, tx: Transaction, rows: list[Outgoing], catching_up: frozenset[str]) -> list[Outgoing]:
        tx.after_commit(self._outlook.ring)  # for what is held back
        now_ms = self._core.steps.settle(tx)
        return self._silences.in_order(tx, rows, catching_up, self._core.settings.retry.ceiling, now_ms)

    def _without_held(self, tx: Transaction, rows: list[Outgoing]) -> list[Outgoing]:
        """`rows` without what must not arrive before the opening of its work, or before our end of it.

        A receiver ignores, for good, an end that comes before its opening (spec section 6, no such work), and a refusal that
        comes before our end would end the work in another state. So they wait for the acknowledgement.
        """
        behind = [row.seq for row in rows if row.behind is not None and self._waits_for(row.recipient)]
        held = retry.hold(tx, behind, self._core.steps.settle(tx) + int(1000 * self._core.settings.retry.first))
        self._ahead.update(held.values())
        tx.after_commit(self._outlook.ring)
        return [row for row in rows if row.seq not in held]

    def _waits_for(self, peer: str | None) -> bool:
        """Whether `peer` acknowledges what it commits, as far as we know: just after the start or an outage it may."""
        if peer is None:
            return False
        acknowledges = self._core.roster.acknowledges(peer)
        return self._core.clock.monotonic() < self._known_from if acknowledges is None else acknowledges

    def _release(self, tx: Transaction, seq: int) -> None:
        tx.after_commit(partial(self._ahead.discard, seq))
        if retry.release(tx, seq, self._core.steps.settle(tx)):
            tx.after_commit(self._outlook.ring)

    # trying again

    def _next_ms(self, row: Outgoing, now_ms: int) -> int | None:
        """When a message that was just published for the `row.attempts + 1`-th time goes out again; None for never.

        Only what can be answered is worth another try: work, by every peer, and anything by a daemon that acknowledges.
        """
        core = self._core
        if row.recipient is None or (not row.answerable and core.roster.acknowledges(row.recipient) is False):
            return None
        policy = core.settings.retry
        pause = exponential_delay(row.attempts + 1, policy.first, policy.ceiling)
        return now_ms + int(1000 * pause * (1 + _JITTER * (2 * core.clock.fraction() - 1)))

    async def retry(self) -> None:
        """Send again what is due, and give up what is stale, until cancelled."""
        while True:
            self._outlook.clear()
            failed = False
            try:
                async with self._turn:
                    due = await self._core.store.write(self._take_due)
                    if due.rows:
                        self._core.counters.add("outbox.retried", sum(row.attempts > 0 for row in due.rows))
                        await self._publish(due.rows, due.back)
                    if due.whole:
                        self._silences.caught_up(due.back)
            except (LinkError, StoreUnavailable) as error:
                self._core.noise.event(logging.INFO, "retry", "retry interrupted", cause=str(error))
                # Nobody rings when the store writes again, nor when a broker answers that was slow for a while.
                soon = isinstance(error, StoreUnavailable) or self._core.link.state == "up"
                self._outlook.looks_at(self._core.clock.monotonic() + _NOT_TAKEN if soon else None)
                failed = True
            with contextlib.suppress(TimeoutError):
                while not await self._rung(failed=failed):
                    pass  # the next look is sooner than it was

    async def _rung(self, *, failed: bool) -> bool:
        """Whether there is something to do now. Raises TimeoutError when it is time to look."""
        left = min(self._outlook.next_look - self._core.clock.monotonic(), _LONGEST)
        if not failed:  # else what is stale already was not given up, and would be so at once again
            left = min(left, self._outlook.seconds_to_stale(self._core.clock.millis() / 1000))
        async with asyncio.timeout(max(left, _SHORTEST)):
            return await self._outlook.rung()

    def _take_due(self, tx: Transaction) -> _Due:
        policy, now_ms = self._core.settings.retry, self._core.steps.settle(tx)
        longest = (1 + _JITTER) * max(policy.first, policy.ceiling, FIRST_PAUSE)
        retry.pull_in(tx, now_ms, now_ms + int(1000 * longest))
        if self._outlook.some_stale(self._core.clock.seconds()):
            self._give_up_stale(tx)
        if self._core.link.state != "up":
            tx.after_commit(partial(self._outlook.looks_at, None))
            return _Due([])
        back = self._silences.hasten(tx, now_ms)
        rows: list[Outgoing] = []
        for row in retry.due(tx, now_ms, _BATCH):
            if row.attempts < policy.limit:
                rows.append(row)
                if row.attempts and row.recipient is not None and self._core.roster.acknowledges(row.recipient):
                    self._silences.begins(row.subject)
            else:
                self._core.counters.add("outbox.dead")
                self._fail(tx, row.seq, "dead", f"no answer after {row.attempts} tries")
        next_ms = retry.next_due_ms(tx)
        next_at = None if next_ms is None else self._monotonic(next_ms)
        tx.after_commit(partial(self._outlook.looks_at, next_at))
        return _Due(rows, back, retry.count_due(tx, now_ms) == len(rows))

    def _monotonic(self, due_ms: int) -> float:
        """A time that the store has, as one that is never set: pauses are made of those."""
        return self._core.clock.monotonic() + self._core.steps.seconds_until(due_ms)

    def _give_up_stale(self, tx: Transaction) -> None:
        for seq in retry.stale(tx, self._core.clock.seconds(), _BATCH):
            self._core.counters.add("outbox.expired")
            self._fail(tx, seq, "expired", "no answer before it expired")
        tx.after_commit(partial(self._outlook.stale_from, retry.stale_from(tx)))

    def _fail(self, tx: Transaction, seq: int, state: str, why: str, reason: str | None = None) -> None:
        failed = retry.give_up(tx, seq, state, why)
        if failed is None:
            return
        audit.note_outgoing(tx, self._core.clock.millis(), seq, state, why)
        rows = after_failure(tx, self._core, failed, reason)
        tx.after_commit(lambda: self._told(rows))

    def _told(self, rows: list[Outgoing]) -> None:
        self.enqueue(rows)
        self._core.announcer.ring(max((row.seq for row in rows), default=0))
        self._core.consumers.ring()

    # answers

    def acknowledged(self, message: InboundMessage) -> None:
        """Something came to the reply subject of one of our messages (a callback of the link)."""
        token = message.subject.rpartition(".")[2]
        if not _SEQUENCE(token):
            return
        seq = int(token)
        if not message.data and (message.headers or {}).get("Status") == _NOBODY:
            self._silences.nobody_at(seq)
            return
        if len(message.data) > MAX_ANSWER_BYTES:
            self._core.counters.add("acks.unknown")
            return
        ack = parse_ack(message.data)
        if ack is None:
            return  # a stream's acknowledgement, for one
        self._core.counters.add(f"acks.{ack.outcome}")
        answer = _Answer(seq, ack, message.data)
        if seq in self._ahead or self._silences.any:  # something may wait for this answer
            self._core.behind(partial(self._take_answer, answer=answer), at_once=True)
            return
        if len(self._answers) >= _BATCH:
            self._answers = []  # those before have their job
        self._answers.append(answer)
        if len(self._answers) > 1:
            return
        begin_anew = partial(self._begin_anew, self._answers)
        job = self._core.behind(partial(self._take_answers, answers=self._answers))
        if job is None:
            begin_anew()
        else:
            job.add_done_callback(begin_anew)

    def _take_answers(self, tx: Transaction, answers: list[_Answer]) -> None:
        self._begin_anew(answers)
        for answer in answers:
            self._take_answer(tx, answer)

    def _begin_anew(self, answers: list[_Answer], _job: object = None) -> None:
        """What comes from now on is not of this job, which has begun, or will not run."""
        if self._answers is answers:
            self._answers = []

    def _take_answer(self, tx: Transaction, answer: _Answer) -> None:
        """Who got one message of ours knows where answers go, and can count: the id shows that it is the receiver's answer.

        Who follows the receiver's subject knows the id too: a receiver with a key has signed its answer.
        """
        seq, ack, raw = answer
        ends = retry.ends_of(tx, seq, ack.id)
        if ends is None or not is_answer_of(raw, sender=ends[0], recipient=ends[1]):
            tx.after_commit(lambda: self._core.counters.add("acks.unknown"))
            return
        if ack.outcome == "committed":
            retry.answered(tx, seq, "committed by the receiver's daemon")
            self._answered_by(tx, retry.subject_of(tx, seq))
        else:
            reason = ack.reason if ack.reason in REASON_CODES else None
            self._fail(tx, seq, "dead", f"refused by the receiver: {reason or 'no reason given'}", reason)
        if seq in self._ahead:
            self._release(tx, seq)

    def peer_is_back(self, subject: str) -> None:
        """The peer that listens on `subject` has joined: what waits for its answer need not wait longer."""
        if self._hastened.spend(subject, self._core.clock.monotonic()):
            self._silences.is_back(subject)
            self._outlook.ring()

    def _answered_by(self, tx: Transaction, subject: str | None) -> None:
        """A peer that did not answer for a while does: what else waits for it goes out now, in order."""
        if subject is not None and self._silences.answered(tx, subject):
            tx.after_commit(self._outlook.ring)
