"""Committing received messages: a job decides a batch in one transaction, and the next batch gathers meanwhile. After the
commit the sender's daemon gets its acknowledgements, and what the batch has queued is published."""

import asyncio
import logging
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import partial
from time import process_time
from typing import Final

from aghbus.daemon.base.background import BackgroundTasks
from aghbus.daemon.base.failpoints import ARMED, failpoint
from aghbus.daemon.base.logs import exception
from aghbus.daemon.base.metrics import Counters
from aghbus.daemon.base.notifier import Notifier
from aghbus.daemon.base.waiting import wait_set
from aghbus.daemon.discovery.discovery import Discovery
from aghbus.daemon.nats.link import Link, LinkError
from aghbus.daemon.receive.decider import Decider
from aghbus.daemon.receive.intake import ReceiveQueue
from aghbus.daemon.receive.proofs import Proofs, ProofVerifier
from aghbus.daemon.receive.received import EARLY, Outcome, ReceivedMessage, result_of
from aghbus.daemon.receive.refused import RefusedMessages
from aghbus.daemon.receive.rejections import STORE, Rejections
from aghbus.daemon.send.publisher import Publisher
from aghbus.daemon.state.context import DaemonContext
from aghbus.daemon.state.identity import Identity
from aghbus.daemon.state.processing_budget import MEASURED, ProcessingBudget
from aghbus.daemon.state.spans import EnvelopeSpans, trace_ids
from aghbus.protocol.agh.delivery.acks import Ack, answer_messages, encode_ack, encode_signed_ack, may_answer
from aghbus.protocol.agh.effects import Ignore, PeerIdConflict, Quarantine, Queue
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.identifiers import subject_for
from aghbus.store.engine.database import Store
from aghbus.store.errors import StoreUnavailable

_log = logging.getLogger("aghbus.node")

_NO_PROOFS: Final = Proofs()
_STORE_PAUSE: Final = 0.25  # seconds before the next batch after the store could not write


class Acknowledger:
    """Publishes an acknowledgement for each message directed at us whose sender's daemon asked for it."""

    def __init__(self, link: Link, identity: Identity, background: BackgroundTasks, counters: Counters) -> None:
        """`background` runs the acknowledgements that have to wait for the connection."""
        self._link = link
        self._identity = identity
        self._background = background
        self._counters = counters

    def acknowledge(self, outcomes: Iterable[Outcome]) -> None:
        """Acknowledge the commits of messages, or their final refusals.

        A refusal goes to a handle only for verified messages: otherwise a forged copy would make us refuse the real one.
        """
        signers = self._identity.signers
        acks: dict[tuple[str, str, str], list[tuple[str, Ack]]] = {}  # by inbox, our id and sender
        for outcome in outcomes:
            if (ack := outcome.ack) is None:
                continue
            envelope, reply = outcome.message.envelope, outcome.message.reply
            if envelope is None or not may_answer(reply):
                continue
            own_id, sender = envelope.to, envelope.sender
            if own_id is None or own_id not in signers or sender in signers:
                continue  # not for us; or our own, or of another daemon with our id, which is not committed here
            if "@" in sender and any(type(one) is Quarantine and one.trust is None for one in outcome.effects):
                continue
            inbox, _, token = reply.rpartition(".")
            acks.setdefault((inbox, own_id, sender), []).append((token, ack))
        answers: list[tuple[str, bytes]] = []
        for (inbox, own_id, sender), found in acks.items():
            signer, encode = signers[own_id], encode_ack
            if signer is not None:
                encode = partial(encode_signed_ack, sender=own_id, to=sender, signer=signer)
            answers += answer_messages(inbox, found, encode)
            self._counters["acks.sent"] += len(found)
        if answers:
            self._publish(answers)

    def publish_receipts(self, receipts: Sequence[Envelope]) -> None:
        """Publish receipts, and ends before them, that are not stored: they are not repeated, and lost if the connection cannot
        take them now."""
        raws = [(subject_for(one.workspace_id, one.channel, one.to), one.raw) for one in receipts]
        for one in receipts:
            self._counters.add(f"sent.{one.kind}")
        try:
            sent = self._link.publish_all_nowait(raws)
        except LinkError:
            sent = False
        self._counters.add("receipts.unstored" if sent else "receipts.unsent", len(raws))

    def _publish(self, answers: list[tuple[str, bytes]]) -> None:
        try:
            if self._link.publish_all_nowait(answers):
                return
        except LinkError:
            self._counters.add("acks.unsent", len(answers))  # the sender's daemon asks again
            return
        for reply, raw in answers:
            if self._background.busy:
                self._counters.add("acks.unsent")
            else:
                self._background.spawn(self._publish_later(reply, raw))

    async def _publish_later(self, reply: str, raw: bytes) -> None:
        try:
            await self._link.publish(reply, raw)
        except LinkError:
            self._counters.add("acks.unsent")


@dataclass(frozen=True, slots=True, eq=False)
class OutcomeHandler:
    """Acknowledges, counts and traces what was committed. With `spans`, what is stored is traced."""

    acknowledger: Acknowledger
    discovery: Discovery
    rejections: Rejections
    notifier: Notifier
    counters: Counters
    spans: EnvelopeSpans | None = None

    def handle(self, outcomes: list[Outcome]) -> None:
        """Act on the outcomes of a batch, in order."""
        if ARMED:
            failpoint("receive.committed")
        last_seq, counted = 0, self.counters.received
        for outcome in outcomes:
            applied, settlement = outcome.applied, outcome.message.settlement
            if applied is None:
                self._act_on_rejection(outcome)
                continue
            if (envelope := outcome.message.envelope) is not None:
                result = "accepted" if outcome.stored_only else result_of(outcome.effects)
                counted[envelope.kind, result] += 1
                if self.spans is not None and applied.seq is not None:
                    self.spans.processed(envelope, outcome.message.received_ms, outcome.effects)
            if not outcome.stored_only:
                self._report(outcome)
            if outcome.receipts:
                self.acknowledger.publish_receipts(outcome.receipts)
            if applied.outgoing:
                last_seq = applied.last_seq
            elif applied.seq is not None:
                last_seq = applied.seq  # they ascend
            if settlement is not None:
                settlement.ack()
        self.acknowledger.acknowledge(outcomes)
        if ARMED:
            failpoint("receive.acted")
        self.notifier.notify(last_seq)

    def _act_on_rejection(self, outcome: Outcome) -> None:
        if outcome.rejected is not EARLY:
            self.rejections.reject(outcome.rejected, outcome.message, outcome.lane)
            return
        envelope = outcome.message.envelope
        assert envelope is not None
        self.rejections.postpone(outcome.message, envelope)

    def _report(self, outcome: Outcome) -> None:
        """Count and report the effects that the store does not apply."""
        for effect in outcome.effects:
            match effect:
                case Ignore(why=why):
                    self.counters.add(f"ignored.{why}")
                case Quarantine(reason=reason) if outcome.message.envelope is not None:
                    self.counters.add("refused")
                    self.counters.add(f"refused.{reason}")
                case PeerIdConflict(envelope=envelope):
                    self.discovery.conflict(envelope)
                case Queue(envelope=answer):
                    self.counters.add(f"sent.{answer.kind}")
                case _:
                    pass


class Committer:
    """The task `run` commits the messages of the queue in batches."""

    def __init__(
        self,
        context: DaemonContext,
        store: Store,
        queue: ReceiveQueue,
        proofs: ProofVerifier,
        decider: Decider,
        refused: RefusedMessages,
        rejections: Rejections,
        handler: OutcomeHandler,
        publisher: Publisher,
        processing: ProcessingBudget,
    ) -> None:
        self._queue = queue
        self._store = store
        self._proofs = proofs
        self._decide_all = partial(decider.decide_all, enqueue=publisher.enqueue)
        self._refused = refused
        self._rejections = rejections
        self._handler = handler
        self._processing = processing
        self._clock = context.clock
        self._counters = context.counters
        self._log_limiter = context.log_limiter
        self._committing = False
        self._idle: asyncio.Event | None = None  # what `drained` waits for

    async def run(self) -> None:
        """Commit queued messages, batch after batch, until cancelled."""
        while True:
            if not self._queue.depth:
                self._committing = False
                if self._idle is not None:
                    self._idle.set()
                await self._queue.wait()
            self._committing = True
            if self._processing.estimated >= MEASURED:
                self._processing.measure(process_time())
            batch, claiming = self._queue.take()
            proofs = _NO_PROOFS
            if claiming:
                batch, proofs = await self._verified(batch, claiming)
            try:
                try:
                    outcomes = await self._store.submit(partial(self._decide_all, batch=batch, verifier=proofs))
                except StoreUnavailable:
                    raise
                except Exception as error:
                    await self._commit_each(batch, proofs, error)
                else:
                    self._handler.handle(outcomes)
            except StoreUnavailable as error:
                await self._pause(batch, error)

    async def drained(self, timeout: float) -> bool:
        """Wait until every message in the queue is committed; False after `timeout` seconds."""
        if not self._queue.depth and not self._committing:
            return True
        self._idle = asyncio.Event()
        return await wait_set(self._idle, timeout)

    async def _verified(
        self, batch: list[ReceivedMessage], claiming: list[tuple[Envelope, str]]
    ) -> tuple[list[ReceivedMessage], Proofs]:
        """The batch, with the results for its proofs, without the messages that the budget of failures does not cover: these
        are rejected."""
        proofs = await self._proofs.verify(claiming, self._queue.upcoming())
        if not proofs.rejected:
            return batch, proofs
        over = set(map(id, proofs.rejected))
        for received in batch:
            if id(received.envelope) in over:
                self._rejections.reject("signatures", received, self._queue.lane(received))
        return [received for received in batch if id(received.envelope) not in over], proofs

    async def _pause(self, batch: list[ReceivedMessage], error: StoreUnavailable) -> None:
        for received in batch:
            self._rejections.reject(STORE, received, self._queue.lane(received))
        self._log_limiter.event(
            logging.WARNING, "store", "received messages are rejected, because they cannot be stored", cause=str(error)
        )
        await asyncio.sleep(_STORE_PAUSE)

    async def _commit_each(self, batch: list[ReceivedMessage], proofs: Proofs, error: Exception) -> None:
        """One of the batch triggered a bug: commit the others one by one."""
        if len(batch) == 1:
            await self._give_up(batch[0], error)
            return
        for position, received in enumerate(batch):
            try:
                outcomes = await self._store.submit(partial(self._decide_all, batch=[received], verifier=proofs))
            except StoreUnavailable as unavailable:
                await self._pause(batch[position:], unavailable)
                return
            except Exception as failure:
                await self._give_up(received, failure)
            else:
                self._handler.handle(outcomes)

    async def _give_up(self, received: ReceivedMessage, error: Exception) -> None:
        """This message triggered a bug: quarantine and report it, and do not ask for it again."""
        self._counters.add("internal_errors")
        if received.envelope is not None:
            self._counters.received[received.envelope.kind, "refused"] += 1
        exception(
            _log, "a message could not be processed", error, subject=received.subject, **trace_ids(received.envelope)
        )
        sentence = "a message could not be processed: see the log and `aghctl quarantine`"
        self._counters.problem("internal", sentence, self._clock.monotonic())
        effect = Quarantine("internal", "internal error; see the daemon log")
        await self._store.write(partial(self._refused.keep, message=received, effect=effect))
        if received.settlement is not None:
            received.settlement.ack()
