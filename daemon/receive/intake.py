"""The inbound path: NATS bytes → parse → rate limits → queue → decide → one transaction for a batch → act on the outcomes.

A message is parsed when it comes, so that garbage never takes a place in the queue. The queue is bounded: a message that does not
fit is rejected (specification, section 5, Overload), which means that it is counted, and neither stored nor answered; the sender's
retry brings it again. The next batch gathers while one is being committed.
"""

import asyncio
import logging
from collections import deque
from functools import partial
from itertools import islice
from typing import Any, Final

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.base.failpoints import ARMED, failpoint
from aghbus.daemon.base.logs import EventLimiter, exception
from aghbus.daemon.base.metrics import NO_ENVELOPE, Counters
from aghbus.daemon.base.notifier import Notifier
from aghbus.daemon.base.waiting import wait_set
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.discovery.discovery import Discovery
from aghbus.daemon.discovery.presence_writer import PresenceWriteBehind
from aghbus.daemon.nats.events import InboundMessage, Settlement
from aghbus.daemon.receive.acknowledger import Acknowledger
from aghbus.daemon.receive.decider import Decider
from aghbus.daemon.receive.proofs import Proofs, ProofVerifier
from aghbus.daemon.receive.received import EARLY, Outcome, ReceivedMessage
from aghbus.daemon.send.publisher import Publisher
from aghbus.daemon.state.identity import Identity
from aghbus.daemon.state.limited_peers import LimitedPeers
from aghbus.daemon.state.rate_limits import RateLimits
from aghbus.daemon.state.signature_pool import SignaturePool
from aghbus.daemon.state.spans import EnvelopeSpans
from aghbus.daemon.state.standing import SHARES, Standing, Standings
from aghbus.daemon.state.trust_policy import LivePolicy
from aghbus.protocol.agh.delivery.acks import ANSWER_TO
from aghbus.protocol.agh.delivery.order import AFTER_SETTLED
from aghbus.protocol.agh.effects import AnswerWhois, Conflict, Discovered, Effects, Ignore, Quarantine, Queue, RecordId
from aghbus.protocol.agh.envelope import DISCOVERY_KINDS, KINDS, Envelope, parse
from aghbus.protocol.agh.errors import NotTarget, ProtocolError
from aghbus.protocol.agh.identifiers import channel_of_subject
from aghbus.protocol.agh.partial_parse import origin_in, partial_parse, readable
from aghbus.protocol.agh.receive import ReceiptTarget, StoredState, decide
from aghbus.store.engine.database import Store
from aghbus.store.errors import StoreUnavailable

_log = logging.getLogger("aghbus.node")

_BATCH: Final = 256  # messages decided in one job: some milliseconds of the event loop
_BATCH_BYTES: Final = 4 * 1024 * 1024  # of the messages decided in one job, for the same reason
QUEUE_BYTES: Final = 64 * 1024 * 1024  # of the messages in the queue: four thousand of the largest would be gigabytes
SENDER_SHARE: Final = 0.75  # for one sender, of the part of the queue that its standing may fill
_FREE_FOR_ALL: Final = SENDER_SHARE * SHARES["unknown"]  # of the queue: up to there everybody is let in
_NAK_DELAY: Final = 1.0  # seconds until a stream delivers a message again that was rejected or came early
_RECEIVED: Final = {kind: f"received.{kind}" for kind in KINDS}  # names of counters
_STORE_PAUSE: Final = 0.25  # seconds before the next batch after the store could not write


class Intake:
    """Receives messages: `offer` takes each from the broker, the task `run` commits them in batches."""

    def __init__(
        self,
        identity: Identity,
        settings: LiveSettings,
        clock: Clock,
        store: Store,
        limits: RateLimits,
        standings: Standings,
        limited: LimitedPeers,
        signatures: SignaturePool,
        trust: LivePolicy,
        decider: Decider,
        discovery: Discovery,
        write_behind: PresenceWriteBehind,
        publisher: Publisher,
        acknowledger: Acknowledger,
        notifier: Notifier,
        counters: Counters,
        log_limiter: EventLimiter,
        spans: EnvelopeSpans | None = None,
    ) -> None:
        """With `spans`, what is stored is traced."""
        self._identity = identity
        self._settings = settings
        self._clock = clock
        self._store = store
        self._limits = limits
        self._standings = standings
        self._limited = limited
        self._proofs = ProofVerifier(limits, signatures)
        self._trust = trust
        self._decider = decider
        self._discovery = discovery
        self._write_behind = write_behind
        self._publisher = publisher
        self._acknowledger = acknowledger
        self._notifier = notifier
        self._counters = counters
        self._log_limiter = log_limiter
        self._spans = spans
        self._queue: deque[ReceivedMessage] = deque()
        self._bytes = 0  # of the messages in the queue
        self._shares: dict[str, int] = {}  # messages in the queue by sender, "" for refused ones
        self._arrival: asyncio.Future[None] | None = None  # what `run` waits for while the queue is empty
        self._committing = False
        self._idle: asyncio.Event | None = None  # what `drained` waits for

    @property
    def depth(self) -> int:
        """Messages in the queue."""
        return len(self._queue)

    # accepting (synchronous, in the link's callback)

    def offer(self, message: InboundMessage) -> None:
        """Take one message from the broker; never raises for its content."""
        self._counters["received"] += 1
        now_ms = self._clock.millis()
        if self._limits.processing.strained and (refused := self._limits.refusal(message.data)) is not None:
            self._counters.received[NO_ENVELOPE, "rejected"] += 1
            self._drop("processing", *refused, message.subject, message.settlement)
            return
        try:
            envelope = parse(message.data, now_ms // 1000)
            place = channel_of_subject(message.subject)
            if place != (envelope.workspace_id, envelope.channel):
                wrong = "workspace_id" if place is not None and place[0] != envelope.workspace_id else "channel"
                raise NotTarget("does not match the NATS subject", wrong)
        except ProtocolError as error:
            self._offer_refused(message, error, now_ms)
            return
        self._counters[_RECEIVED[envelope.kind]] += 1
        if ARMED:
            failpoint("receive.parsed")
        # With a stream, NATS' own reply subject is for its confirmation: the sender's is in a header.
        reply, settled = message.reply, ""
        if message.headers is not None:
            reply, settled = message.headers.get(ANSWER_TO, reply), message.headers.get(AFTER_SETTLED, "")
        identity = self._identity
        own_id = identity.receiver_of(envelope) if identity.keys else identity.self_id
        received = ReceivedMessage(
            message.subject,
            message.data,
            now_ms,
            own_id,
            message.settlement,
            envelope,
            envelope.sender,
            reply,
            settled,
        )
        if (rejection := self._limits.check(envelope)) is not None:
            self._reject(rejection, received)
        elif envelope.kind in DISCOVERY_KINDS:
            self._discover(received, envelope)
        else:
            self._enqueue(received)

    def _offer_refused(self, message: InboundMessage, error: ProtocolError, now_ms: int) -> None:
        self._counters.add("refused")
        self._counters.add(f"refused.{error.reason}")
        self._counters.received[NO_ENVELOPE, "refused"] += 1
        self._limits.spend_refused(message.data)
        target, own_id = None, self._identity.self_id
        document = readable(message.data, error)
        error.release()
        if not isinstance(error, NotTarget) and self._trust.now.mode != "require":
            target, own_id = self._receipt_target(document)
        if target is not None:
            standing = self._standings.of(target.sender, None)
            if not self._limits.allow_refusal(target.sender, standing):
                self._counters.add("receipts.suppressed")
                self._limited.note("receipts", target.sender, standing, self._clock.monotonic())
                target = None
        keep = self._decider.may_quarantine("unknown")
        if target is None and not keep:
            self._decider.skip()
            _ack(message.settlement)
            return
        self._enqueue(
            ReceivedMessage(
                message.subject,
                message.data,
                now_ms,
                own_id,
                message.settlement,
                error=error,
                target=target,
                origin=origin_in(document, message.subject, self._identity.own_ids),
                keep=keep,
            )
        )

    def _receipt_target(self, document: dict[str, Any] | None) -> tuple[ReceiptTarget | None, str]:
        """Whom a receipt about a refused document would go to, as far as it can be read, and from which of our ids."""
        for own_id in self._identity.own_ids:
            if (target := partial_parse(document, own_id, self._identity.joined)) is not None:
                return target, own_id
        return None, self._identity.self_id

    def _enqueue(self, received: ReceivedMessage) -> None:
        queue, limit, sender = self._queue, self._settings.current.receive.queue, received.sender
        depth, size, share = len(queue), self._bytes + len(received.raw), self._shares.get(sender, 0)
        if depth >= int(limit * _FREE_FOR_ALL) or size > QUEUE_BYTES * _FREE_FOR_ALL:
            part = SHARES[self._limits.processing.standing(sender, signed=_is_signed(received))]
            most = limit * part
            if depth >= most or size > QUEUE_BYTES * part or share >= max(1, int(most * SENDER_SHARE)):
                self._reject("queue", received)
                return
        queue.append(received)
        if not depth and self._arrival is not None and not self._arrival.done():
            self._arrival.set_result(None)
        self._bytes = size
        self._shares[sender] = share + 1

    def _discover(self, received: ReceivedMessage, envelope: Envelope) -> None:
        """Handle a greet or whois: answered immediately, persisted asynchronously (docs/adr/0004)."""
        memory = self._store.memory
        key = memory.log.ids.dedup_key(envelope.workspace_id, envelope.sender, envelope.id)
        state = StoredState(duplicate=key in self._write_behind or key in memory.dedup.keys)
        effects = decide(envelope, state, self._decider.receiver(envelope.sender, self._limits.verify))
        standing = self._decider.standing(envelope, effects)
        if type(effects[0]) is RecordId:
            remaining = effects[0].until - self._clock.millis() // 1000
            if not self._decider.admits_id(memory.dedup, remaining, standing, self._write_behind.pending):
                self._reject("memory", received)
                return
        self._counters.received[envelope.kind, _result_of(effects)] += 1
        for effect in reversed(effects):
            match effect:  # answers first, then the persisted effects
                case RecordId(until=until):
                    self._write_behind.remember(key, until)
                    self._trust.observe_discovery(envelope)
                case Discovered() | AnswerWhois():
                    self._discovery.carry_out(effect, envelope, standing)
                case Conflict():
                    self._discovery.conflict(envelope)
                    if self._decider.may_quarantine(standing):
                        record = partial(self._decider.record_conflict, envelope=envelope, at_ms=self._clock.millis())
                        self._store.write_deferred(record)
                case Quarantine(reason=reason):
                    self._counters.add("refused")
                    self._counters.add(f"refused.{reason}")
                    if self._decider.may_quarantine(standing):
                        self._store.write_deferred(partial(self._decider.quarantine, message=received, effect=effect))
                case Ignore(why=why):
                    self._counters.add(f"ignored.{why}")
                case _:
                    raise AssertionError(f"discovery has no such effect: {effect!r}")
        _ack(received.settlement)

    # deciding and committing

    async def run(self) -> None:
        """Commit queued messages, batch after batch, until cancelled."""
        while True:
            if not self._queue:
                self._committing = False
                if self._idle is not None:
                    self._idle.set()
                self._arrival = asyncio.get_running_loop().create_future()
                await self._arrival
            self._committing = True
            batch, claiming = self._next()
            proofs = Proofs()
            if claiming:
                proofs = await self._verify(claiming)
                batch = self._without(proofs.rejected, batch)
            try:
                try:
                    outcomes = await self._store.submit(partial(self._decider.decide_all, batch=batch, verifier=proofs))
                except StoreUnavailable:
                    raise
                except Exception as error:
                    await self._commit_each(batch, proofs, error)
                else:
                    self._act(outcomes)
            except StoreUnavailable as error:
                await self._pause(batch, error)

    async def drained(self, timeout: float) -> bool:
        """Wait until every message in the queue is committed; False after `timeout` seconds."""
        if not self._queue and not self._committing:
            return True
        self._idle = asyncio.Event()
        return await wait_set(self._idle, timeout)

    def _next(self) -> tuple[list[ReceivedMessage], list[Envelope]]:
        """Take the next batch from the queue, and its envelopes that claim a key."""
        queue, shares = self._queue, self._shares
        batch: list[ReceivedMessage] = []
        claiming: list[Envelope] = []
        size = 0
        while queue and len(batch) < _BATCH and size < _BATCH_BYTES:
            received = queue.popleft()
            batch.append(received)
            size += len(received.raw)
            shares[received.sender] -= 1
            if received.envelope is not None and (received.envelope.proof is not None or "@" in received.sender):
                claiming.append(received.envelope)
        self._bytes -= size
        if not queue:
            shares.clear()
        return batch, claiming

    async def _verify(self, claiming: list[Envelope]) -> Proofs:
        """Verify these envelopes, and begin with those of the batch after them."""
        queued = [one.envelope for one in islice(self._queue, _BATCH) if one.envelope is not None]
        return await self._proofs.verify(claiming, [envelope for envelope in queued if envelope.proof is not None])

    def _without(self, rejected: list[Envelope], batch: list[ReceivedMessage]) -> list[ReceivedMessage]:
        """The batch without these, which are rejected."""
        over = set(map(id, rejected))
        for received in batch:
            if id(received.envelope) in over:
                self._reject("signatures", received)
        return [received for received in batch if id(received.envelope) not in over]

    async def _pause(self, batch: list[ReceivedMessage], error: StoreUnavailable) -> None:
        for received in batch:
            self._reject("store", received)
        self._log_limiter.event(
            logging.WARNING, "store", "received messages are rejected, because they cannot be stored", cause=str(error)
        )
        await asyncio.sleep(_STORE_PAUSE)

    async def _commit_each(self, batch: list[ReceivedMessage], proofs: Proofs, error: Exception) -> None:
        """One of the batch triggered a bug: commit the others one by one."""
        if len(batch) == 1:
            await self._give_up(batch[0], error)
            return
        for received in batch:
            try:
                outcomes = await self._store.submit(
                    partial(self._decider.decide_all, batch=[received], verifier=proofs)
                )
            except StoreUnavailable:
                raise
            except Exception as failure:
                await self._give_up(received, failure)
            else:
                self._act(outcomes)

    async def _give_up(self, received: ReceivedMessage, error: Exception) -> None:
        """This message triggered a bug: quarantine and report it, and do not ask for it again."""
        self._counters.add("internal_errors")
        if received.envelope is not None:
            self._counters.received[received.envelope.kind, "refused"] += 1
        exception(_log, "a message could not be processed", error, subject=received.subject)
        sentence = "a message could not be processed: see the log and `aghctl quarantine`"
        self._counters.problem("internal", sentence, self._clock.monotonic())
        effect = Quarantine("internal", "internal error; see the daemon log")
        await self._store.write(partial(self._decider.quarantine, message=received, effect=effect))
        _ack(received.settlement)

    # acting, after the commit

    def _act(self, outcomes: list[Outcome]) -> None:
        if ARMED:
            failpoint("receive.committed")
        last_seq, counted = 0, self._counters.received
        for outcome in outcomes:
            applied, settlement = outcome.applied, outcome.message.settlement
            if applied is None:
                self._act_on_rejection(outcome)
                continue
            if (envelope := outcome.message.envelope) is not None:
                result = "accepted" if outcome.stored_only else _result_of(outcome.effects)
                counted[envelope.kind, result] += 1
            received = outcome.message
            if self._spans is not None and received.envelope is not None and applied.seq is not None:
                self._spans.processed(received.envelope, received.received_ms)
            if not outcome.stored_only:
                self._report(outcome)
            if outcome.receipts:
                self._acknowledger.publish_receipts(outcome.receipts)
            if applied.outgoing:
                self._publisher.enqueue(applied.outgoing)
                last_seq = applied.last_seq
            elif applied.seq is not None:
                last_seq = applied.seq  # they ascend
            if settlement is not None:
                settlement.ack()
        self._acknowledger.acknowledge(outcomes)
        if ARMED:
            failpoint("receive.acted")
        self._notifier.notify(last_seq)

    def _act_on_rejection(self, outcome: Outcome) -> None:
        if outcome.rejected is not EARLY:
            self._reject(outcome.rejected, outcome.message)
            return
        self._counters.add("receive.early")
        if (envelope := outcome.message.envelope) is not None:
            self._counters.received[envelope.kind, "early"] += 1
        if outcome.message.settlement is not None:
            outcome.message.settlement.nak(_NAK_DELAY)

    def _report(self, outcome: Outcome) -> None:
        """Count and report the effects that the store does not apply."""
        for effect in outcome.effects:
            match effect:
                case Ignore(why=why):
                    self._counters.add(f"ignored.{why}")
                case Quarantine(reason=reason) if outcome.message.envelope is not None:
                    self._counters.add("refused")
                    self._counters.add(f"refused.{reason}")
                case Conflict(envelope=envelope):
                    self._discovery.conflict(envelope)
                case Queue(envelope=answer):
                    self._counters.add(f"sent.{answer.kind}")
                case _:
                    pass

    def _reject(self, reason: str, received: ReceivedMessage) -> None:
        """Backpressure: drop the message before it is stored or answered. A retry, or the stream, brings it again."""
        sender = received.sender
        if received.envelope is not None:
            self._counters.received[received.envelope.kind, "rejected"] += 1
        self._drop(reason, sender, self._standings.of(sender, None), received.subject, received.settlement)

    def _drop(self, reason: str, sender: str, standing: Standing, subject: str, settlement: Settlement | None) -> None:
        """As `_reject`, for a message that was not parsed: cheap, because a flood passes here."""
        counters = self._counters
        counters["overload"] += 1
        counters[f"overload.{reason.partition('.')[0]}"] += 1
        if settlement is not None:
            settlement.nak(_NAK_DELAY)
        if self._limited.note(reason, sender, standing, self._clock.monotonic()):
            key, sentence = f"overload.{reason}", f"overload: messages are rejected: {reason}"
            self._log_limiter.event(logging.WARNING, key, sentence, sender=sender, standing=standing, subject=subject)


def _result_of(effects: Effects) -> str:
    """What became of a valid envelope, in one word for the metrics."""
    for effect in effects:
        if type(effect) is Ignore:
            return "duplicate" if effect.why == "duplicate" else "ignored"
        if type(effect) is Quarantine:
            return "refused"
    return "accepted"


def _is_signed(received: ReceivedMessage) -> bool:
    return received.envelope is not None and received.envelope.proof is not None


def _ack(settlement: Settlement | None) -> None:
    if settlement is not None:
        settlement.ack()
