"""The way in: NATS bytes → parse once → decide → one transaction for whatever has come meanwhile → act on the effects.

Parsing happens as the message comes, so that garbage never takes a place in the queue. The queue is bounded: what does not
fit is not committed, not remembered and not answered (spec section 5, Overload); it is counted, and the sender's retry
brings it again. While one commit is under way the next batch gathers.
"""

import asyncio
import logging
from collections import deque
from collections.abc import Awaitable, Callable, Iterable
from functools import partial
from itertools import islice
from typing import Final

from aghbus.daemon.base.failpoints import failpoint
from aghbus.daemon.discovery.discovery import Discovery
from aghbus.daemon.nats.events import Settlement
from aghbus.daemon.nats.link import InboundMessage, LinkError
from aghbus.daemon.receive.decider import Arrived, Decider, Done
from aghbus.daemon.send.deadlines import Deadlines
from aghbus.daemon.send.publisher import Publisher
from aghbus.daemon.state.context import Core
from aghbus.protocol.acks import ANSWER_TO, Ack, encode_ack, encode_signed_ack, may_answer
from aghbus.protocol.effects import (
    AnswerWhois,
    Conflict,
    Discovered,
    Ignore,
    Quarantine,
    Queue,
    Remember,
)
from aghbus.protocol.envelope import DISCOVERY_KINDS, KINDS, Envelope, parse
from aghbus.protocol.errors import Illegible, NotTarget, ProtocolError
from aghbus.protocol.identifiers import channel_of_subject
from aghbus.protocol.partial_parse import salvage
from aghbus.protocol.rate_limit import Budgets
from aghbus.protocol.receive import Source, View, decide
from aghbus.store.engine.dedup import key_of
from aghbus.store.engine.writer import Job
from aghbus.store.errors import StoreUnavailable

_BATCH: Final = 256  # envelopes decided in one job: some milliseconds of the loop
_BATCH_BYTES: Final = 4 * 1024 * 1024  # of envelopes decided in one job, for the same reason
_QUEUE_BYTES: Final = 64 * 1024 * 1024  # of envelopes that wait: four thousand of the largest would be gigabytes
_SHARE: Final = 0.75  # of the queue that one sender may fill: the others' messages get through a flood of his
_QUARANTINE_PER_SECOND: Final = 50.0  # refused envelopes kept; a flood beyond it is only counted
_NAK_DELAY: Final = 1.0  # seconds until a stream delivers again what could not be taken
_HELD: Final = {
    "sender": "a peer sends more than limits.messages_per_minute",
    "doubt": "too many signatures were wrong lately",
    "memory": "more long-lived ids are remembered than receive.remembered has room for",
    "store": "the store cannot write",
}
_RECEIVED: Final = {kind: f"received.{kind}" for kind in KINDS}  # names of counters
_STORE_PAUSE: Final = 0.25  # seconds before the next batch after the store could not write


class Intake:
    """The receiving half of the daemon."""

    def __init__(self, core: Core, discovery: Discovery, publisher: Publisher, deadlines: Deadlines) -> None:
        self._core = core
        self._decider = Decider(core, deadlines)
        self._discovery = discovery
        self._publisher = publisher
        self._queue: deque[Arrived] = deque()
        self._bytes = 0  # of what is in the queue
        self._shares: dict[str, int] = {}  # messages in the queue by sender, "" for the refused
        self._bell = asyncio.Event()
        self._idle = asyncio.Event()
        self._idle.set()
        self._kept = Budgets(capacity=4 * _QUARANTINE_PER_SECOND, per_second=_QUARANTINE_PER_SECOND, keys=1)

    @property
    def depth(self) -> int:
        """Messages waiting for the store."""
        return len(self._queue)

    # arriving (synchronous, on the link's callback)

    def offer(self, message: InboundMessage) -> None:
        """One message from the broker; never raises for what it holds."""
        core = self._core
        core.counters.add("received")
        now_ms = core.clock.millis()
        try:
            envelope = parse(message.data, now_ms // 1000)
            if channel_of_subject(message.subject) != (envelope.workspace_id, envelope.channel):
                raise NotTarget("is not the channel of the subject that it came on", "channel")
        except ProtocolError as error:
            self._offer_refused(message, error, now_ms)
            return
        core.counters.add(_RECEIVED[envelope.kind])
        failpoint("receive.parsed")
        arrived = self._arrived(message, now_ms, envelope, us=core.identities.receiving(envelope))
        if (held := core.flood.hold(envelope)) is not None:
            self._overload(held, arrived)
        elif envelope.kind in DISCOVERY_KINDS:
            self._discover(arrived, envelope)
            _settle(message.settlement)
        else:
            self._put(arrived)

    def _arrived(
        self,
        message: InboundMessage,
        now_ms: int,
        envelope: Envelope | None,
        error: ProtocolError | None = None,
        source: Source | None = None,
        *,
        us: str,
    ) -> Arrived:
        # NATS' own reply subject may be for a stream's confirmation.
        reply = message.reply if message.headers is None else message.headers.get(ANSWER_TO, message.reply)
        sender = "" if envelope is None else envelope.sender
        return Arrived(
            message.subject, message.data, now_ms, envelope, error, source, reply, message.settlement, us, sender
        )

    def _offer_refused(self, message: InboundMessage, error: ProtocolError, now_ms: int) -> None:
        core = self._core
        core.counters.add("refused")
        core.counters.add(f"refused.{error.reason}")
        source, us = (None, core.us) if isinstance(error, NotTarget | Illegible) else self._salvage(message.data)
        if source is not None and not core.flood.may_refuse(source.sender):
            core.counters.add("receipts.suppressed")
            source = None
        if source is None and not self._kept.spend("", core.clock.monotonic()):
            core.counters.add("quarantine.skipped")
            self._decider.skip()
            _settle(message.settlement)
            return
        self._put(self._arrived(message, now_ms, None, error, source, us=us))

    def _salvage(self, raw: bytes) -> tuple[Source | None, str]:
        """What could be read of refused bytes, and which of our ids they were directed at."""
        core = self._core
        for us in (core.us, *core.identities.former):
            if (source := salvage(raw, us, core.joined)) is not None:
                return source, us
        return None, core.us

    def _put(self, arrived: Arrived) -> None:
        queue, limit, sender = self._queue, self._core.settings.receive.queue, arrived.sender
        waiting, size, share = len(queue), self._bytes + len(arrived.raw), self._shares.get(sender, 0)
        if waiting >= limit or size > _QUEUE_BYTES or (share and share >= int(limit * _SHARE)):
            self._overload("queue", arrived)
            return
        if not waiting:
            self._idle.clear()
            self._bell.set()
        queue.append(arrived)
        self._bytes = size
        self._shares[sender] = share + 1

    def _discover(self, arrived: Arrived, envelope: Envelope) -> None:
        """Greet and whois: answered at once, remembered behind (docs/adr/0004)."""
        core, heard, key = self._core, self._discovery.heard, key_of(envelope)
        view = View(duplicate=key in heard or core.store.memory.dedup.contains(key))
        for effect in reversed(decide(envelope, view, self._decider.receiver(envelope.sender))):
            match effect:  # what somebody waits for, and then what we keep of it
                case Remember(until=until):
                    heard.remember(key, until)
                    core.trust.greeted(envelope)
                case Discovered() | AnswerWhois():
                    self._discovery.carry_out(effect, envelope)
                case Conflict():
                    self._discovery.conflict(envelope)
                    if self._kept.spend("", core.clock.monotonic()):
                        core.behind(partial(self._decider.note_conflict, envelope=envelope, at_ms=core.clock.millis()))
                case Quarantine(reason=reason):
                    core.counters.add("refused")
                    core.counters.add(f"refused.{reason}")
                    if self._kept.spend("", core.clock.monotonic()):
                        self._keep(arrived, effect)
                case Ignore(why=why):
                    core.counters.add(f"ignored.{why}")
                case _:
                    raise AssertionError(f"discovery has no such effect: {effect!r}")

    def _keep(self, arrived: Arrived, effect: Quarantine) -> None:
        self._core.behind(lambda tx: self._decider.quarantine(tx, arrived, effect))

    # deciding and committing

    async def run(self) -> None:
        """Work the queue off until cancelled."""
        while True:
            await self._bell.wait()
            self._bell.clear()
            await self._work_queue_off()
            if not self._queue:  # else one came while the last batch was committed
                self._idle.set()

    async def _work_queue_off(self) -> None:
        """Batch after batch; while one is committed the next is decided, and no third begins."""
        before: asyncio.Task[None] | None = None
        try:
            while self._queue:
                if before is not None and self._core.verification.known:
                    await before  # what it finds wrong spends the budgets that say how much more is looked at
                batch, signed = await self._prepared()
                earlier, before = before, asyncio.create_task(self._carry_out(batch, signed))
                if earlier is not None:
                    await earlier
            if before is not None:
                await before
        finally:
            if before is not None:
                before.cancel()

    async def drained(self, timeout: float) -> bool:
        """Wait until everything that arrived is committed; False when `timeout` seconds passed before."""
        try:
            async with asyncio.timeout(timeout):
                await self._idle.wait()
        except TimeoutError:
            return False
        return True

    async def _prepared(self) -> tuple[list[Arrived], list[Envelope]]:
        """The next batch and its signed envelopes, their signatures checked."""
        batch = self._next()
        signed, verification = _signed(batch), self._core.verification
        if signed:
            # Those behind it are checked while this batch is decided and committed.
            verification.begin(self._core.flood.checkable([*signed, *_signed(islice(self._queue, _BATCH))]))
            await verification.ready(signed)
        return batch, signed

    async def _carry_out(self, batch: list[Arrived], signed: list[Envelope]) -> None:
        try:
            # What a signature proves spends its sender's budget, once: a batch with signatures is not begun in vain.
            await self._work_off(batch, self._core.store.submit if signed else self._core.store.submit_ahead)
        except StoreUnavailable as error:
            for arrived in batch:
                self._overload("store", arrived)
            self._core.noise.event(logging.ERROR, "store", "the store cannot write", cause=str(error))
            await asyncio.sleep(_STORE_PAUSE)
        finally:
            self._core.verification.forget(signed)

    def _next(self) -> list[Arrived]:
        queue, shares = self._queue, self._shares
        batch: list[Arrived] = []
        size = 0
        while queue and len(batch) < _BATCH and size < _BATCH_BYTES:
            arrived = queue.popleft()
            batch.append(arrived)
            size += len(arrived.raw)
            shares[arrived.sender] -= 1
        self._bytes -= size
        if not queue:
            shares.clear()
        return batch

    async def _work_off(self, batch: list[Arrived], submit: Callable[[Job[list[Done]]], Awaitable[list[Done]]]) -> None:
        try:
            results = await submit(lambda tx: self._decider.decide_all(tx, batch))
        except StoreUnavailable:
            raise
        except Exception:
            if len(batch) == 1:
                await self._give_up(batch[0])
                return
            for arrived in batch:  # one of them met a defect of ours: the others must not suffer
                await self._work_off([arrived], submit)
            return
        failpoint("receive.committed")
        for done in results:
            self._act(done)
        self._announce(results)

    async def _give_up(self, arrived: Arrived) -> None:
        """An envelope that we cannot process for a defect of our own: kept for inspection, reported, and not asked for again."""
        self._core.counters.add("internal_errors")
        self._core.log.exception("an envelope could not be processed subject=%s", arrived.subject)
        self._core.counters.problem(
            "internal",
            "an envelope could not be processed: see the log and `aghctl quarantine`",
            self._core.clock.monotonic(),
        )
        await self._core.store.write(
            lambda tx: self._decider.quarantine(
                tx, arrived, Quarantine("internal", "a defect of this daemon: see its log")
            )
        )
        _settle(arrived.settlement)

    # acting, after the commit

    def _act(self, done: Done) -> None:
        if done.held:
            self._overload(done.held, done.arrived)
            return
        if not done.usual:
            self._tell(done)
        if done.applied is not None:
            if done.applied.outgoing:
                self._publisher.enqueue(done.applied.outgoing)
            _settle(done.arrived.settlement)
            if done.arrived.reply:
                self._acknowledge(done)
            failpoint("receive.acted")

    def _tell(self, done: Done) -> None:
        """Counts, and reports, what the store knows nothing of."""
        core = self._core
        for effect in done.effects:
            match effect:
                case Ignore(why=why):
                    core.counters.add(f"ignored.{why}")
                case Quarantine(reason=reason) if done.arrived.envelope is not None:
                    core.counters.add("refused")
                    core.counters.add(f"refused.{reason}")
                case Conflict(envelope=envelope):
                    self._discovery.conflict(envelope)
                case Queue(envelope=answer):
                    core.counters.add(f"sent.{answer.kind}")
                case _:
                    pass

    def _announce(self, results: list[Done]) -> None:
        """Wake those who wait for new envelopes, once for all."""
        last = 0
        for done in results:
            if done.applied is not None:
                last = done.applied.last_seq or last  # they ascend
        self._core.announcer.ring(last)

    def _acknowledge(self, done: Done) -> None:
        """Tell the sender's daemon, if it asked, that a message directed at us is committed, or refused for good.

        A handle is told only of what it is shown to have sent: a forged copy would have us refuse the real one, in our name.
        """
        envelope, reply = done.arrived.envelope, done.arrived.reply
        if envelope is None or envelope.to is None or not may_answer(reply):
            return
        if envelope.to not in self._core.identities:
            return
        if envelope.sender in self._core.identities:
            return  # our own, or of another daemon under our id: not kept here
        refused = next((effect for effect in done.effects if isinstance(effect, Quarantine)), None)
        if refused is not None and refused.trust is None and "@" in envelope.sender:
            return
        refusal = None if refused is None or done.known else refused.reason
        ack = Ack(envelope.id, "committed" if refusal is None else "refused", refusal)
        self._core.counters.add("acks.sent")
        self._answer(reply, ack, us=envelope.to, to=envelope.sender)

    def _answer(self, reply: str, ack: Ack, us: str, to: str) -> None:
        signer = self._core.identities.signer_of(us)
        raw = encode_ack(ack) if signer is None else encode_signed_ack(ack, sender=signer.handle, to=to, signer=signer)
        try:
            if self._core.link.publish_nowait(reply, raw, flush=False):
                return
        except LinkError:
            self._core.counters.add("acks.unsent")  # it will be asked again
            return
        if self._discovery.busy:
            self._core.counters.add("acks.unsent")
        else:
            self._discovery.spawn(self._answer_later(reply, raw))

    async def _answer_later(self, reply: str, raw: bytes) -> None:
        try:
            await self._core.link.publish(reply, raw)
        except LinkError:
            self._core.counters.add("acks.unsent")

    def _overload(self, where: str, arrived: Arrived) -> None:
        """Held off: not committed, not remembered, not answered; a retry, or the stream, brings it again."""
        core = self._core
        core.counters.add("overload")
        core.counters.add(f"overload.{where}")
        if arrived.settlement is not None:
            arrived.settlement.nak(_NAK_DELAY)
        sentence = f"overload: envelopes are held off because {_HELD.get(where, f'the {where} is full')}"
        core.counters.problem(f"overload.{where}", sentence, core.clock.monotonic())
        core.noise.event(logging.WARNING, f"overload.{where}", sentence, sender=arrived.sender, subject=arrived.subject)


def _signed(messages: Iterable[Arrived]) -> list[Envelope]:
    return [one.envelope for one in messages if one.envelope is not None and one.envelope.proof is not None]


def _settle(settlement: Settlement | None) -> None:
    if settlement is not None:
        settlement.ack()
