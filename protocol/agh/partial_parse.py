"""Partial parsing of envelopes that failed validation, to answer their senders (spec section 5).

The bytes are decoded once: `readable` gives the document to the other functions.
"""

from collections.abc import Callable, Collection
from typing import Any, Final

import msgspec

from aghbus.protocol.agh.envelope import KINDS, OPENING_KINDS, Envelope, decode_document
from aghbus.protocol.agh.errors import Malformed, ProtocolError, Undecodable
from aghbus.protocol.agh.identifiers import (
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
from aghbus.protocol.agh.receipt_target import ReceiptTarget

_FIELDS: Final[dict[str, tuple[str, Callable[[str], bool]]]] = {
    "id": ("id", is_message_id),
    "workspace_id": ("workspace_id", is_workspace_id),
    "channel": ("channel", is_channel),
    "sender": ("from", is_peer),
    "work_id": ("work_id", is_work_id),
}


def readable(raw: bytes, error: ProtocolError) -> dict[str, Any] | None:
    """The document of an envelope that was refused with `error`: decoded already, or decoded now; None if it cannot be."""
    if error.document is not None or isinstance(error, Undecodable):
        return error.document
    try:
        return decode_document(raw)
    except Malformed:
        return None


def partial_parse(
    document: dict[str, Any] | None, self_id: str, channels: frozenset[tuple[str, str]]
) -> ReceiptTarget | None:
    """The target of an automatic receipt for a document that failed validation; None if it gets no answer.

    It gets one only if it is a say, a capability or an unknown kind, directed at `us` in a joined channel, with a work_id
    and with valid id, sender and container. Messages in opaque rooms get no answer, because the members of the room
    are not known.
    """
    kind = None if document is None else document.get("kind")
    if document is None or not isinstance(kind, str) or (kind in KINDS and kind not in OPENING_KINDS):
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


class Origin(msgspec.Struct, frozen=True):
    """Id and sender of a refused message, each empty if it is not valid; `private`: it is from a direct room of other peers.

    The content of a private one is not stored (spec section 4). It was received on a wrong subject, or by an observer.
    """

    message_id: str
    sender: str
    private: bool


def origin_of(envelope: Envelope, own_ids: Collection[str]) -> Origin:
    """The origin of a valid envelope, received by the peer with these ids."""
    return Origin(envelope.id, envelope.sender, envelope.surface == "direct" and envelope.to not in own_ids)


def origin_in(document: dict[str, Any] | None, subject: str, own_ids: Collection[str]) -> Origin:
    """The origin of a document that failed validation, or of bytes that cannot be decoded, received on `subject`."""
    if document is None:
        parts = subject.split(".")
        return Origin("", "", parts[-2:-1] == ["peer"] and parts[-1] not in map(route_token, own_ids))
    direct = document.get("surface") == "direct" or document.get("direct_id") is not None
    to = document.get("to")
    return Origin(*identity(document), direct and not (isinstance(to, str) and to in own_ids))


def identity(document: dict[str, Any] | None) -> tuple[str, str]:
    """`(id, from)` of a refused document, each empty if it is not valid."""
    message_id, sender = (None, None) if document is None else (document.get("id"), document.get("from"))
    valid_id = message_id if isinstance(message_id, str) and is_message_id(message_id) else ""
    return valid_id, sender if isinstance(sender, str) and is_peer(sender) else ""


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
