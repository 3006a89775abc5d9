"""The message of the Sentient platform: its typed form, and the Required tables of its specification (seed 000, v1.6.0)."""

from collections.abc import Iterator, Mapping
from itertools import islice
from typing import Any, Final

import msgspec

from aghbus.protocol.base.text import is_blank, shorten
from aghbus.protocol.formats.common import error
from aghbus.protocol.formats.model import Finding
from aghbus.protocol.formats.strict_json import pointer
from aghbus.protocol.formats.timestamps import read_timestamp

NAME: Final = "sentient"
USER: Final = "user"  # seed, Core Fields: as input source not an agent; as next agent the receiver of the final report

STATUSES: Final = ("success", "partial", "failed", "pending")  # seed, Status Codes
AGENT_TYPES: Final = ("governance", "operational", "executional")  # seed, Core Fields
ERROR_CODES: Final = (  # seed, Error Codes
    "OUT_OF_SCOPE",
    "INVALID_INPUT",
    "PROCESSING_ERROR",
    "TIMEOUT",
    "DEPENDENCY_ERROR",
    "VALIDATION_ERROR",
)
STORAGE_STATUSES: Final = ("pending", "stored", "failed")  # seed, Message Format Specification
DERIVED_STATUSES: Final = ("pending", "created", "failed")
MAX_FINDINGS: Final = 100  # per group of rules


class Field(msgspec.Struct, frozen=True):
    """The rule for a member: JSON `types` (empty: any), nullable, `choices` of a string, minimum of an integer."""

    types: tuple[str, ...]
    nullable: bool = True
    choices: tuple[str, ...] = ()
    least: int | None = None


# adapters.md, sentient: null is legal except in these identifiers, the status and the arrays.
_ID: Final = Field(("string",), nullable=False)
_TEXT: Final = Field(("string",))
_COUNT: Final = Field(("integer",), least=0)
_ARRAY: Final = Field(("array",), nullable=False)
_SEQUENCE: Final = Field(("integer",), least=1)

FIELDS: Final[Mapping[str, Mapping[str, Field]]] = {
    "": {"message_id": _ID},
    "timestamp": {"executed_at": _ID, "timezone": _ID},
    "agent": {"name": _ID, "type": Field(("string",), choices=AGENT_TYPES)},
    "input": {"source": _TEXT, "content": Field(())},
    "output": {"content": Field(("string", "array", "object")), "content_type": _TEXT},
    "next_agent": {"name": _TEXT, "reason": _TEXT},
    "status": {"code": Field(("string",), nullable=False, choices=STATUSES), "message": _TEXT},
    "error": {
        "has_error": Field(("boolean",), nullable=False),
        "error_code": Field(("string",), choices=ERROR_CODES),
        "error_message": _TEXT,
        "retry_count": _COUNT,
        "recoverable": Field(("boolean",)),
    },
    "metadata": {
        "session_id": _ID,
        "request_id": _ID,
        "sequence_number": Field(("integer",), nullable=False, least=1),
        "parent_message_id": _TEXT,
    },
    "resources": {"source_refs": _ARRAY, "storage_refs": _ARRAY, "derived_refs": _ARRAY},
    "audit": {"compliance_notes": _TEXT, "governance_files_consulted": _ARRAY, "reasoning": _TEXT},
}
"""Group -> member -> rule: the Required tables of the seed; the empty group is the top level."""

REF_FIELDS: Final[Mapping[str, Mapping[str, Field]]] = {
    "source_refs": {
        "ref_id": _ID,
        "url": _TEXT,
        "platform": _TEXT,
        "media_type": _TEXT,
        "provided_by": _TEXT,
        "extracted_at_sequence": _SEQUENCE,
    },
    "storage_refs": {
        "ref_id": _ID,
        "source_ref_id": _TEXT,
        "storage_uri": _TEXT,
        "storage_backend": _TEXT,
        "media_type": _TEXT,
        "created_at_sequence": _SEQUENCE,
        "status": Field(("string",), choices=STORAGE_STATUSES),
    },
    "derived_refs": {
        "ref_id": _ID,
        "parent_ref_id": _TEXT,
        "storage_uri": _TEXT,
        "asset_type": _TEXT,
        "capability_id": _TEXT,
        "created_at_sequence": _SEQUENCE,
        "status": Field(("string",), choices=DERIVED_STATUSES),
    },
}
"""Array of `resources` -> member of each entry -> rule (seed, Resources Fields)."""


class ExecutionTime(msgspec.Struct, frozen=True):
    """When the agent executed (ISO 8601)."""

    executed_at: str
    timezone: str


class Agent(msgspec.Struct, frozen=True):
    """The agent that produced the message; `type` is its core layer."""

    name: str
    type: str | None


class AgentInput(msgspec.Struct, frozen=True):
    """The input of the agent, from the user or from the agent `source`."""

    source: str | None
    content: Any


class AgentOutput(msgspec.Struct, frozen=True):
    """The output of the agent: text, array, object or null."""

    content: Any
    content_type: str | None


class NextAgent(msgspec.Struct, frozen=True):
    """The next agent's name, `user`, or None when the chain ends."""

    name: str | None
    reason: str | None


class MessageStatus(msgspec.Struct, frozen=True):
    """One of STATUSES, and a readable message."""

    code: str
    message: str | None


class ErrorInfo(msgspec.Struct, frozen=True):
    """The seed's `error` group; `error_code` is one of ERROR_CODES."""

    has_error: bool
    error_code: str | None
    error_message: str | None
    retry_count: int | None
    recoverable: bool | None


class Metadata(msgspec.Struct, frozen=True):
    """Position in the chain: `sequence_number` counts from 1, `parent_message_id` is None for the first."""

    session_id: str
    request_id: str
    sequence_number: int
    parent_message_id: str | None


class SourceRef(msgspec.Struct, frozen=True):
    """A URL or file of the user's request, `src_N`."""

    ref_id: str
    url: str | None
    media_type: str | None


class StorageRef(msgspec.Struct, frozen=True):
    """The location of acquired content, `store_N`."""

    ref_id: str
    source_ref_id: str | None
    storage_uri: str | None
    storage_backend: str | None
    media_type: str | None
    status: str | None


class DerivedRef(msgspec.Struct, frozen=True):
    """An asset made from stored content, `derived_N`."""

    ref_id: str
    parent_ref_id: str | None
    storage_uri: str | None
    asset_type: str | None
    capability_id: str | None
    status: str | None


class RefLists(msgspec.Struct, frozen=True):
    """The three lists of refs."""

    source_refs: tuple[SourceRef, ...] = ()
    storage_refs: tuple[StorageRef, ...] = ()
    derived_refs: tuple[DerivedRef, ...] = ()


class AuditNotes(msgspec.Struct, frozen=True):
    """The agent's statements about its compliance and reasoning."""

    compliance_notes: str | None
    governance_files_consulted: tuple[str, ...]
    reasoning: str | None


class SentientMessage(msgspec.Struct, frozen=True):
    """The members of a valid message that the adapter reads. The JSON value itself is sent, with all members."""

    message_id: str
    timestamp: ExecutionTime
    agent: Agent
    input: AgentInput
    output: AgentOutput
    next_agent: NextAgent
    status: MessageStatus
    error: ErrorInfo
    metadata: Metadata
    resources: RefLists
    audit: AuditNotes


def parse_message(value: Any) -> SentientMessage | None:
    """The typed form of a message; None when `check_shape` finds errors."""
    return None if check_shape(value) else msgspec.convert(value, SentientMessage)


def check_shape(value: Any) -> tuple[Finding, ...]:
    """The violations of the Required tables: presence, types, null, enums, timestamp."""
    if not isinstance(value, dict):
        return (error("", "type", f"must be an object, not {json_type(value)}"),)
    return tuple(islice(_shape(value), MAX_FINDINGS))


def json_type(value: Any) -> str:
    """The name of a JSON value's type."""
    match value:
        case None:
            return "null"
        case bool():
            return "boolean"
        case int():
            return "integer"
        case float():
            return "number"
        case str():
            return "string"
        case list():
            return "array"
    return "object"


def quoted(value: str) -> str:
    """A value of a message for a finding: truncated and quoted."""
    return repr(shorten(value, 200))


def _shape(value: dict[str, Any]) -> Iterator[Finding]:
    for group, fields in FIELDS.items():
        if not group:
            yield from _members(value, fields, ())
        elif group not in value:
            yield error(pointer(group), "required", "is missing")
        elif not isinstance(value[group], dict):
            yield error(pointer(group), "type", f"must be an object, not {json_type(value[group])}")
        else:
            yield from _members(value[group], fields, (group,))
    yield from _timestamp(value)
    yield from _refs(value)
    yield from _files(value)


def _members(value: dict[str, Any], fields: Mapping[str, Field], path: tuple[str | int, ...]) -> Iterator[Finding]:
    for name, field in fields.items():
        if name not in value:
            yield error(pointer(*path, name), "required", "is missing; use null where it does not apply")
        else:
            yield from _member(value[name], field, pointer(*path, name))


def _member(value: Any, field: Field, path: str) -> Iterator[Finding]:
    if not field.types or (value is None and field.nullable):
        return
    kind = json_type(value)
    if value is None:
        yield error(path, "null", "must not be null")
    elif kind not in field.types:
        yield error(path, "type", f"must be {' or '.join(field.types)}, not {kind}")
    elif field.choices and value not in field.choices:
        yield error(path, "enum", f"{quoted(value)} is not one of {', '.join(field.choices)}")
    elif field.least is not None and value < field.least:
        yield error(path, "range", f"must be at least {field.least}")
    elif field is _ID and is_blank(value):
        yield error(path, "blank", "must not be blank")


def _timestamp(value: dict[str, Any]) -> Iterator[Finding]:
    group = value.get("timestamp")
    text = group.get("executed_at") if isinstance(group, dict) else None
    if isinstance(text, str) and not is_blank(text) and read_timestamp(text) is None:
        yield error("/timestamp/executed_at", "timestamp", f"{quoted(text)} is not an ISO 8601 date and time")


def _refs(value: dict[str, Any]) -> Iterator[Finding]:
    resources = value.get("resources")
    if not isinstance(resources, dict):
        return
    for name, fields in REF_FIELDS.items():
        entries = resources.get(name)
        for index, entry in enumerate(entries if isinstance(entries, list) else ()):
            path = ("resources", name, index)
            if isinstance(entry, dict):
                yield from _members(entry, fields, path)
            else:
                yield error(pointer(*path), "type", f"must be an object, not {json_type(entry)}")


def _files(value: dict[str, Any]) -> Iterator[Finding]:
    audit = value.get("audit")
    files = audit.get("governance_files_consulted") if isinstance(audit, dict) else None
    for index, name in enumerate(files if isinstance(files, list) else ()):
        if not isinstance(name, str):
            path = pointer("audit", "governance_files_consulted", index)
            yield error(path, "type", f"must be string, not {json_type(name)}")
