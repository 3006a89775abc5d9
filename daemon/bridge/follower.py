"""Follows committed envelopes: forwards the steps and ends of chained works, writes the message log, ends unanswered questions."""

import asyncio
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from aghbus.daemon.artifacts.store import ArtifactsUnreachable
from aghbus.daemon.base.clock import Clock
from aghbus.daemon.base.notifier import Notifier
from aghbus.daemon.bridge.adapters import AgentDirectory
from aghbus.daemon.bridge.follow_up_ends import FollowUpEnds
from aghbus.daemon.bridge.follow_up_steps import FollowUpSteps
from aghbus.daemon.bridge.format_log import FORMAT_WITH_TIMEOUTS
from aghbus.daemon.bridge.inbound import InboundTranslator, StoredEnvelope, chunks
from aghbus.daemon.bridge.unanswered import UnansweredMessages
from aghbus.daemon.send.sender import Batch, Sender
from aghbus.daemon.state.clock_changes import ClockChanges
from aghbus.protocol.base.errors import Unavailable
from aghbus.protocol.formats.model import AgentMap
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.errors import StoreUnavailable
from aghbus.store.tables.bridge import follow_ups
from aghbus.store.tables.bridge import log as bridge_log
from aghbus.store.tables.bridge import messages as bridge

_POSITION: Final = "follower"
_PAGE: Final = 100  # rows or works per transaction
_SAVE_EVERY: Final = 5_000
"""Sequences after which the position is saved even if nothing was found; a start scans these again."""
_MAX_SCAN: Final = 20_000  # sequences per scan: other queries wait for the same reader
_COALESCE: Final = 0.01  # seconds to collect envelopes before a scan: at most a hundred scans per second under load
_UNUSED_COALESCE: Final = 1.0  # seconds, while the store has no message of a foreign format
_MAX_WAIT: Final = 60.0  # seconds between two checks for expiry: the wall clock may be set meanwhile
_MAX_FETCH_TIME: Final = 1.0  # seconds of fetching messages before ends and expiry are handled again
_RETRY_DELAY: Final = 1.0  # seconds


@dataclass(slots=True, eq=False)
class Follower:
    """A task that follows the store's sequence. Its writes are committed with its position, or are idempotent."""

    notifier: Notifier
    clock: Clock
    store: Store
    clock_changes: ClockChanges
    agents: AgentDirectory
    sender: Sender
    translator: InboundTranslator
    unanswered: UnansweredMessages
    steps: FollowUpSteps
    ends: FollowUpEnds
    _position: int = field(default=0, init=False)
    _saved_position: int = field(default=0, init=False)

    async def run(self) -> None:
        """Follow until cancelled or drained."""
        self._position = self._saved_position = await self._stored_position()
        moved = True  # works may have changed while the daemon was down
        started_at_seq = self.notifier.seq
        due_ms: int | None = None
        while not self.notifier.closed:
            upto = min(self.notifier.seq, self._position + _MAX_SCAN)
            try:
                if self._position >= started_at_seq and not self.store.memory.bridged:
                    await self._advance(upto)
                else:
                    moved = moved or await follow_ups.has_moved(self.store.reader, self._position, upto)
                    if moved:
                        await self._forward(upto)
                        moved = False
                    unreachable = not await self._log_arrivals(upto)
                    due_ms = await self._expire_due()
                    if unreachable:
                        moved = True  # works may change beyond the scanned range meanwhile
                        await asyncio.sleep(_RETRY_DELAY)
            except StoreUnavailable:
                await asyncio.sleep(_RETRY_DELAY)
                continue
            except Unavailable:
                return  # draining: the next start continues
            if self.notifier.seq <= self._position:
                left = _MAX_WAIT if due_ms is None else self.clock_changes.seconds_until(due_ms)
                await self.notifier.wait(min(max(left, 0.0), _MAX_WAIT))
                await asyncio.sleep(_COALESCE if self.store.memory.bridged else _UNUSED_COALESCE)

    async def _stored_position(self) -> int:
        while True:
            try:
                return await bridge.position(self.store.reader, _POSITION)
            except StoreUnavailable:
                await asyncio.sleep(_RETRY_DELAY)

    # message log

    async def _log_arrivals(self, upto: int) -> bool:
        """Log the messages that arrived in the format with a message log, whether or not an agent reads them.

        False when one could not be fetched: the position stays before it.
        """
        seqs = await bridge.to_log(self.store.reader, FORMAT_WITH_TIMEOUTS, self._position, upto, _PAGE)
        reached = seqs[-1] if len(seqs) == _PAGE else max(upto, self._position)
        arrived = []
        unreachable = False
        until = self.clock.monotonic() + _MAX_FETCH_TIME
        for kept in await bridge.load_envelopes(self.store.reader, seqs) if seqs else []:
            if self.translator.is_for_agent(kept, frozenset({kept.kind})):
                try:
                    item = await self.translator.read(FORMAT_WITH_TIMEOUTS, kept)
                except ArtifactsUnreachable:
                    reached, unreachable = kept.seq - 1, True
                    break
                arrived += [item] if item is not None else []
            if self.clock.monotonic() >= until:
                reached = kept.seq
                break
        known = self.agents.on_all(item.kept.channel for item in arrived)
        for chunk in chunks(arrived):
            await self.store.write(partial(self._log_portion, chunk=chunk, known=known))
        await self._advance(reached, found=bool(arrived))
        return not unreachable

    async def _advance(self, position: int, *, found: bool = False) -> None:
        """Move the position; save it when something was `found` or after `_SAVE_EVERY` sequences."""
        if found or position - self._saved_position >= _SAVE_EVERY:
            await self.store.write(lambda tx: bridge.advance_position(tx, _POSITION, position))
            self._saved_position = position
        self._position = max(position, self._position)

    def _log_portion(self, tx: Transaction, chunk: list[StoredEnvelope], known: Mapping[str, AgentMap]) -> None:
        for item in chunk:
            self.translator.translate(tx, FORMAT_WITH_TIMEOUTS, item, known, now=item.kept.received_ms // 1000)
        bridge.advance_position(tx, _POSITION, chunk[-1].kept.seq)

    async def _expire_due(self) -> int | None:
        """Handle rows whose time to live has passed. Returns when the next one expires, in Unix milliseconds."""
        if await bridge_log.nothing_due(self.store.reader):
            return None

        def job(tx: Transaction, batch: Batch) -> int | None:
            now_ms = self.clock_changes.now_after_clock_check(tx)
            for entry in bridge_log.due(tx, now_ms, _PAGE):
                self.unanswered.handle(tx, batch, entry, now_ms)
            return bridge_log.next_due_ms(tx)

        return await self.sender.send_all(job)

    # works of chains

    async def _forward(self, upto: int) -> None:
        after = self._position
        await self.sender.send_all(lambda tx, batch: self.steps.pass_on(tx, batch, after, upto))
        while await self.sender.send_all(
            lambda tx, batch: self.steps.forward(tx, batch) + self.ends.forward(tx, batch)
        ):
            pass
