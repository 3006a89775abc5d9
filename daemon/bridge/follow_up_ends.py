"""Ends the assigned works of sentient chains: with the end of the next work, or joined when all branches have ended."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Any, Final, NamedTuple

import msgspec

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.base.logs import event
from aghbus.daemon.base.metrics import Counters
from aghbus.daemon.bridge import sentient_chain as sentient
from aghbus.daemon.bridge.adapters import AgentDirectory
from aghbus.daemon.bridge.log_files import LogFiles
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.send.sender import Batch
from aghbus.daemon.state.identity import Identity
from aghbus.protocol.agh.decoding import decode_json, decoder
from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.protocol.agh.send import Draft
from aghbus.protocol.api.messages import SendResponse
from aghbus.protocol.base.errors import InvalidRequest, Refused
from aghbus.protocol.formats import common
from aghbus.protocol.formats.attachments import cut_result, cut_text
from aghbus.protocol.formats.derived_ids import envelope_id
from aghbus.protocol.formats.model import BridgeContext, BridgedMessage, Conversion
from aghbus.protocol.formats.sentient.join import Branch, joined_body, joined_message, merged_log, shorter_results
from aghbus.protocol.formats.sentient.log import SentientLogEntry, entries_in, record_of, with_log
from aghbus.protocol.formats.sentient.message import SentientMessage
from aghbus.protocol.formats.sentient.native import SentientIds
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.tables import works
from aghbus.store.tables.bridge import follow_ups
from aghbus.store.tables.bridge import messages as bridge
from aghbus.store.tables.bridge.follow_ups import EndedWork
from aghbus.store.tables.bridge.messages import BridgeEnvelope, StoredMessageHistory

_log = logging.getLogger("aghbus.bridge")

_PAGE: Final = 100  # works per transaction
_TOO_LARGE: Final = "the result of the next work was too large to forward in full"
_branch: Final = decoder(Branch)


class _End(NamedTuple):
    """A work that ended, the envelope that ended it, and the assigned work that closes with it. `row` is that of the follow-up."""

    row: int
    context: BridgeContext
    work: WorkView
    ending: BridgeEnvelope | None
    assigned: WorkView | None


@dataclass(frozen=True, slots=True, eq=False)
class FollowUpEnds:
    """Handles the ends of works that were opened for next agents. All state is in the store."""

    settings: LiveSettings
    identity: Identity
    clock: Clock
    counters: Counters
    agents: AgentDirectory
    log: LogFiles

    def forward(self, tx: Transaction, batch: Batch) -> int:
        """Handle works that ended since the last call; how many there were, 0 when none is left."""
        found = follow_ups.terminated_works(tx, _PAGE)
        for ended in found:
            end = self._load(tx, ended)
            if end is None:
                follow_ups.settle(tx, ended.row)
                continue
            self._close_assigned(tx, batch, end)
            if _ended_outside_chain(end.ending):
                self._notify(tx, batch, end)
        return len(found)

    def _load(self, tx: Transaction, ended: EndedWork) -> _End | None:
        work = works.load(tx, ended.workspace_id, ended.channel, ended.work_id)
        if work is None:
            return None
        ending = assigned = None
        if work.terminal_id is not None and work.terminal_sender is not None:
            ending = bridge.envelope_by_id(tx, work.workspace_id, work.terminal_id, work.terminal_sender)
        if ended.assigned_work is not None and ended.assigned_channel is not None:
            assigned = works.load(tx, ended.workspace_id, ended.assigned_channel, ended.assigned_work)
        us = self.identity.participant_in(work if assigned is None else assigned) or self.identity.self_id
        return _End(ended.row, self.agents.context(work.channel, us, work.workspace_id), work, ending, assigned)

    def _close_assigned(self, tx: Transaction, batch: Batch, end: _End) -> None:
        """End the assigned work when this was its only branch, or its last open one."""
        branches = len(follow_ups.outcomes(tx, end.row))
        if end.assigned is None or (end.assigned.is_terminal and branches == 1):
            follow_ups.settle(tx, end.row)
            return
        if end.assigned.is_terminal:
            fields = {"work": end.assigned.work_id, "branch": end.work.work_id}
            tx.after_commit(partial(event, _log, logging.WARNING, "a branch ended after its work", **fields))
        elif branches == 1:
            body, entries = _closing_body(end.work, end.ending), _entries(tx, end)
            ids = (end.work.terminal_id or end.work.opening_id, end.assigned.work_id)
            closing = _closing(end.context, end.assigned, ids, body, closed_by=end.work.terminal_id, entries=entries)
            self._send_first(tx, batch, end.work, (closing, *_shorter(closing)))
        elif not self._end_branch(tx, batch, end, end.assigned):
            return
        follow_ups.settle(tx, end.row)

    def _end_branch(self, tx: Transaction, batch: Batch, end: _End, assigned: WorkView) -> bool:
        """Store the outcome of a branch; join all of them when this was the last open one. Whether it was."""
        agent = end.context.agents.name_of(end.work.target)
        body = _closing_body(end.work, end.ending)
        outcome = Branch(agent, body, end.work.terminal_id, _entries(tx, end))
        follow_ups.end_branch(tx, end.row, msgspec.json.encode(outcome))
        outcomes = follow_ups.outcomes(tx, end.row)
        left = outcomes.count(None)
        fields = {"work": assigned.work_id, "branch": end.work.work_id, "state": body["state"], "open": left}
        tx.after_commit(partial(event, _log, logging.INFO, "a branch of a work ended", **fields))
        if not left:
            self._join(tx, batch, end, assigned, [_branch(outcome) for outcome in outcomes if outcome])
        return not left

    def _join(self, tx: Transaction, batch: Batch, end: _End, assigned: WorkView, branches: Sequence[Branch]) -> None:
        """End the assigned work with the results of all branches, log the join, and notify the memory agent."""
        body = joined_body(branches)
        ids = ("joined", assigned.work_id)
        closed_by = [branch.closed_by for branch in branches]
        closing = _closing(end.context, assigned, ids, body, closed_by=closed_by)
        chain = self._chain_ids(tx, end, assigned)
        message = joined_message(
            body,
            branches,
            message_id=closing.id,
            now=end.context.now,
            session_id=chain.session_id,
            request_id=chain.request_id,
        )
        record = record_of(msgspec.convert(message, SentientMessage))
        entries = (*merged_log(branches), SentientLogEntry(record["day"], record["entry"]))
        closing = with_log(closing, entries)
        reduced = msgspec.structs.replace(closing, body=shorter_results(body))
        sent = self._send_first(tx, batch, end.work, (closing, reduced, *_shorter(closing)))
        failed = sum(not branch.completed for branch in branches)
        fields = {"work": assigned.work_id, "branches": len(branches), "failed": failed}
        tx.after_commit(partial(event, _log, logging.INFO, "joined the branches of a work", **fields))
        if sent is None:
            return
        tx.after_commit(partial(self.counters.add, "bridge.joined"))
        logged = Conversion(message=message, foreign_id=sent.id, record=record)
        self.log.keep_sent(tx, sentient.NAME, logged, sent.seq)
        notification = self._memory_draft(end, chain, message, entries, closing.id)
        self._send_first(tx, batch, end.work, (notification,) if notification is not None else ())

    def _chain_ids(self, tx: Transaction, end: _End, assigned: WorkView) -> SentientIds:
        """Session and request of the chain: those of the message that opened the branch."""
        opening = _opening(tx, end)
        return (
            SentientIds(assigned.container, assigned.work_id) if opening is None else sentient.ids_of(opening.message)
        )

    def _notify(self, tx: Transaction, batch: Batch, end: _End) -> None:
        """Notify the memory agent of a chain that terminated early; the last message opened `work`."""
        last = _opening(tx, end)
        if last is None:
            return
        entries = sentient.entries_so_far(tx, end.work)
        ending_id = end.work.terminal_id or end.work.opening_id
        draft = self._memory_draft(end, sentient.ids_of(last.message), last.message, entries, ending_id)
        self._send_first(tx, batch, end.work, () if draft is None or draft.to == end.work.target else (draft,))

    def _memory_draft(
        self, end: _End, chain: SentientIds, message: Any, entries: tuple[SentientLogEntry, ...], ending_id: str
    ) -> Draft | None:
        us, memory_agent = self.identity.self_id, self.settings.current.sentient.memory_agent
        return sentient.memory_draft(end.context, us, memory_agent, chain, message, entries, ending_id)

    def _send_first(
        self, tx: Transaction, batch: Batch, ended: WorkView, drafts: Sequence[Draft]
    ) -> SendResponse | None:
        """Send the first of `drafts` that fits an envelope; if none does, count and log it, and return None."""
        cause: InvalidRequest | Refused | None = None
        for draft in drafts:
            try:
                return batch.send(draft, allow_secrets=True, replace_secrets=True)
            except (InvalidRequest, Refused) as error:
                cause = cause or error
        if cause is not None:
            tx.after_commit(partial(self._not_forwarded, ended.work_id, cause))
        return None

    def _not_forwarded(self, work_id: str, cause: Exception) -> None:
        self.counters.add("bridge.terminal_not_forwarded")
        event(_log, logging.ERROR, "cannot forward the terminal state of a work", work=work_id, cause=cause)


def _opening(tx: Transaction, end: _End) -> BridgedMessage | None:
    """The message that opened a work that ended."""
    history = StoredMessageHistory(tx, sentient.NAME, end.work.workspace_id, end.work.channel, end.context.us)
    return history.opening(end.work)


def _closing(
    context: BridgeContext,
    assigned: WorkView,
    ids: tuple[str, str],
    body: dict[str, Any],
    *,
    closed_by: str | list[str | None] | None,
    entries: tuple[SentientLogEntry, ...] = (),
) -> Draft:
    """The trace that ends the assigned work with `body`; its id is derived from `ids`."""
    message_id = envelope_id(sentient.NAME, "closing", context.us, assigned.other(context.us), *ids)
    draft = common.trace(
        context,
        assigned,
        message_id,
        body,
        reply_to=assigned.opening_id,
        causation_id=assigned.opening_id,
        ext={sentient.CLOSED_BY: closed_by},
    )
    return with_log(draft, entries)


def _shorter(draft: Draft) -> tuple[Draft, Draft]:
    """The draft of a closing trace without log, with a truncated result and message, and with its state alone."""
    body: dict[str, Any] = dict(draft.body)
    bare = {"state": body["state"], "message": _TOO_LARGE}
    result, message = body.get("result"), body.get("message")
    cut = {**bare, "message": cut_text(f"{_TOO_LARGE}: {message}")} if message else dict(bare)
    if result is not None:
        cut["result"] = cut_result(result if isinstance(result, dict) else {"result": result})
    ext = {sentient.CLOSED_BY: (draft.ext or {})[sentient.CLOSED_BY]}
    replace = msgspec.structs.replace
    return replace(draft, body=cut, ext=ext), replace(draft, body=bare, ext=ext)


def _closing_body(following: WorkView, ending: BridgeEnvelope | None) -> dict[str, Any]:
    body: dict[str, Any] = decode_json(ending.raw)["body"] if ending is not None else {}
    if ending is not None and ending.kind == "trace":
        return {key: body[key] for key in ("state", "message", "result", "artifact_refs") if body.get(key) is not None}
    said = [str(body[key]) for key in ("status", "reason_code", "detail") if body.get(key)]
    why = ", ".join(said) if said else following.state
    return {"state": "failed", "message": f"the work of {following.target} ended without a result: {why}"}


def _entries(tx: Transaction, end: _End) -> tuple[SentientLogEntry, ...]:
    """The chain's log entries at the end of a work: those that came with it, else those that went out with its opening."""
    came = entries_in(sentient.extensions(end.ending.raw)) if end.ending is not None else ()
    return came or sentient.entries_so_far(tx, end.work)


def _ended_outside_chain(ending: BridgeEnvelope | None) -> bool:
    """Whether the work was ended by neither a message of the chain nor a forwarded end."""
    ext = sentient.extensions(ending.raw) if ending is not None else {}
    return not {f"{sentient.NAME}.message", f"{sentient.NAME}.message_ref", sentient.CLOSED_BY} & ext.keys()
