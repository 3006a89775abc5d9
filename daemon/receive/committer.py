"""Committing received messages: a job decides a batch in one transaction, and the next batch gathers meanwhile."""

import asyncio
import logging
from functools import partial
from typing import Final

from aghbus.daemon.base.logs import exception
from aghbus.daemon.base.waiting import wait_set
from aghbus.daemon.receive.decider import Decider
from aghbus.daemon.receive.intake import ReceiveQueue
from aghbus.daemon.receive.outcomes import OutcomeHandler
from aghbus.daemon.receive.proofs import Proofs, ProofVerifier
from aghbus.daemon.receive.received import ReceivedMessage
from aghbus.daemon.receive.refused import RefusedMessages
from aghbus.daemon.receive.rejections import Rejections
from aghbus.daemon.state.context import DaemonContext
from aghbus.protocol.agh.effects import Quarantine
from aghbus.protocol.agh.envelope import Envelope
from aghbus.store.engine.database import Store
from aghbus.store.errors import StoreUnavailable

_log = logging.getLogger("aghbus.node")

_NO_PROOFS: Final = Proofs()
_STORE_PAUSE: Final = 0.25  # seconds before the next batch after the store could not write


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
    ) -> None:
        self._queue = queue
        self._store = store
        self._proofs = proofs
        self._decider = decider
        self._refused = refused
        self._rejections = rejections
        self._handler = handler
        self._clock = context.clock
        self._counters = context.counters
        self._log_limiter = context.log_limiter
        self._committing = False
        self._idle: asyncio.Event | None = None  # what `drained` waits for

    async def run(self) -> None:
        """Commit queued messages, batch after batch, until cancelled."""
        while True:
            if not self._queue.messages:
                self._committing = False
                if self._idle is not None:
                    self._idle.set()
                await self._queue.wait()
            self._committing = True
            batch, claiming = self._queue.take()
            proofs = _NO_PROOFS
            if claiming:
                batch, proofs = await self._verified(batch, claiming)
            try:
                try:
                    outcomes = await self._store.submit(partial(self._decider.decide_all, batch=batch, verifier=proofs))
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
        if not self._queue.messages and not self._committing:
            return True
        self._idle = asyncio.Event()
        return await wait_set(self._idle, timeout)

    async def _verified(
        self, batch: list[ReceivedMessage], claiming: list[Envelope]
    ) -> tuple[list[ReceivedMessage], Proofs]:
        """The batch, with the results for its proofs, without the messages that the budget of failures does not cover: these
        are rejected."""
        following = [envelope for envelope in self._queue.upcoming() if envelope.proof is not None]
        proofs = await self._proofs.verify(claiming, following)
        if not proofs.rejected:
            return batch, proofs
        over = set(map(id, proofs.rejected))
        for received in batch:
            if id(received.envelope) in over:
                self._rejections.reject("signatures", received)
        return [received for received in batch if id(received.envelope) not in over], proofs

    async def _pause(self, batch: list[ReceivedMessage], error: StoreUnavailable) -> None:
        for received in batch:
            self._rejections.reject("store", received)
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
                outcomes = await self._store.submit(
                    partial(self._decider.decide_all, batch=[received], verifier=proofs)
                )
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
        exception(_log, "a message could not be processed", error, subject=received.subject)
        sentence = "a message could not be processed: see the log and `aghctl quarantine`"
        self._counters.problem("internal", sentence, self._clock.monotonic())
        effect = Quarantine("internal", "internal error; see the daemon log")
        await self._store.write(partial(self._refused.keep, message=received, effect=effect))
        if received.settlement is not None:
            received.settlement.ack()
