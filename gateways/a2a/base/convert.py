"""JSON of A2A and the SDK's types, which are those of Protocol Buffers."""

from __future__ import annotations

from typing import Any, TypeVar

from google.protobuf.json_format import MessageToDict, ParseDict

from aghbus.protocol.formats.a2a.parts import Json

M = TypeVar("M")


def as_json(message: Any) -> Json:
    """A message of the SDK as JSON."""
    found: Json = MessageToDict(message)
    return found


def as_message(content: Json, form: type[M]) -> M:
    """JSON as a message of the SDK."""
    made = form()
    ParseDict(content, made, ignore_unknown_fields=True)
    return made
