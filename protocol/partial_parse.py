"""Partial parsing of envelopes that failed validation, to answer their senders (spec section 5)."""

from collections.abc import Callable
from typing import Any, Final

from aghbus.protocol.envelope import KINDS, OPENING_KINDS, decode_document
from aghbus.protocol.errors import Malformed
from aghbus.protocol.identifiers import (
    direct_id,
    is_channel,
    is_direct_id,
    is_message_id,
    is_peer,
    is_thread_id,
    is_work_id,
    is_workspace_id,
    route_token,
)
from aghbus.protocol.receive import ReceiptTarget

_FIELDS: Final[dict[str, tuple[str, Callable[[str], bool]]]] = {
    "id": ("id", is_message_id),
    "workspace_id": ("workspace_id", is_workspace_id),
    "channel": ("channel", is_channel),
    "sender": ("from", is_peer),
    "work_id": ("work_id", is_work_id),
}


def partial_parse(raw: bytes, self_id: str, channels: frozenset[tuple[str, str]]) -> ReceiptTarget | None:
    """The target of an automatic receipt for bytes that failed validation; None if they get no answer.

    They get an answer only if they are a say, a capability or an unknown kind, directed at `us` in a joined channel, with
    a work_id and with valid id, sender and container. Messages in opaque rooms get no answer, because the members of the room
    are not known.
    """
    try:
        document = decode_document(raw)
    except Malformed:
        return None
    kind = document.get("kind")
    if not isinstance(kind, str) or (kind in KINDS and kind not in OPENING_KINDS):
        return None
    fields = _valid_fields(document)
    if fields is None or document.get("to") != self_id or (fields["workspace_id"], fields["channel"]) not in channels:
        return None
    container = _container(document, self_id)
    if container is None:
        return None
    trace_id = document.get("trace_id")
    return ReceiptTarget(
        **fields,
        kind=kind,
        surface=container[0],
        container=container[1],
        trace_id=trace_id if isinstance(trace_id, str) and is_message_id(trace_id) else None,
    )


def identity(raw: bytes) -> tuple[str, str]:
    """`(id, from)` of a refused envelope, each empty if it is not valid: for the list of quarantined messages."""
    try:
        document = decode_document(raw)
    except Malformed:
        return "", ""
    message_id, sender = document.get("id"), document.get("from")
    valid_id = message_id if isinstance(message_id, str) and is_message_id(message_id) else ""
    return valid_id, sender if isinstance(sender, str) and is_peer(sender) else ""


def is_private_to_others(raw: bytes, subject: str, self_id: str) -> bool:
    """Whether refused bytes may come from a direct room of other peers: these are not stored (spec section 4).

    They are received on a wrong subject, or by an observer.
    """
    parts = subject.split(".")
    between_others = parts[-2:-1] == ["peer"] and parts[-1] != route_token(self_id)
    try:
        document = decode_document(raw)
    except Malformed:
        return between_others
    direct = document.get("surface") == "direct" or document.get("direct_id") is not None
    return direct and document.get("to") != self_id


def _valid_fields(document: dict[str, Any]) -> dict[str, Any] | None:
    fields: dict[str, Any] = {}
    for name, (key, rule) in _FIELDS.items():
        value = document.get(key)
        if not isinstance(value, str) or not rule(value):
            return None
        fields[name] = value
    return fields


def _container(document: dict[str, Any], self_id: str) -> tuple[str, str] | None:
    thread, direct = document.get("thread_id"), document.get("direct_id")
    if document.get("surface") == "thread" and isinstance(thread, str) and is_thread_id(thread) and direct is None:
        return "thread", thread
    if document.get("surface") == "direct" and isinstance(direct, str) and is_direct_id(direct) and thread is None:
        sender = document["from"]
        if sender != self_id and direct == direct_id(document["workspace_id"], document["channel"], sender, self_id):
            return "direct", direct
    return None
