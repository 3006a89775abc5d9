"""Delivers messages to our agent: a stream in local sequence order, and the acknowledged position of each format."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from aghbus.daemon.artifacts.store import ArtifactsUnreachable
from aghbus.daemon.base.clock import Clock
from aghbus.daemon.base.notifier import Notifier
from aghbus.daemon.bridge.adapters import AgentDirectory, FormatAdapters
from aghbus.daemon.bridge.follow_up_steps import is_forwarded_answer
from aghbus.daemon.bridge.inbound import InboundTranslator, StoredEnvelope, chunks
from aghbus.daemon.send.closing import WorkCloser
from aghbus.daemon.send.sender import Batch, Sender
from aghbus.protocol.api.bridge import BridgeAckRequest, BridgeAckResponse, BridgeMessage
from aghbus.protocol.api.messages import Event
from aghbus.protocol.api.queries import BridgeStreamQuery, EnvelopeFilter
from aghbus.protocol.base.errors import InvalidRequest, NotFound
from aghbus.protocol.base.formats import Format
from aghbus.store.audit import events as audit
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.tables import inbox
from aghbus.store.tables.bridge import messages as bridge
from aghbus.store.tables.events import gap_after
from aghbus.store.tables.search import find

_PAGE: Final = 32  # envelopes per read
_RETRY_DELAY: Final = 1.0  # seconds before a message is fetched again from an unreachable broker
_ACKED_AT_ONCE: Final = 500  # inbox items and works settled by one acknowledgement; the next one continues


class _ForAgent(EnvelopeFilter, frozen=True):
    for_agent = True


@dataclass(frozen=True, slots=True, eq=False)
class MessageDelivery:
    """Delivers messages of every format."""

    notifier: Notifier
    clock: Clock
    store: Store
    closer: WorkCloser
    agents: AgentDirectory
    sender: Sender
    formats: FormatAdapters
    translator: InboundTranslator

    async def stream(self, name: Format, query: BridgeStreamQuery) -> AsyncIterator[Sequence[BridgeMessage | Event]]:
        """Messages after `query.since` until the daemon drains; a `gap` event first where retention removed some.

        None: what was held before the acknowledged position and is released, then what comes after it; without messages of
        works that ended and whose inbox items are acked (for example by `aghctl serve`): a reply to them would be assigned
        to another work.

        While the artifact store is unreachable, a message that has to be fetched from it blocks the messages after it.
        """
        wanted = _ForAgent(kinds=self.formats.get(name).delivered_kinds)
        position = since = query.since
        if position is None:
            position = await bridge.position(self.store.reader, _position(name))
        removed = await gap_after(self.store.reader, wanted, position)
        if removed is not None:
            yield [Event(seq=removed, type="gap", pruned_from=position + 1)]
        if since is None and (released := await self._released(name, position)):
            yield released
        while True:
            upto = self.notifier.seq
            page = await find(self.store.reader, wanted, since=position, limit=_PAGE)
            arrived: list[StoredEnvelope] = []
            unreachable = False
            try:
                async for item in self._read(name, page.seqs):
                    arrived.append(item)
            except ArtifactsUnreachable:
                unreachable = True
            if delivered := await self._translate_all(name, arrived, only_open=since is None):
                yield delivered
            if unreachable:
                position = arrived[-1].kept.seq if arrived else position
                await asyncio.sleep(_RETRY_DELAY)
            else:
                position = max(position, page.next_since)
                if position < upto:
                    continue
            if self.notifier.closed:
                return
            if self.notifier.seq <= position:
                await self.notifier.wait()

    async def _released(self, name: Format, position: int) -> list[BridgeMessage]:
        """Messages before the acknowledged position that were held since a restore, and released by the operator."""
        arrived: list[StoredEnvelope] = []
        with contextlib.suppress(ArtifactsUnreachable):  # the next stream begins with the others
            async for item in self._read(name, await bridge.released(self.store.reader, position)):
                arrived.append(item)
        return await self._translate_all(name, arrived, only_open=True)

    async def get(self, name: Format, seq: int) -> BridgeMessage:
        """The message for one stored envelope. Raises NotFound when it has none in this format, or ArtifactsUnreachable."""
        self.formats.get(name)
        found = await self._translate_all(name, [item async for item in self._read(name, [seq])])
        if not found:
            raise NotFound(
                f"message {seq}: is not a message for an agent of format {name}", hint="`aghctl messages list`"
            )
        return found[0]

    async def ack(self, name: Format, request: BridgeAckRequest) -> BridgeAckResponse:
        """Move the acknowledged position to a sequence: ack the inbox items up to it and accept the works opened for our agent."""
        self.formats.get(name)
        seq = request.seq
        if seq > self.notifier.seq:
            raise InvalidRequest(f"seq: {seq} is beyond the last sequence, {self.notifier.seq}")
        position = await self.sender.send_all(lambda tx, batch: self._ack(tx, batch, name, seq))
        return BridgeAckResponse(format=name, seq=position)

    def _ack(self, tx: Transaction, batch: Batch, name: Format, seq: int) -> int:
        for waiting in bridge.inbox_of(tx, name, seq, _ACKED_AT_ONCE):
            audit.note_delivery(tx, self.clock.millis(), inbox.ack(tx, waiting).seq, "acked")
        for work in bridge.opened_by_messages(tx, name, seq, _ACKED_AT_ONCE):
            rows = self.closer.accept(tx, work)
            if rows:
                batch.add("receipt", rows)
        return bridge.advance_position(tx, _position(name), seq)

    async def _read(self, name: Format, seqs: list[int]) -> AsyncIterator[StoredEnvelope]:
        """The envelopes among `seqs` that are for our agent, with their messages. Raises ArtifactsUnreachable at the first message
        that cannot be fetched."""
        if not seqs:
            return
        kinds = self.formats.get(name).delivered_kinds
        for kept in await bridge.load_envelopes(self.store.reader, seqs):
            if not kept.opened_by_run and self.translator.is_for_agent(kept, kinds):  # replies to a run are for the run
                item = await self.translator.read(name, kept)
                if item is not None:
                    yield item

    async def _translate_all(
        self, name: Format, arrived: list[StoredEnvelope], *, only_open: bool = False
    ) -> list[BridgeMessage]:
        """The messages for these envelopes; `only_open` skips those of works that are settled."""
        if not arrived:
            return []
        known = self.agents.on_all(item.kept.channel for item in arrived)

        def job(tx: Transaction, chunk: list[StoredEnvelope]) -> list[BridgeMessage]:
            open_ones = [item for item in chunk if not (only_open and bridge.is_settled(tx, item.kept))]
            ours = [item for item in open_ones if not is_forwarded_answer(tx, item.kept)]
            delivered = [self.translator.translate(tx, name, item, known) for item in ours]
            return [message for message in delivered if message is not None]

        made: list[BridgeMessage] = []
        for chunk in chunks(arrived):
            made += await self.store.write(partial(job, chunk=chunk))
        return made


def _position(name: str) -> str:
    return f"out:{name}"
