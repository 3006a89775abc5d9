"""Signed envelopes for the tests of proofs."""

import copy
from typing import Any, Final

from aghbus.protocol.agh.trust.keys import SigningKey, handle_of
from aghbus.protocol.agh.trust.proof import sign
from tests.support.wire import BODIES, CARD, NOW, wire

KEY: Final = SigningKey(bytes(range(32)))
OTHER: Final = SigningKey(bytes(32))
OPS: Final = handle_of("ops", KEY.public)
KINDS: Final = sorted(BODIES)
Document = dict[str, Any]
Path = tuple[str | int, ...]


def document_of(kind: str) -> Document:
    """A wire document of `kind` from the key's handle, with every optional field that the kind takes, unsigned."""
    changes: Document = {"sender": OPS, "trace_id": "t", "causation_id": "c", "reply_to": "r", "expires_at": NOW + 60}
    changes["ext"] = {"acme.x": {"deep": [1, {"a": None}]}, "empty": [], "half": 0.5}
    changes["later"] = "kept"
    if kind == "greet":
        changes["body"] = {"peer_card": {**CARD, "peer_id": OPS}}
    return wire(kind, **changes)


def signed(kind: str = "say", **changes: Any) -> Document:
    return sign({**document_of(kind), **changes}, KEY)


def at(value: Any, path: Path) -> Any:
    for step in path:
        value = value[step]
    return value


def without(document: Document, path: Path) -> Document:
    changed = copy.deepcopy(document)
    del at(changed, path[:-1])[path[-1]]
    return changed


def other_value(value: Any) -> Any:
    """Something like `value` that is not it: the smallest change of its own type."""
    match value:
        case bool():
            return not value
        case int() | float():
            return value + 1
        case str():
            return value[:-1] + chr(ord(value[-1]) ^ 1) if value else "x"
        case None:
            return ""
        case list():
            return [*value, None]
        case dict():
            return {**value, "added": None}
    raise AssertionError(value)
