"""Passes on what happens in works that were opened for next agents, before they end.

Progress and questions go up to the assigned work, answers and cancellations down. A question of a chain that our agent began
opens a work for the user. All state is in the store, and each step is committed with what it sends.
"""

from dataclasses import dataclass
from typing import Any, Final, NamedTuple

import msgspec

from aghbus.daemon.bridge import sentient_chain as sentient
from aghbus.daemon.bridge.adapters import AgentDirectory
from aghbus.daemon.bridge.forwarder import Forwarder
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.send.sender import Batch
from aghbus.daemon.state.identity import Identity
from aghbus.protocol.agh.bodies import receipt_body
from aghbus.protocol.agh.decoding import decode_json
from aghbus.protocol.agh.envelope import OPENING_KINDS
from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.protocol.agh.send import Draft
from aghbus.protocol.formats import common
from aghbus.protocol.formats.attachments import compact, say_text
from aghbus.protocol.formats.derived_ids import envelope_id, work_id
from aghbus.protocol.formats.model import BridgeContext
from aghbus.protocol.formats.sentient.message import USER
from aghbus.protocol.formats.sentient.native import CHAIN
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.tables import inbox
from aghbus.store.tables.bridge import follow_ups
from aghbus.store.tables.bridge import messages as bridge
from aghbus.store.tables.bridge.follow_ups import OpenLink
from aghbus.store.tables.bridge.messages import BridgeEnvelope
from aghbus.store.tables.works import lifecycle

_PAGE: Final = 100  # works per transaction
_LOOKED_AT: Final = 50  # newest envelopes of a work among which a question or an answer is looked for
_UP: Final = ("message", "result", "artifact_refs")  # members of a trace that go up with it


class _Link(NamedTuple):
    """The work of a next agent, and the assigned work that waits for it (None: our agent began the chain)."""

    open: OpenLink
    context: BridgeContext
    work: WorkView
    assigned: WorkView | None


@dataclass(frozen=True, slots=True, eq=False)
class FollowUpSteps:
    """Handles the changes of works that were opened for next agents, and of their assigned works."""

    settings: LiveSettings
    identity: Identity
    agents: AgentDirectory
    forwarder: Forwarder

    def pass_on(self, tx: Transaction, batch: Batch, after: int, upto: int) -> None:
        """Pass on what was committed after sequence `after`, up to `upto`: progress, and what users answer."""
        self._report_progress(tx, batch, after, upto)
        self._pass_answers(tx, batch, after, upto)

    def _report_progress(self, tx: Transaction, batch: Batch, after: int, upto: int) -> None:
        """Progress below is progress of the assigned works."""
        for seq, found in follow_ups.progressed(tx, after, upto):
            link, came = self._load(tx, found), bridge.load_envelope(tx, seq)
            if link is None or link.assigned is None or came is None:
                continue
            draft = _up(link, link.assigned, came, "working")
            if batch.sent_before(link.work.workspace_id, draft.id) is None:
                self.forwarder.send_first(tx, batch, link.work, _with_shorter(draft))

    def _pass_answers(self, tx: Transaction, batch: Batch, after: int, upto: int) -> None:
        """What the user said in a work that asks a question goes to the agent that asked."""
        for seq, found in follow_ups.answered(tx, after, upto):
            link, answer = self._load(tx, found), bridge.load_envelope(tx, seq)
            if link is None or link.assigned is None or answer is None:
                continue
            self.forwarder.send_first(tx, batch, link.work, (_down(link.context, link.assigned, answer),))
            inbox.settle(tx, seq)

    def forward(self, tx: Transaction, batch: Batch) -> int:
        """Pass on questions, answers and cancellations; how many links were handled, 0 when nothing is left to do."""
        unneeded = follow_ups.unneeded(tx, _PAGE)
        for found in unneeded:
            self._cancel(tx, batch, found)
        asking = follow_ups.asking(tx, _PAGE)
        for found in asking:
            link = self._load(tx, found)
            if link is None:
                follow_ups.settle(tx, found.row)
            elif found.question is None:
                if link.assigned is None or not follow_ups.asks(tx, link.assigned):  # another branch, just now
                    self._ask(tx, batch, link)
            else:
                self._answer(tx, batch, link)
        return len(unneeded) + len(asking)

    def _load(self, tx: Transaction, found: OpenLink) -> _Link | None:
        work = lifecycle.load(tx, found.workspace_id, found.channel, found.work_id)
        assigned = None
        if found.assigned_work is not None and found.assigned_channel is not None:
            assigned = lifecycle.load(tx, found.workspace_id, found.assigned_channel, found.assigned_work)
        if work is None:
            return None
        us = self.identity.participant_in(work if assigned is None else assigned) or self.identity.self_id
        return _Link(found, self.agents.context(work.channel, us, work.workspace_id), work, assigned)

    def _cancel(self, tx: Transaction, batch: Batch, found: OpenLink) -> None:
        """Nobody waits for a work any more, because the assigned one has ended."""
        link = self._load(tx, found)
        if link is None or link.assigned is None:
            follow_ups.settle(tx, found.row)
            return
        why = f"{link.assigned.work_id}, for which it was opened, is {link.assigned.state}"
        if not link.assigned.is_terminal:
            why = "the question is answered"
        if self.forwarder.send_first(tx, batch, link.work, (_canceled(link, link.work, why),)) is None:
            follow_ups.settle(tx, found.row)

    def _ask(self, tx: Transaction, batch: Batch, link: _Link) -> None:
        """The target of a work asks: so does the assigned work; without one, ask the user."""
        asked = _question_in(tx, link.work)
        follow_ups.set_question(tx, link.open.row, link.work.opening_id if asked is None else asked.message_id)
        if asked is None:
            return
        if link.assigned is not None:
            trace = _up(link, link.assigned, asked, "needs_input", after=_last_id(tx, link.assigned))
            self.forwarder.send_first(tx, batch, link.work, _with_shorter(trace))
            return
        draft = self._question(link, asked)
        if draft is not None and self.forwarder.send_first(tx, batch, link.work, (draft,)) is not None:
            opened = lifecycle.load(tx, draft.workspace_id, draft.channel, draft.work_id or "")
            if opened is not None:
                follow_ups.add(tx, link.work, opened, "")

    def _question(self, link: _Link, asked: BridgeEnvelope) -> Draft | None:
        """A work for the user that asks the question of a chain that our agent began."""
        user = self.settings.current.sentient.user or link.context.agents.names.get(USER)
        if user is None or user == link.context.us:
            return None
        said = envelope_id(sentient.NAME, "question", link.context.us, user, asked.message_id, link.work.work_id)
        opening = sentient.extensions(asked.raw).get(CHAIN)
        body = decode_json(asked.raw)["body"]
        text = say_text(body.get("message"), compact(body.get("result")))
        return common.say(
            link.context,
            user,
            said,
            link.work.container,
            {"text": text, "intent": "question"},
            work_id=work_id(said),
            causation_id=asked.message_id,
            ext=None if opening is None else {CHAIN: opening},
        )

    def _answer(self, tx: Transaction, batch: Batch, link: _Link) -> None:
        """The question of a work was passed on, and either side has moved since."""
        follow_ups.set_question(tx, link.open.row, None)
        assigned = link.assigned
        if assigned is None:
            return  # the work for the user is canceled with its own link
        if link.work.state == "needs_input":
            answer = _answer_in(tx, assigned)
            if answer is not None:
                self.forwarder.send_first(tx, batch, link.work, (_down(link.context, link.work, answer),))
                inbox.settle(tx, answer.seq)
        elif assigned.state == "needs_input" and not (link.work.is_terminal and follow_ups.is_only(tx, link.open.row)):
            id_ = envelope_id(
                sentient.NAME, "continued", link.context.us, assigned.initiator, link.open.question, assigned.work_id
            )
            self.forwarder.send_first(
                tx, batch, link.work, (common.trace(link.context, assigned, id_, {"state": "working"}),)
            )


def is_forwarded_answer(tx: Transaction, kept: BridgeEnvelope) -> bool:
    """Whether an envelope answers the question of an agent below, and so is not for our agent."""
    if kept.work_id is None or kept.kind not in OPENING_KINDS:
        return False
    work = lifecycle.load(tx, kept.workspace_id, kept.channel, kept.work_id)
    if work is None or kept.message_id == work.opening_id:
        return False
    if follow_ups.asks_user(tx, work):
        return True
    answers = kept.outcome == "advanced"
    return answers and (follow_ups.asks(tx, work) or bridge.sent_as(tx, work.workspace_id, _answer_id(kept)))


def _up(link: _Link, assigned: WorkView, came: BridgeEnvelope, state: str, after: str | None = None) -> Draft:
    """A trace of the assigned work with what an envelope of the next one says. `after` distinguishes repeated ones."""
    body = decode_json(came.raw)["body"] if came.kind == "trace" else {}
    said = {key: body[key] for key in _UP if body.get(key) is not None}
    to = assigned.other(link.context.us)
    id_ = envelope_id(sentient.NAME, state, link.context.us, to, came.message_id, assigned.work_id, after)
    ext = {sentient.FORWARDED: came.message_id}
    chain = sentient.extensions(came.raw).get(CHAIN)
    return common.trace(
        link.context,
        assigned,
        id_,
        {"state": state, **said},
        reply_to=assigned.opening_id,
        causation_id=assigned.opening_id,
        ext=ext if chain is None else {**ext, CHAIN: chain},
    )


def _with_shorter(draft: Draft) -> tuple[Draft, Draft]:
    """A trace, and one with its state alone."""
    return draft, msgspec.structs.replace(draft, body={"state": draft.body["state"]})


def _down(context: BridgeContext, asking: WorkView, answer: BridgeEnvelope) -> Draft:
    """The answer as a message within the work that asked."""
    body: dict[str, Any] = decode_json(answer.raw)["body"]
    if answer.kind != "say":
        body = {"text": say_text(body, None)}
    return common.say_in_work(context, asking, _answer_id(answer), body, causation_id=answer.message_id)


def _answer_id(answer: BridgeEnvelope) -> str:
    return envelope_id(sentient.NAME, "answer", answer.recipient or "", None, answer.message_id, answer.work_id or "")


def _canceled(link: _Link, work: WorkView, why: str) -> Draft:
    id_ = envelope_id(sentient.NAME, "cancel", link.context.us, work.target, work.opening_id, work.work_id)
    draft = common.trace(link.context, work, id_, {}, reply_to=work.opening_id, causation_id=work.opening_id)
    body = receipt_body(work.opening_id, "canceled", detail=why)
    return msgspec.structs.replace(draft, kind="receipt", body=body)


def _question_in(tx: Transaction, work: WorkView) -> BridgeEnvelope | None:
    """The newest question of the target of a work."""
    for kept in bridge.envelopes_of_work(tx, work, _LOOKED_AT):
        if kept.direction == "in" and kept.kind == "trace" and kept.state_after == "needs_input":
            return kept
    return None


def _answer_in(tx: Transaction, assigned: WorkView) -> BridgeEnvelope | None:
    """The answer to the latest question that we asked in a work; None when something else moved it."""
    for kept in bridge.envelopes_of_work(tx, assigned, _LOOKED_AT):
        if kept.direction == "out" and kept.state_after == "needs_input":
            return None
        if kept.direction == "in" and kept.kind in OPENING_KINDS and kept.outcome == "advanced":
            return kept
    return None


def _last_id(tx: Transaction, work: WorkView) -> str:
    return next(iter(bridge.envelopes_of_work(tx, work, 1))).message_id
