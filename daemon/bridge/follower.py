"""Follows committed envelopes: forwards the ends of chained works, writes the message log, ends unanswered questions."""

import asyncio
import logging
from collections.abc import Mapping
from dataclasses import dataclass, field
from functools import partial
from typing import Any, Final

import msgspec

from aghbus.daemon.artifacts.store import ArtifactsUnreachable
from aghbus.daemon.base.clock import Clock
from aghbus.daemon.base.logs import event
from aghbus.daemon.base.metrics import Counters
from aghbus.daemon.base.notifier import Notifier
from aghbus.daemon.bridge import sentient_chain as chains
from aghbus.daemon.bridge.adapters import AgentDirectory
from aghbus.daemon.bridge.format_log import FORMAT_WITH_TIMEOUTS
from aghbus.daemon.bridge.inbound import InboundTranslator, StoredEnvelope, chunks
from aghbus.daemon.bridge.unanswered import UnansweredMessages
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.send.sender import Batch, Sender
from aghbus.daemon.state.clock_steps import ClockSteps
from aghbus.daemon.state.identity import Identity
from aghbus.protocol.adapters import common
from aghbus.protocol.adapters.attachments import cut_result, cut_text
from aghbus.protocol.adapters.derived_ids import envelope_id
from aghbus.protocol.adapters.model import AgentMap, BridgeContext
from aghbus.protocol.base.decoding import decode_json
from aghbus.protocol.errors import InvalidRequest, Refused, Unavailable
from aghbus.protocol.lifecycle import WorkView
from aghbus.protocol.send import Draft
from aghbus.store.engine.database import Store
from aghbus.store.engine.transaction import Transaction
from aghbus.store.errors import StoreUnavailable
from aghbus.store.tables import bridge_log, works
from aghbus.store.tables import bridge_messages as bridge
from aghbus.store.tables.bridge_messages import BridgeEnvelope, EndedWork, StoredMessageHistory

_log = logging.getLogger("aghbus.bridge")

_POSITION: Final = "follower"
_PAGE: Final = 100  # rows or works per transaction
_SAVE_EVERY: Final = (
    5_000  # sequences after which the position is saved even if nothing was found; a start scans these again
)
_MAX_SCAN: Final = 20_000  # sequences per scan: other queries wait for the same reader
_COALESCE: Final = 0.01  # seconds to collect envelopes before a scan: at most a hundred scans per second under load
_UNUSED_COALESCE: Final = 1.0  # seconds, while the store has no message of a foreign format
_MAX_WAIT: Final = 60.0  # seconds between two checks for expiry: the wall clock may be set meanwhile
_MAX_FETCH_TIME: Final = 1.0  # seconds of fetching messages before ends and expiry are handled again
_RETRY_DELAY: Final = 1.0  # seconds
_TOO_LARGE: Final = "the result of the next work was too large to forward in full"


@dataclass(slots=True, eq=False)
class Follower:
    """A task that follows the store's sequence. Its writes are committed with its position, or are idempotent."""

    settings: LiveSettings
    identity: Identity
    notifier: Notifier
    clock: Clock
    store: Store
    steps: ClockSteps
    counters: Counters
    agents: AgentDirectory
    sender: Sender
    translator: InboundTranslator
    unanswered: UnansweredMessages
    _position: int = field(default=0, init=False)
    _saved_position: int = field(default=0, init=False)

    async def run(self) -> None:
        """Follow until cancelled or drained."""
        self._position = await self.store.write(lambda tx: bridge.position(tx, _POSITION))
        self._saved_position = self._position
        ends_pending = True  # works may have ended while the daemon was down
        started_at_seq = self.notifier.seq
        due_ms: int | None = None
        while not self.notifier.closed:
            upto = min(self.notifier.seq, self._position + _MAX_SCAN)
            try:
                if self._position >= started_at_seq and not self.store.memory.bridged:
                    await self._advance(upto)
                else:
                    ends_pending = ends_pending or await bridge.has_ended_since(self.store.reader, self._position, upto)
                    if ends_pending:
                        await self._forward_ends()
                        ends_pending = False
                    unreachable = not await self._log_arrivals(upto)
                    due_ms = await self._expire_due()
                    if unreachable:
                        ends_pending = True  # works may end beyond the scanned range meanwhile
                        await asyncio.sleep(_RETRY_DELAY)
            except StoreUnavailable:
                await asyncio.sleep(_RETRY_DELAY)
                continue
            except Unavailable:
                return  # draining: the next start continues
            if self.notifier.seq <= self._position:
                left = _MAX_WAIT if due_ms is None else self.steps.seconds_until(due_ms)
                await self.notifier.wait(min(max(left, 0.0), _MAX_WAIT))
                await asyncio.sleep(_COALESCE if self.store.memory.bridged else _UNUSED_COALESCE)

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
            now_ms = self.steps.now_after_clock_check(tx)
            for entry in bridge_log.due(tx, now_ms, _PAGE):
                self.unanswered.handle(tx, batch, entry, now_ms)
            return bridge_log.next_due_ms(tx)

        return await self.sender.send_all(job)

    # ends of chained works

    async def _forward_ends(self) -> None:
        while await self.sender.send_all(self._forward_batch):
            pass

    def _forward_batch(self, tx: Transaction, batch: Batch) -> int:
        found = bridge.terminated_works(tx, _PAGE)
        for end in found:
            self._forward_end(tx, batch, end)
            bridge.unlink(tx, end)
        return len(found)

    def _forward_end(self, tx: Transaction, batch: Batch, end: EndedWork) -> None:
        """End the previous work of the chain like the next one. Notify the memory agent when no message of the chain ended it."""
        work = works.load(tx, end.workspace_id, end.channel, end.work_id)
        if work is None:
            return
        ending = None
        if work.terminal_id is not None and work.terminal_sender is not None:
            ending = bridge.envelope_by_id(tx, work.workspace_id, work.terminal_id, work.terminal_sender)
        in_hand = None
        if end.assigned_work is not None and end.assigned_channel is not None:
            in_hand = works.load(tx, end.workspace_id, end.assigned_channel, end.assigned_work)
        us = self.identity.participant_in(work if in_hand is None else in_hand) or self.identity.self_id
        context = self.agents.context(work.channel, us, work.workspace_id)
        if in_hand is not None and not in_hand.is_terminal:
            self._send_one(batch, work, _closing_drafts(context, in_hand, work, ending))
        if _ended_outside_chain(ending):
            notification = self._memory_draft(tx, context, work)
            self._send_one(batch, work, () if notification is None else (notification,))

    def _send_one(self, batch: Batch, ended: WorkView, drafts: tuple[Draft, ...]) -> None:
        """Send the first of `drafts` that fits an envelope; if none does, count and log it."""
        cause: InvalidRequest | Refused | None = None
        for draft in drafts:
            try:
                batch.send(draft, allow_secrets=True, replace_secrets=True)
                return
            except (InvalidRequest, Refused) as error:
                cause = cause or error
        if cause is not None:
            self.counters.add("bridge.terminal_not_forwarded")
            event(_log, logging.ERROR, "cannot forward the terminal state of a work", work=ended.work_id, cause=cause)

    def _memory_draft(self, tx: Transaction, context: BridgeContext, work: WorkView) -> Draft | None:
        """The notification for the memory agent about a chain that terminated early; the last message opened `work`."""
        history = StoredMessageHistory(tx, chains.NAME, work.workspace_id, work.channel, context.us)
        last = history.opening(work)
        if last is None:
            return None
        entries = chains.entries_so_far(tx, work)
        session = str(last.message["metadata"]["session_id"])
        draft = chains.memory_draft(
            context,
            self.identity.self_id,
            self.settings.current.sentient.memory_agent,
            session,
            last.message,
            entries,
            work.terminal_id or work.opening_id,
        )
        return None if draft is None or draft.to == work.target else draft


def _closing_drafts(
    context: BridgeContext, in_hand: WorkView, following: WorkView, ending: BridgeEnvelope | None
) -> tuple[Draft, ...]:
    """Traces that end the previous work with the state, result and message of the next one's, in order of preference.

    The forwarded trace is longer than the original: the alternatives are a truncated one and one with the state alone.
    """
    other = in_hand.other(context.us)
    message_id = envelope_id(
        chains.NAME, "closing", context.us, other, following.terminal_id or following.opening_id, in_hand.work_id
    )
    whole = common.trace(
        context,
        in_hand,
        message_id,
        _closing_body(following, ending),
        reply_to=in_hand.opening_id,
        causation_id=in_hand.opening_id,
        ext={chains.CLOSED_BY: following.terminal_id},
    )
    return (whole, *(msgspec.structs.replace(whole, body=body) for body in _shorter(dict(whole.body))))


def _shorter(body: dict[str, Any]) -> tuple[dict[str, Any], dict[str, Any]]:
    """`body` with a truncated result and message, and with its state alone."""
    bare = {"state": body["state"], "message": _TOO_LARGE}
    result, message = body.get("result"), body.get("message")
    cut = {**bare, "message": cut_text(f"{_TOO_LARGE}: {message}")} if message else dict(bare)
    if result is not None:
        cut["result"] = cut_result(result if isinstance(result, dict) else {"result": result})
    return cut, bare


def _closing_body(following: WorkView, ending: BridgeEnvelope | None) -> dict[str, Any]:
    body: dict[str, Any] = decode_json(ending.raw)["body"] if ending is not None else {}
    if ending is not None and ending.kind == "trace":
        return {key: body[key] for key in ("state", "message", "result", "artifact_refs") if body.get(key) is not None}
    said = [str(body[key]) for key in ("status", "reason_code", "detail") if body.get(key)]
    why = ", ".join(said) if said else following.state
    return {"state": "failed", "message": f"the work of {following.target} ended without a result: {why}"}


def _ended_outside_chain(ending: BridgeEnvelope | None) -> bool:
    """Whether the work was ended by neither a message of the chain nor a forwarded end."""
    ext = chains.extensions(ending.raw) if ending is not None else {}
    return not {f"{chains.NAME}.message", f"{chains.NAME}.message_ref", chains.CLOSED_BY} & ext.keys()
