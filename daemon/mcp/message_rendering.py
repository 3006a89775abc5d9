"""What a model gets to read of messages: as `rendering`, which has works and peers."""

from collections.abc import Callable
from typing import Any, Final

from msgspec import UNSET, UnsetType

from aghbus.daemon.mcp.fence import MAX_CHARACTERS, Place, fence, is_id, line, name, plain
from aghbus.daemon.mcp.models import InboxMessage, InboxOutput, SentOutput
from aghbus.daemon.mcp.rendering import BRIEF, ago, as_text, fitting, stamp
from aghbus.protocol.agh.decoding import decode_json
from aghbus.protocol.api.inbox import InboxItem, InboxResponse
from aghbus.protocol.api.messages import Message, MessagesResponse, SendResponse
from aghbus.protocol.base.errors import InvalidRequest

_TEXTS: Final = ("message", "detail", "text")
_BEFORE: Final = 300  # characters before a hit
_OF_WORKS: Final = {"trace": {"state"}, "receipt": {"status", "for_id"}}  # what `kind` says already


def message(item: InboxItem, now_ms: int) -> InboxMessage:
    """A leased message."""
    found = _shown(item.message, now_ms, admitted=item.lane != "other")
    found.lease = item.lease or UNSET
    found.work_state = UNSET if item.work_state is None else item.work_state
    found.note = _reason(item)
    return found


def piece(found: Message, start: int, now_ms: int, *, admitted: bool) -> InboxOutput:
    """A stored message from character `start` of its text. Raises InvalidRequest beyond its end."""
    text = _text_of(found)
    if start and start >= len(text):
        raise InvalidRequest(f"from: the text of message {found.seq} has {len(text)} characters")
    return InboxOutput(messages=[_shown(found, now_ms, start, admitted=admitted)], now=stamp(now_ms))


def text(found: Message, start: int = 0, limit: int = MAX_CHARACTERS) -> str:
    """What a stored message says, from character `start` on: fenced unless it is our own."""
    said, place = _text_of(found)[start:], Place(found.seq, start)
    if found.direction == "out":
        return plain(said, limit, place)
    return fence(said, sender=found.sender, trust=found.trust, limit=limit, place=place)


def hits(
    page: MessagesResponse, text: str, now_ms: int, admitted: Callable[[Message], bool], *, others: bool
) -> InboxOutput:
    """Messages that have `text`, the newest first, each from shortly before it; unless `others`, of those that are `admitted`."""
    chosen = [(each, admitted(each)) for each in reversed(page.messages)]
    shown = fitting(_around(each, text, now_ms, known) for each, known in chosen if known or others)
    before = page.next_before
    note = (
        UNSET
        if before is None
        else f"Earlier messages were not searched: `inbox` with the same text and before={before}."
    )
    return InboxOutput(messages=shown, now=stamp(now_ms), note=note)


def _around(found: Message, text: str, now_ms: int, admitted: bool) -> InboxMessage:
    start = max(0, _text_of(found).lower().find(text.lower()) - _BEFORE)
    message = _shown(found, now_ms, start, BRIEF, admitted=admitted)
    message.note = f"from character {start}" if start else UNSET
    return message


def _shown(found: Message, now_ms: int, start: int = 0, limit: int = MAX_CHARACTERS, *, admitted: bool) -> InboxMessage:
    return InboxMessage(
        seq=found.seq,
        ago=ago(now_ms, found.received_ms),
        kind=_kind(found),
        sender=name(found.sender),
        trust=found.trust,
        admitted=admitted,
        text=text(found, start, limit),
        work_id=_named(found.work_id),
        thread_id=_named(found.thread_id),
    )


def _reason(item: InboxItem) -> str | UnsetType:
    """Why a message came back: one of our own because it was given up, perhaps in the words of its receiver."""
    found = item.message
    if item.last_error is None or found.direction != "out":
        return UNSET if item.last_error is None else line(item.last_error)
    return "Your own message: " + fence(item.last_error, sender=found.to or "the bus", trust="unverified", limit=BRIEF)


def inbox(page: InboxResponse, now_ms: int, *, others: bool) -> InboxOutput:
    """Messages that nobody leases by reading them; `others`: they are not only those of contacts."""
    shown = fitting(message(each, now_ms) for each in page.items)
    left = 0 if others else page.others
    waiting = page.counts.get("ready", 0) + page.counts.get("leased", 0) - left
    return InboxOutput(messages=shown, now=stamp(now_ms), waiting=max(0, waiting - len(shown)), others=left)


def _body(found: Message) -> Any:
    return None if found.damaged else decode_json(bytes(found.envelope)).get("body")


def _kind(found: Message) -> str:
    """The kind; of a trace or a receipt with what it says of the work, as in a history."""
    body = _body(found)
    state = (body.get("state") or body.get("status")) if isinstance(body, dict) else None
    return f"{found.kind}:{state}" if isinstance(state, str) and is_id(state) and found.kind != "say" else found.kind


def _text_of(found: Message) -> str:
    """All that a message says: what the history of a work has of it (`rendering.parts`), in the same order, then the rest."""
    if found.damaged:
        return "[the stored message is damaged]"
    body = _body(found)
    if not isinstance(body, dict):
        return as_text(body) or ""
    said = next((key for key in _TEXTS if isinstance(body.get(key), str)), "")
    reason = "reason_code" if isinstance(body.get("reason_code"), str) else ""
    told = {said, reason, "result", "artifact_refs", *_OF_WORKS.get(found.kind, ())}
    rest = {key: value for key, value in body.items() if key not in told and (key, value) != ("intent", "request")}
    parts = (
        body.get(said),
        body.get(reason),
        *map(as_text, (body.get("result"), body.get("artifact_refs"), rest or None)),
    )
    return "\n".join(part for part in parts if part)


def _named(value: str | None) -> str | UnsetType:
    return UNSET if value is None else name(value)


def sent(found: SendResponse, delivery: str, note: str | None) -> SentOutput:
    """A committed message of ours, with its delivery state."""
    return SentOutput(
        message_id=name(found.id),
        delivery=delivery,
        to=_named(found.to),
        work_id=_named(found.work_id),
        work_state=UNSET if found.work_state is None else found.work_state,
        thread_id=_named(found.thread_id),
        note=UNSET if note is None else note,
    )
