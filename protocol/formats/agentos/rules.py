"""The validation rules of the AgentOS schema, its interface and its error table, as findings.

Rule 1 names seven required fields; the interface has more that are not optional. One of the seven missing is an error, one of
the others a warning. A wrong type or enum value is always an error.
"""

import re
from collections.abc import Iterator
from typing import Any, Final, TypeGuard

import msgspec

from aghbus.protocol.base.text import shorten
from aghbus.protocol.formats.agentos.message import ENCODINGS, FORMATS, LANGUAGES, PRIORITIES, TYPES, VERSIONS
from aghbus.protocol.formats.common import error, warning
from aghbus.protocol.formats.model import Finding
from aghbus.protocol.formats.strict_json import pointer
from aghbus.protocol.formats.time_zones import TIME_ZONES
from aghbus.protocol.formats.timestamps import read_timestamp, skew

RECOVERABLE: Final[dict[str, bool]] = {
    "DATA_UNAVAILABLE": True,
    "SOURCE_ERROR": True,
    "VALIDATION_FAILED": False,
    "TIMEOUT": True,
    "FABRICATION_DETECTED": False,
    "SAFETY_VIOLATION": False,
    "UNAUTHORIZED": False,
}
"""The schema's error codes and whether they are recoverable."""

MAX_CONFIDENCE: Final = 100  # rule 6
_SHOWN: Final = 40  # characters of a value quoted in a finding

_UUID: Final = re.compile(
    r"(?:msg-)?(?i:[0-9a-f]{8}-[0-9a-f]{4}-([0-9a-f])[0-9a-f]{3}-([0-9a-f])[0-9a-f]{3}-[0-9a-f]{12})"
)
_TYPES: Final[dict[str, type | tuple[type, ...]]] = {
    "string": str,
    "object": dict,
    "array": list,
    "number": (int, float),
    "value": object,
}
_ABSENT: Final = object()


class _Field(msgspec.Struct, frozen=True):
    """A member of the interface. `need`: required (rule 1), expected (not optional in the interface) or optional."""

    keys: tuple[str, ...]
    type: str
    need: str
    words: tuple[str, ...] = ()


_FIELDS: Final = (
    _Field(("id",), "string", "required"),
    _Field(("timestamp",), "string", "required"),
    _Field(("version",), "string", "required", VERSIONS),
    _Field(("from",), "object", "required"),
    _Field(("from", "agentId"), "string", "required"),
    _Field(("from", "instanceId"), "string", "required"),
    _Field(("to",), "object", "required"),
    _Field(("to", "agentId"), "string", "required"),
    _Field(("to", "instanceId"), "string", "required"),
    _Field(("replyTo",), "string", "optional"),
    _Field(("type",), "string", "required", TYPES),
    _Field(("payload",), "object", "required"),
    _Field(("payload", "content"), "value", "expected"),
    _Field(("payload", "format"), "string", "expected", FORMATS),
    _Field(("payload", "language"), "string", "expected", LANGUAGES),
    _Field(("payload", "encoding"), "string", "expected", ENCODINGS),
    _Field(("context",), "object", "expected"),
    _Field(("context", "sessionId"), "string", "expected"),
    _Field(("context", "userId"), "string", "optional"),
    _Field(("context", "requestId"), "string", "expected"),
    _Field(("context", "conversationId"), "string", "optional"),
    _Field(("context", "locale"), "string", "expected"),
    _Field(("context", "timezone"), "string", "expected"),
    _Field(("evidence",), "object", "expected"),
    _Field(("evidence", "sources"), "array", "expected"),
    _Field(("evidence", "confidence"), "number", "expected"),
    _Field(("evidence", "citations"), "array", "expected"),
    _Field(("evidence", "provenance"), "array", "expected"),
    _Field(("priority",), "string", "expected", PRIORITIES),
    _Field(("ttl",), "number", "expected"),
    _Field(("retryCount",), "number", "expected"),
)


def check(
    message: Any, now: int, *, strict: bool = False, manifest: frozenset[str] | None = None
) -> tuple[Finding, ...]:
    """The findings of a message at Unix second `now`; without an error, `message.typed` accepts it.

    `strict`: a UUID of another version than 4 is an error. `manifest`: the allowed agent ids; None allows all.
    """
    if not isinstance(message, dict):
        return (error("", "type", "must be an object"),)
    return (
        *(finding for field in _FIELDS for finding in _field(message, field)),
        *_identifier(message.get("id"), strict),
        *_moment(message.get("timestamp"), now),
        *_check_manifest(message, manifest),
        *_evidence(message),
        *_numbers(message),
        *_error_content(message),
        *_time_zone(message.get("context")),
    )


def _time_zone(context: Any) -> Iterator[Finding]:
    name = context.get("timezone") if isinstance(context, dict) else None
    if isinstance(name, str) and name not in TIME_ZONES:
        yield warning("/context/timezone", "timezone", f"{_shown(name)} is no name of the IANA time zone database")


def _field(message: dict[str, Any], field: _Field) -> Iterator[Finding]:
    """Rule 1 and the interface, for one member."""
    parent: Any = message
    for key in field.keys[:-1]:
        parent = parent.get(key) if isinstance(parent, dict) else None
    if not isinstance(parent, dict):
        return  # reported for the parent
    value = parent.get(field.keys[-1], _ABSENT)
    path = pointer(*field.keys)
    if value is _ABSENT or (value is None and field.need == "required"):
        if field.need == "required":
            yield error(path, "required", "is required")
        elif field.need == "expected" and not (field.keys == ("evidence",) and message.get("type") == "response"):
            yield warning(path, "missing", "is not optional in the interface")
    elif value is None and field.need == "optional":
        yield warning(path, "type", "is null: omit an optional member")
    elif not isinstance(value, _TYPES[field.type]) or (field.type == "number" and isinstance(value, bool)):
        yield error(path, "type", f"must be of type {field.type}")
    elif field.words and value not in field.words:
        yield error(path, "enum", f"is {_shown(value)}, must be one of {', '.join(field.words)}")


def _identifier(value: Any, strict: bool) -> Iterator[Finding]:
    """Rule 2; `msg-` may stand before the UUID, as in the schema's own examples."""
    if not isinstance(value, str):
        return
    match = _UUID.fullmatch(value)
    if match is None:
        yield error("/id", "uuid", f"{_shown(value)} is not a UUID")
    elif match[1] != "4" or match[2] not in "89abAB":
        made = error if strict else warning
        yield made("/id", "uuid_version", "is a UUID, but not of version 4")


def _moment(value: Any, now: int) -> Iterator[Finding]:
    """Rule 3, and the sender's clock."""
    if not isinstance(value, str):
        return
    stamp = read_timestamp(value)
    if stamp is None:
        yield error("/timestamp", "timestamp", f"{_shown(value)} is not an ISO 8601 date and time")
    elif stamp.seconds is None:
        yield error("/timestamp", "timestamp", f"{_shown(value)} has no time zone")
    else:
        yield from skew(stamp, now, "/timestamp")


def _check_manifest(message: dict[str, Any], manifest: frozenset[str] | None) -> Iterator[Finding]:
    """Rule 4."""
    if manifest is None:
        return
    for end in ("from", "to"):
        identity = message.get(end)
        name = identity.get("agentId") if isinstance(identity, dict) else None
        if isinstance(name, str) and name not in manifest:
            yield error(f"/{end}/agentId", "manifest", f"{_shown(name)} is not in the manifest")


def _evidence(message: dict[str, Any]) -> Iterator[Finding]:
    """Rules 5 and 6."""
    evidence = message.get("evidence")
    if message.get("type") == "response":
        if "evidence" not in message:
            yield error("/evidence", "evidence_required", "is required on a response")
        elif isinstance(evidence, dict) and not any(
            evidence.get(name) for name in ("sources", "citations", "provenance")
        ):
            yield warning("/evidence", "evidence_empty", "has no source, citation or provenance")
    confidence = evidence.get("confidence") if isinstance(evidence, dict) else None
    if _is_number(confidence) and not 0 <= confidence <= MAX_CONFIDENCE:
        yield error("/evidence/confidence", "confidence_range", f"must be from 0 to {MAX_CONFIDENCE}")


def _numbers(message: dict[str, Any]) -> Iterator[Finding]:
    """`ttl` must be positive, `retryCount` a count."""
    ttl, count = message.get("ttl"), message.get("retryCount")
    if _is_number(ttl) and ttl <= 0:
        yield error("/ttl", "ttl", "must be a number of seconds above 0")
    if _is_number(count) and (count < 0 or count != int(count)):
        yield warning("/retryCount", "retry_count", "is not a count")


def _error_content(message: dict[str, Any]) -> Iterator[Finding]:
    """The error table and the form of the schema's error example. `content` may be any value, so these are warnings."""
    payload = message.get("payload")
    if message.get("type") != "error" or not isinstance(payload, dict):
        return
    content = payload.get("content")
    if not isinstance(content, dict):
        yield warning("/payload/content", "error_content", "of an error should be an object with code and message")
        return
    for name, expected, word in (("code", str, "string"), ("message", str, "string"), ("recoverable", bool, "boolean")):
        if not isinstance(content.get(name), expected):
            yield warning(f"/payload/content/{name}", "error_content", f"of an error should be a {word}")
    code, recoverable = content.get("code"), content.get("recoverable")
    if isinstance(code, str) and code not in RECOVERABLE:
        yield warning("/payload/content/code", "error_code", f"{_shown(code)} is not in the error table")
    elif isinstance(code, str) and isinstance(recoverable, bool) and recoverable != RECOVERABLE[code]:
        says = "recoverable" if RECOVERABLE[code] else "not recoverable"
        yield warning("/payload/content/recoverable", "recoverable", f"{code} is {says} in the error table")


def _is_number(value: Any) -> TypeGuard[int | float]:
    return isinstance(value, int | float) and not isinstance(value, bool)


def _shown(value: Any) -> str:
    return repr(shorten(value, _SHOWN) if isinstance(value, str) else value)
