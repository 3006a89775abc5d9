"""What a model gets to read of works, messages and peers. Everything that a peer wrote is fenced, and an answer is bounded:
what does not fit is left out, and a note says so."""

import re
from collections.abc import Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from aghbus.daemon.mcp.fence import MAX_BYTES, MAX_CHARACTERS, fence, is_id, line, name, plain
from aghbus.daemon.mcp.models import (
    HistoryItem,
    InboxMessage,
    InboxOutput,
    PeerOutput,
    PeersOutput,
    SentOutput,
    ToolResult,
    WorkOutput,
    WorksOutput,
)
from aghbus.daemon.mcp.rpc import Object
from aghbus.protocol.agh.decoding import decode_json
from aghbus.protocol.api.inbox import InboxItem, InboxResponse
from aghbus.protocol.api.messages import SendResponse
from aghbus.protocol.api.peers import Peer, WhoisMatch
from aghbus.protocol.api.works import HistoryEntry, WaitReason, Work, WorkResponse, WorksResponse

MAX_ANSWER: Final = 65_536
"""Bytes of the items of an answer, as JSON."""
MAX_ITEM: Final = MAX_BYTES + 8_192
"""Bytes of one item: its text, ids, names and a reason."""
_MAX_CAPABILITIES: Final = 16  # of one peer outside of its fence
_BRIEF: Final = 1_000  # characters of a text where many are listed

_NAMES: Final = re.compile(r"[A-Za-z0-9._:/@+-]+").findall

_T = TypeVar("_T", bound=ToolResult)


def result_of(output: ToolResult) -> Object:
    """The result of a tool: the object, and the same as text for hosts that show only text."""
    content = msgspec.to_builtins(output)
    return {"content": [{"type": "text", "text": msgspec.json.encode(content).decode()}], "structuredContent": content}


def fitting(items: Iterable[_T]) -> list[_T]:
    """The first items, as many as fit into one answer."""
    found: list[_T] = []
    room = MAX_ANSWER
    for item in items:
        room -= len(msgspec.json.encode(item))
        if room < 0:
            break
        found.append(item)
    return found


def peers(found: Sequence[Peer | WhoisMatch]) -> PeersOutput:
    """Peers of presence, or answers to a whois."""
    shown = fitting(map(_peer, found))
    rest = len(found) - len(shown)
    return PeersOutput(peers=shown, note=f"{rest} more peers are left out: ask by capability." if rest else UNSET)


def _peer(found: Peer | WhoisMatch) -> PeerOutput:
    card: Mapping[str, Any] = found.card
    words = [each for each in card["capabilities"] if is_id(each)]
    prose = [each for each in card["capabilities"] if not is_id(each)] + words[_MAX_CAPABILITIES:]
    more = f"further capabilities: {as_text(prose)}" if prose else None
    about = "\n".join(part for part in (card.get("display_name"), found.summary, more) if part)
    return PeerOutput(
        peer_id=name(found.peer_id),
        presence=found.presence if isinstance(found, Peer) else "active",
        trust=found.trust,
        capabilities=words[:_MAX_CAPABILITIES],
        about=fence(about, sender=found.peer_id, trust=found.trust, limit=_BRIEF) if about else UNSET,
    )


def works(found: WorksResponse) -> WorksOutput:
    """Works as they are now, the latest change first."""
    shown = fitting(_work(each, last=True) for each in found.works)
    more = found.next_before is not None or len(shown) < len(found.works)
    return WorksOutput(works=shown, note="Older works are left out." if more else UNSET)


def work(found: WorkResponse, note: str | None = None) -> WorksOutput:
    """One work with its history, of a long one the newest steps."""
    own = _own(found.work)
    newest = fitting(_step(each, own, found.work.trust) for each in reversed(found.history))
    omitted = found.history_omitted + len(found.history) - len(newest)
    why = None if found.why is None else _why(found.why, found.work)
    notes = [note, f"{omitted} earlier steps are left out." if omitted else None, why]
    return WorksOutput(
        works=[_work(found.work, last=False)],
        history=newest[::-1],
        note=_given(" ".join(part for part in notes if part) or None),
    )


def _why(found: WaitReason, work: Work) -> str:
    """Why a work does not move: what was said in it, and the whole sentence when it has a name that might be one, are fenced."""
    peer = work.target if work.role == "initiator" else work.initiator
    if not all(map(is_id, _NAMES(found.text))):
        said = "\n".join(filter(None, (found.text, found.said)))
        return f"Now:\n{fence(said, sender=peer, trust=work.trust, limit=_BRIEF)}"
    text = f"Now: {plain(found.text, _BRIEF)}"
    return text if found.said is None else f"{text}:\n{fence(found.said, sender=peer, trust=work.trust, limit=_BRIEF)}"


def _own(found: Work) -> str | None:
    """Our peer id in a work; None when we only observe it."""
    return {"initiator": found.initiator, "target": found.target}.get(found.role)


def _work(found: Work, *, last: bool) -> WorkOutput:
    """A work; with its `last` message and result, which are the target's words."""
    own = _own(found)

    def said(text: str | None, author: str) -> str | UnsetType:
        return UNSET if text is None else _said(text, author, own, found.trust, _BRIEF)

    return WorkOutput(
        work_id=name(found.work_id),
        state=found.state,
        role=found.role,
        peer=name(found.target if found.role == "initiator" else found.initiator),
        trust=found.trust,
        task=_said(found.text, found.initiator, own, found.trust),
        message=said(found.message, found.target) if last else UNSET,
        result=said(as_text(found.result), found.target) if last else UNSET,
    )


def question(found: HistoryEntry, work: Work) -> str:
    """The text of a question, for a person."""
    return fence(_step_text(found) or "(no text)", sender=found.actor, trust=work.trust)


def _step(found: HistoryEntry, own: str | None, trust: str) -> HistoryItem:
    text = _step_text(found)
    return HistoryItem(
        sender=name(found.actor),
        event=line(found.event),
        state=found.after,
        text=_said(text, found.actor, own, trust) if text else UNSET,
    )


def _step_text(found: HistoryEntry) -> str:
    parts = [found.message, found.reason, *map(as_text, (found.result, found.artifacts))]
    return "\n".join(part for part in parts if part)


def _said(text: str, author: str, own: str | None, trust: str, limit: int = MAX_CHARACTERS) -> str:
    """What `author` wrote: fenced unless it is our own."""
    return plain(text, limit) if author == own else fence(text, sender=author, trust=trust, limit=limit)


def _given(value: str | None) -> str | UnsetType:
    return UNSET if value is None else value


def _named(value: str | None) -> str | UnsetType:
    return UNSET if value is None else name(value)


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
        admitted=item.lane != "other",
        text=fence(text, sender=found.sender, trust=found.trust),
        work_id=_named(found.work_id),
        work_state=UNSET if item.work_state is None else item.work_state,
        thread_id=_named(found.thread_id),
        note=_reason(item),
    )


def _reason(item: InboxItem) -> str | UnsetType:
    """Why a message came back: one of our own because it was given up, perhaps in the words of its receiver."""
    found = item.message
    if item.last_error is None or found.direction != "out":
        return UNSET if item.last_error is None else line(item.last_error)
    return "Your own message: " + fence(item.last_error, sender=found.to or "the bus", trust="unverified", limit=_BRIEF)


def inbox(page: InboxResponse, *, others: bool) -> InboxOutput:
    """Messages that nobody leases by reading them; `others`: they are not only those of contacts."""
    shown = fitting(map(message, page.items))
    left = 0 if others else page.others
    waiting = page.counts.get("ready", 0) + page.counts.get("leased", 0) - left
    return InboxOutput(messages=shown, waiting=max(0, waiting - len(shown)), others=left, lease_seconds=0)


def _body_text(kind: str, envelope: bytes) -> str:
    """The text of a say, and anything else that a body has as JSON."""
    body = decode_json(envelope).get("body")
    if kind != "say" or not isinstance(body, dict):
        return as_text(body) or ""
    rest = {key: value for key, value in body.items() if key != "text" and (key, value) != ("intent", "request")}
    parts: Sequence[str | None] = (str(body.get("text", "")), as_text(rest or None))
    return "\n".join(part for part in parts if part)


def as_text(value: object) -> str | None:
    """A JSON value as text; None for None."""
    return None if value is None else msgspec.json.encode(value).decode()


def sent(found: SendResponse) -> SentOutput:
    """A committed message of ours."""
    return SentOutput(
        message_id=name(found.id),
        to=_named(found.to),
        work_id=_named(found.work_id),
        work_state=UNSET if found.work_state is None else found.work_state,
        thread_id=_named(found.thread_id),
    )
