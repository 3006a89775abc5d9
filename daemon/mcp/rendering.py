"""What a model gets to read of works, messages and peers. Everything that a peer wrote is fenced."""

from collections.abc import Mapping, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from aghbus.daemon.mcp.fence import fence, name
from aghbus.daemon.mcp.models import InboxMessage, Output, PeerOutput, SentOutput, StepOutput, WorkOutput, WorksOutput
from aghbus.daemon.mcp.rpc import Object
from aghbus.protocol.api.inbox import InboxItem
from aghbus.protocol.api.messages import SendResponse
from aghbus.protocol.api.peers import Peer, WhoisMatch
from aghbus.protocol.api.works import Work, WorkResponse, WorkStep
from aghbus.protocol.base.decoding import decode_json

_MAX_CAPABILITIES: Final = 64  # of one peer


def result_of(output: Output) -> Object:
    """The result of a tool: the object, and the same as text for hosts that show only text."""
    content = msgspec.to_builtins(output)
    return {"content": [{"type": "text", "text": msgspec.json.encode(content).decode()}], "structuredContent": content}


def peer(found: Peer) -> PeerOutput:
    """A peer of presence."""
    return _peer(found.peer_id, found.presence, found.trust, found.card)


def match(found: WhoisMatch) -> PeerOutput:
    """An answer to a whois."""
    return _peer(found.peer_id, "active", found.trust, found.card)


def _peer(peer_id: str, presence: str, trust: str, card: Mapping[str, Any]) -> PeerOutput:
    display_name = card.get("display_name")
    return PeerOutput(
        peer_id=name(peer_id),
        presence=presence,
        trust=trust,
        capabilities=[name(each) for each in card["capabilities"][:_MAX_CAPABILITIES]],
        about=fence(display_name, sender=peer_id, trust=trust) if display_name else UNSET,
    )


def works(found: Sequence[Work]) -> WorksOutput:
    """Works as they are now."""
    return WorksOutput(works=[_work(each, last=True) for each in found])


def work(found: WorkResponse, note: str | None = None) -> WorksOutput:
    """One work with its history."""
    own = found.work.initiator if found.work.role == "initiator" else found.work.target
    history = [_step(each, own, found.work.trust) for each in found.history]
    return WorksOutput(works=[_work(found.work, last=False)], history=history, note=_given(note))


def _work(found: Work, *, last: bool) -> WorkOutput:
    """A work; with its `last` message and result, which are the target's words."""
    own, other = found.initiator, found.target
    if found.role != "initiator":
        own, other = other, own

    def said(text: str | None, author: str) -> str | UnsetType:
        return UNSET if text is None else _said(text, author, own, found.trust)

    return WorkOutput(
        work_id=name(found.work_id),
        state=found.state,
        role=found.role,
        peer=name(other),
        trust=found.trust,
        task=_said(found.text, found.initiator, own, found.trust),
        message=said(found.message, found.target) if last else UNSET,
        result=said(as_text(found.result), found.target) if last else UNSET,
    )


def question(found: WorkStep, work: Work) -> str:
    """The text of a question, for a person."""
    return fence(_step_text(found) or "(no text)", sender=found.actor, trust=work.trust)


def _step(found: WorkStep, own: str, trust: str) -> StepOutput:
    text = _step_text(found)
    return StepOutput(
        sender=name(found.actor),
        event=found.event,
        state=found.after,
        text=_said(text, found.actor, own, trust) if text else UNSET,
    )


def _step_text(found: WorkStep) -> str:
    parts = [found.message, found.reason, *map(as_text, (found.result, found.artifacts))]
    return "\n".join(part for part in parts if part)


def _said(text: str, author: str, own: str, trust: str) -> str:
    """What `author` wrote: fenced unless it is our own."""
    return text if author == own else fence(text, sender=author, trust=trust)


def _given(value: str | None) -> str | UnsetType:
    return UNSET if value is None else value


def message(item: InboxItem) -> InboxMessage:
    """A leased message."""
    found = item.message
    text = "[the stored message is damaged]" if found.damaged else _body_text(found.kind, bytes(found.envelope))
    return InboxMessage(
        seq=item.seq,
        lease=item.lease or "",
        kind=found.kind,
        sender=name(found.sender),
        trust=found.trust,
        text=fence(text, sender=found.sender, trust=found.trust),
        work_id=UNSET if found.work_id is None else name(found.work_id),
        thread_id=UNSET if found.thread_id is None else name(found.thread_id),
    )


def _body_text(kind: str, envelope: bytes) -> str:
    """The text of a say, and anything else that a body has as JSON."""
    body = decode_json(envelope).get("body")
    if kind != "say" or not isinstance(body, dict):
        return as_text(body) or ""
    rest = {key: value for key, value in body.items() if key not in ("text", "intent")}
    parts: Sequence[str | None] = (str(body.get("text", "")), as_text(rest or None))
    return "\n".join(part for part in parts if part)


def as_text(value: object) -> str | None:
    """A JSON value as text; None for None."""
    return None if value is None else msgspec.json.encode(value).decode()


def sent(found: SendResponse) -> SentOutput:
    """A committed message of ours."""
    return SentOutput(
        message_id=found.id,
        to=_given(found.to),
        work_id=_given(found.work_id),
        work_state=UNSET if found.work_state is None else found.work_state,
        thread_id=_given(found.thread_id),
    )
