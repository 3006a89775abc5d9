"""Forwards the ends of sentient chains: to the assigned work or to the user, joined when several branches have ended.

Where the chain began, the memory agent is called."""

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
from aghbus.daemon.bridge.forwarder import Forwarder
from aghbus.daemon.bridge.log_files import LogFiles
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.send.sender import Batch
from aghbus.daemon.state.identity import Identity
from aghbus.protocol.agh.decoding import decode_json, decoder
from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.protocol.agh.send import Draft
from aghbus.protocol.api.messages import SendResponse
from aghbus.protocol.formats import common
from aghbus.protocol.formats.attachments import cut_result, cut_text, say_text
from aghbus.protocol.formats.derived_ids import envelope_id, legal_id, thread_id, work_id
from aghbus.protocol.formats.model import BridgeContext, Conversion
from aghbus.protocol.formats.sentient.bodies import say_body, user_say
from aghbus.protocol.formats.sentient.join import Branch, end_message, joined_body, merged_log, shorter_results
from aghbus.protocol.formats.sentient.log import SentientLogEntry, entries_in, record_of, with_log
from aghbus.protocol.formats.sentient.message import USER, SentientMessage, parse_message
from aghbus.protocol.formats.sentient.native import CHAIN, SentientIds
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.tables.bridge import follow_ups
from aghbus.store.tables.bridge import messages as bridge
from aghbus.store.tables.bridge.follow_ups import EndedWork
from aghbus.store.tables.bridge.messages import BridgeEnvelope, StoredMessageHistory
from aghbus.store.tables.works import lifecycle

_log = logging.getLogger("aghbus.bridge")

_PAGE: Final = 100  # works per transaction
_TOO_LARGE: Final = "the result of the next work was too large to forward in full"
_branch: Final = decoder(Branch)


class _Finish(NamedTuple):
    """How all branches of a work ended: id and body of the trace that ends it, the chain's log entries and its last message
    (None: not known), and of a join the record for the log."""

    id: str
    body: dict[str, Any]
    branches: Sequence[Branch]
    entries: tuple[SentientLogEntry, ...]
    last: Any
    record: dict[str, Any] | None = None

    @property
    def final(self) -> bool:
        """Whether the agent of a branch named the Final Output agent."""
        return any(branch.final for branch in self.branches)


class _End(NamedTuple):
    """A work that ended, the envelope that ended it, and the assigned work that closes with it. `row` is that of the follow-up."""

    row: int
    context: BridgeContext
    work: WorkView
    ending: BridgeEnvelope | None
    assigned: WorkView | None

    @property
    def taken_back(self) -> bool:
        """Whether the request was canceled by who made it, so that nobody waits for its end."""
        if self.assigned is not None:
            return self.assigned.state == "canceled"
        ended_by_us = self.work.state == "canceled" and self.work.terminal_sender == self.context.us
        return ended_by_us and self.ending is not None and not self.ending.ended_by_daemon


@dataclass(frozen=True, slots=True, eq=False)
class FollowUpEnds:
    """Handles the ends of works that were opened for next agents. All state is in the store."""

    settings: LiveSettings
    identity: Identity
    clock: Clock
    counters: Counters
    agents: AgentDirectory
    log: LogFiles
    forwarder: Forwarder

    def forward(self, tx: Transaction, batch: Batch) -> int:
        """Handle works that ended since the last call; how many there were, 0 when none is left."""
        found = follow_ups.terminated_works(tx, _PAGE)
        for ended in found:
            end = self._load(tx, ended)
            if end is None:
                follow_ups.settle(tx, ended.row)
            elif end.assigned is not None and end.assigned.initiator == end.context.us:
                self._answer(tx, batch, end, end.assigned)
            else:
                self._end_branch(tx, batch, end)
        return len(found)

    def _answer(self, tx: Transaction, batch: Batch, end: _End, asking: WorkView) -> None:
        """The user has ended the work that asked for `asking`: its end is the answer."""
        if asking.state == "needs_input":
            body = _closing_body(end.work, end.ending)
            result = body.get("result")
            content = result.get("content", result) if isinstance(result, dict) else result
            text = say_text(content, body.get("message"))
            ended_by = end.work.terminal_id or end.work.opening_id
            said = envelope_id(sentient.NAME, "answer", end.context.us, None, ended_by, end.work.work_id)
            answer = common.say_in_work(end.context, asking, said, {"text": text}, causation_id=ended_by)
            self.forwarder.send_first(tx, batch, end.work, (answer,))
        follow_ups.settle(tx, end.row)

    def _load(self, tx: Transaction, ended: EndedWork) -> _End | None:
        work = lifecycle.load(tx, ended.workspace_id, ended.channel, ended.work_id)
        if work is None:
            return None
        ending = assigned = None
        if work.terminal_id is not None and work.terminal_sender is not None:
            ending = bridge.envelope_by_id(tx, work.workspace_id, work.terminal_id, work.terminal_sender)
        if ended.assigned_work is not None and ended.assigned_channel is not None:
            assigned = lifecycle.load(tx, ended.workspace_id, ended.assigned_channel, ended.assigned_work)
        us = self.identity.participant_in(work if assigned is None else assigned) or self.identity.self_id
        return _End(ended.row, self.agents.context(work.channel, us, work.workspace_id), work, ending, assigned)

    def _end_branch(self, tx: Transaction, batch: Batch, end: _End) -> None:
        """Store the outcome of a branch; end what waits for it when no other one is open."""
        branch = self._branch(tx, end)
        follow_ups.end_branch(tx, end.row, msgspec.json.encode(branch))
        outcomes = follow_ups.outcomes(tx, end.row)
        left = outcomes.count(None)
        if len(outcomes) > 1:
            assigned = None if end.assigned is None else end.assigned.work_id
            fields = {"work": assigned, "branch": end.work.work_id, "state": branch.body["state"], "open": left}
            tx.after_commit(partial(event, _log, logging.INFO, "a branch of a work ended", **fields))
        if not left:
            self._finish(tx, batch, end, [_branch(outcome) for outcome in outcomes if outcome])
            follow_ups.settle(tx, end.row)

    def _branch(self, tx: Transaction, end: _End) -> Branch:
        agent = end.context.agents.name_of(end.work.target)
        body = _closing_body(end.work, end.ending)
        ext = sentient.extensions(end.ending.raw) if end.ending is not None else {}
        entries = entries_in(ext) or sentient.entries_so_far(tx, end.work)
        last = ext.get(f"{sentient.NAME}.message", ext.get(sentient.LAST_MESSAGE))
        if parse_message(last) is None or not sentient.last_message(last):
            last = None
        return Branch(agent, body, end.work.terminal_id, entries, last, ext.get(sentient.FINAL) is True)

    def _finish(self, tx: Transaction, batch: Batch, end: _End, branches: Sequence[Branch]) -> None:
        """All branches have ended: end the assigned work, or tell the user; where the chain began, call the memory agent."""
        finish = self._joined(tx, end, branches) if len(branches) > 1 else _single(end, branches[0])
        if self._call_final_agent(tx, batch, end, finish):
            return
        if end.assigned is not None and not end.assigned.is_terminal:
            above = finish.final and sentient.is_branch(tx, end.assigned)
            closings = _closings(end, end.assigned, finish, final=above)
            sent = self.forwarder.send_first(tx, batch, end.work, closings)
            self._joined_sent(tx, end, finish, sent)
        if end.taken_back or not sentient.begins(tx, end.assigned):
            return
        ids = self._chain_ids(tx, end)
        if end.assigned is None:
            sent = self.forwarder.send_first(tx, batch, end.work, self._reports(end, ids, finish))
            self._joined_sent(tx, end, finish, sent)
        self._call_memory_agent(tx, batch, end, ids, finish)

    def _call_final_agent(self, tx: Transaction, batch: Batch, end: _End, finish: _Finish) -> bool:
        """Pass the results of all branches on to the Final Output agent, if one named it; whether that was done. Where the
        assigned work is a branch itself, the agent above calls it."""
        peer = self.settings.current.sentient.final_agent
        if not finish.final or peer is None or peer == end.context.us or end.taken_back:
            return False
        if end.assigned is not None and (end.assigned.is_terminal or sentient.is_branch(tx, end.assigned)):
            return False
        ids, name = self._chain_ids(tx, end), end.context.agents.name_of(peer)
        sent = self.forwarder.send_first(tx, batch, end.work, _final_says(end, ids, finish, peer, name))
        opened = None if sent is None else lifecycle.load(tx, sent.workspace_id, sent.channel, sent.work_id or "")
        kept = None if sent is None else bridge.load_envelope(tx, sent.seq)
        if opened is None or kept is None:
            return False
        follow_ups.add(tx, end.assigned, opened, sentient.key_of(ids))
        message = sentient.extensions(kept.raw)[f"{sentient.NAME}.message"]
        bridge.remember(
            tx, kept, sentient.NAME, "out", message=message, foreign_id=message["message_id"], scope=ids.session_id
        )
        self._joined_sent(tx, end, finish, sent)
        return True

    def _joined(self, tx: Transaction, end: _End, branches: Sequence[Branch]) -> _Finish:
        """The results of all branches, and the entry of the join in the log."""
        body, closing_id = joined_body(branches), _closing_id(end, "joined")
        ids, now = self._chain_ids(tx, end), end.context.now
        message = end_message(body, branches, message_id=closing_id, now=now, chain=ids)
        record = record_of(msgspec.convert(message, SentientMessage))
        entries = (*merged_log(branches), SentientLogEntry(record["day"], record["entry"]))
        return _Finish(closing_id, body, branches, entries, message, record)

    def _joined_sent(self, tx: Transaction, end: _End, finish: _Finish, sent: SendResponse | None) -> None:
        """Log a join, and count it; `sent` is what told of it (None: there was nobody to tell, or it was not possible)."""
        if finish.record is None or (sent is None and end.assigned is not None):
            return
        failed = sum(not branch.completed for branch in finish.branches)
        work = end.work.work_id if end.assigned is None else end.assigned.work_id
        fields = {"work": work, "branches": len(finish.branches), "failed": failed}
        tx.after_commit(partial(event, _log, logging.INFO, "joined the branches of a work", **fields))
        tx.after_commit(partial(self.counters.add, "bridge.joined"))
        foreign_id, seq = (finish.id, 0) if sent is None else (sent.id, sent.seq)
        logged = Conversion(message=finish.last, foreign_id=foreign_id, record=finish.record)
        self.log.keep_sent(tx, sentient.NAME, logged, seq)

    def _chain_ids(self, tx: Transaction, end: _End) -> SentientIds:
        """Session and request of the chain: those of the message that opened the branch."""
        history = StoredMessageHistory(tx, sentient.NAME, end.work.workspace_id, end.work.channel, end.context.us)
        opening = history.opening(end.work)
        if opening is not None:
            return sentient.ids_of(opening.message)
        work = end.work if end.assigned is None else end.assigned
        return SentientIds(work.container, work.work_id)

    def _reports(self, end: _End, ids: SentientIds, finish: _Finish) -> tuple[Draft, ...]:
        """The final output for the user, as one say with the chain's session; shorter without the message."""
        user = self.settings.current.sentient.user or end.context.agents.names.get(USER)
        if user is None or user == end.context.us:
            return ()
        said = envelope_id(sentient.NAME, "report", end.context.us, user, finish.id, ids.session_id)
        message = end_message(
            finish.body, finish.branches, message_id=said, now=end.context.now, chain=ids, following=USER
        )
        draft = common.say(
            end.context,
            user,
            said,
            thread_id(sentient.NAME, ids.session_id),
            user_say(msgspec.convert(message, SentientMessage)),
            trace_id=legal_id(ids.request_id),
            causation_id=end.work.terminal_id or end.work.opening_id,
            ext={f"{sentient.NAME}.message": message, CHAIN: msgspec.structs.asdict(ids)},
        )
        return draft, msgspec.structs.replace(draft, ext={CHAIN: msgspec.structs.asdict(ids)})

    def _call_memory_agent(self, tx: Transaction, batch: Batch, end: _End, ids: SentientIds, finish: _Finish) -> None:
        """Call the memory agent, once for each chain that began here; not if it ended the chain itself."""
        us, memory_agent = self.identity.self_id, self.settings.current.sentient.memory_agent
        last = finish.last
        if last is None:
            last = end_message(finish.body, finish.branches, message_id=finish.id, now=end.context.now, chain=ids)
        ended_by = end.context.agents.peer_of(last["agent"]["name"], "")
        if memory_agent in (ended_by, end.work.target):
            return
        draft = sentient.memory_draft(end.context, us, memory_agent, ids, last, finish.entries, finish.id)
        self.forwarder.send_first(tx, batch, end.work, () if draft is None else (draft,))


def _single(end: _End, branch: Branch) -> _Finish:
    ended_by = end.work.terminal_id or end.work.opening_id
    return _Finish(_closing_id(end, ended_by), branch.body, (branch,), branch.log, branch.last)


def _closing_id(end: _End, cause: str) -> str:
    """The id of the trace that ends the assigned work, or an id for the end of a chain without one."""
    if end.assigned is None:
        return envelope_id(sentient.NAME, "chain", end.context.us, None, cause, end.work.work_id)
    other = end.assigned.other(end.context.us)
    return envelope_id(sentient.NAME, "closing", end.context.us, other, cause, end.assigned.work_id)


def _final_says(end: _End, ids: SentientIds, finish: _Finish, peer: str, name: str) -> tuple[Draft, ...]:
    """The say that opens a work for the Final Output agent, and one with shorter results."""
    says = []
    for body in (finish.body, shorter_results(finish.body)) if len(finish.branches) > 1 else (finish.body,):
        message = end_message(
            body, finish.branches, message_id=finish.id, now=end.context.now, chain=ids, following=name
        )
        said = envelope_id(sentient.NAME, "final", end.context.us, peer, finish.id, ids.session_id)
        draft = common.say(
            end.context,
            peer,
            said,
            thread_id(sentient.NAME, ids.session_id),
            say_body(msgspec.convert(message, SentientMessage)),
            work_id=work_id(said),
            trace_id=legal_id(ids.request_id),
            causation_id=end.work.terminal_id or end.work.opening_id,
            ext={f"{sentient.NAME}.message": message, CHAIN: msgspec.structs.asdict(ids)},
        )
        says.append(with_log(draft, finish.entries))
    return tuple(says)


def _closings(end: _End, assigned: WorkView, finish: _Finish, *, final: bool) -> tuple[Draft, ...]:
    """The trace that ends the assigned work, and shorter ones for a result that does not fit."""
    joined = len(finish.branches) > 1
    closed_by = [branch.closed_by for branch in finish.branches]
    ext: dict[str, Any] = {sentient.CLOSED_BY: closed_by if joined else closed_by[0]}
    if final:
        ext[sentient.FINAL] = True
    draft = common.trace(
        end.context,
        assigned,
        finish.id,
        finish.body,
        reply_to=assigned.opening_id,
        causation_id=assigned.opening_id,
        ext={**ext, **sentient.last_message(finish.last)},
    )
    replace = msgspec.structs.replace
    whole = with_log(draft, finish.entries)
    logged = with_log(replace(draft, ext=ext), finish.entries)
    reduced = (replace(logged, body=shorter_results(finish.body)),) if joined else ()
    return (whole, logged, *reduced, *_shorter(replace(draft, ext=ext)))


def _shorter(draft: Draft) -> tuple[Draft, Draft]:
    """The draft of a closing trace without log, with a truncated result and message, and with its state alone."""
    body: dict[str, Any] = dict(draft.body)
    bare = {"state": body["state"], "message": _TOO_LARGE}
    result, message = body.get("result"), body.get("message")
    cut = {**bare, "message": cut_text(f"{_TOO_LARGE}: {message}")} if message else dict(bare)
    if result is not None:
        cut["result"] = cut_result(result if isinstance(result, dict) else {"result": result})
    return msgspec.structs.replace(draft, body=cut), msgspec.structs.replace(draft, body=bare)


def _closing_body(following: WorkView, ending: BridgeEnvelope | None) -> dict[str, Any]:
    body: dict[str, Any] = decode_json(ending.raw)["body"] if ending is not None else {}
    if ending is not None and ending.kind == "trace":
        return {key: body[key] for key in ("state", "message", "result", "artifact_refs") if body.get(key) is not None}
    said = [str(body[key]) for key in ("status", "reason_code", "detail") if body.get(key)]
    why = ", ".join(said) if said else following.state
    return {"state": "failed", "message": f"the work of {following.target} ended without a result: {why}"}
