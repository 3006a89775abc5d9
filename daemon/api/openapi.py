"""The OpenAPI 3.1 document of the local API, made from the table of operations and the types of `protocol/api/`."""

from functools import cache
from typing import Any, Final

import msgspec

from aghbus.daemon.api.http.errors import ANSWER_OF_CODE, STATUS_OF_CODE
from aghbus.daemon.api.schemas import parameters, reference, schemas
from aghbus.protocol.api.base import API_VERSION, ErrorResponse
from aghbus.protocol.api.examples.table import EXAMPLES
from aghbus.protocol.api.messages import Event
from aghbus.protocol.api.operation import AnyOperation, Operation
from aghbus.protocol.api.operations import OPERATIONS, Operations
from aghbus.protocol.api.queries import Query

_JSON: Final = "application/json"
_EVENTS: Final = "text/event-stream"
_CONTENT: Final = "application/octet-stream"
_BINARY: Final = {"type": "string", "format": "binary"}

_TAGS: Final = {
    "daemon": "The daemon itself: whether it runs and is ready, its versions and its state.",
    "peers": "Peers, and what they can do.",
    "works": "Works: opening one, its steps, waiting for its end.",
    "inbox": "Messages for the agent: lease one, handle it, acknowledge it.",
    "messages": "Envelopes as they were sent and received, and the threads and direct rooms that they form.",
    "events": "The stream of everything that is sent and received.",
    "artifacts": "Files of works, in the artifact store.",
    "trust": "Which peers are accepted, and why a message was.",
    "chains": "Runs of chains: works of several peers, one after the other or in branches.",
    "bridge": "Agents that use one of four other message formats.",
    "mcp": "Sessions of agent hosts, which `aghctl mcp` reports.",
    "console": "The console: a page for a browser on the same machine.",
}
_WORDS: Final = {
    "daemon": ("healthz", "readyz", "openapi.json", "version", "status", "debug"),
    "peers": ("whois", "capabilities"),
    "messages": ("threads", "directs", "quarantine"),
    "trust": ("requests",),
}
_TAG_OF_WORD: Final = {**{tag: tag for tag in _TAGS}, **{word: tag for tag in _WORDS for word in _WORDS[tag]}}
"""The family of an operation, by the first word of its path."""
_IDS: Final = {one: name for name, one in vars(Operations).items() if isinstance(one, Operation)}

_STREAM: Final = (
    "Server-sent events without end. The schema is that of the `data` of one event; its `id` is the position to continue from. "
    "An event is named `gap` where retention has removed a part, and `problem`, with an ErrorResponse, where the stream ends."
)

# Codes that any operation may answer: of HTTP itself first, then of the daemon's state.
_EVERYWHERE: Final = {400: ("invalid_request",), 500: ("internal",), 503: ("unavailable",)}
_WITH_BODY: Final = {408: ("timeout",), 413: ("too_large",), 415: ("unsupported_media_type",)}


@cache
def document() -> bytes:
    """The document as JSON, made once."""
    return msgspec.json.encode(_document())


def _document() -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for operation in OPERATIONS:
        paths.setdefault(operation.path, {})[operation.method.lower()] = _described(operation)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "aghbus local API",
            "version": API_VERSION,
            "description": "The API that aghd serves on its Unix socket, and on loopback TCP with a bearer token.",
        },
        "tags": [{"name": name, "description": text} for name, text in _TAGS.items()],
        "servers": [{"url": "/", "description": "Unix socket (mode 0600) or loopback TCP"}],
        "components": {
            "schemas": _schemas(),
            "securitySchemes": {
                "bearer": {
                    "type": "http",
                    "scheme": "bearer",
                    "description": "On loopback TCP only. docs/api.md has a scheme that does not send the token.",
                }
            },
        },
        "security": [{}, {"bearer": []}],
        "paths": paths,
    }


def _described(operation: AnyOperation) -> dict[str, Any]:
    example = EXAMPLES[operation]
    described: dict[str, Any] = {
        "operationId": _operation_id(operation),
        "tags": [_TAG_OF_WORD[operation.path.removeprefix(f"/{API_VERSION}").split("/")[1]]],
        "summary": operation.summary,
        "parameters": [
            *_parameters(operation.takes.path, "path", example.path),
            *_parameters(operation.takes.query, "query", example.given),
        ],
        "responses": _responses(operation, example.response),
    }
    if operation.transfer == "events":
        described["parameters"].append(
            {
                "name": "Last-Event-ID",
                "in": "header",
                "required": False,
                "description": "Sequence of the last event seen; takes precedence over `since`.",
                "schema": {"type": "integer", "format": "int64", "minimum": 0},
                "example": 4711,
            }
        )
    if operation.transfer == "upload":
        described["requestBody"] = {"required": True, "content": {_CONTENT: {"schema": _BINARY}}}
    if operation.takes.request is not None:
        needed = any(field.required for field in msgspec.structs.fields(operation.takes.request))
        content = {"schema": reference(operation.takes.request), "example": _given(example.given)}
        described["requestBody"] = {"required": needed, "content": {_JSON: content}}
    return described


def _operation_id(operation: AnyOperation) -> str:
    """The name in the table: `get_work` is `getWork`."""
    first, *others = _IDS[operation].split("_")
    return first + "".join(word.capitalize() for word in others)


def _parameters(form: type[Query], place: str, example: msgspec.Struct) -> list[dict[str, Any]]:
    values = _given(example)
    return [
        {**described, **({"example": values[described["name"]]} if described["name"] in values else {})}
        for described in parameters(form, place)
    ]


def _given(example: msgspec.Struct) -> dict[str, Any]:
    """The fields of an example, without those that have their default."""
    values = msgspec.to_builtins(example, order="deterministic")
    fields = msgspec.structs.fields(example)
    return {f.encode_name: values[f.encode_name] for f in fields if getattr(example, f.name) != f.default}


def _responses(operation: AnyOperation, example: Any) -> dict[str, Any]:
    responses: dict[str, Any] = {str(operation.status): _success(operation, example)}
    if operation.may_be_unready:
        responses["503"] = _success(operation, msgspec.structs.replace(example, ready=False, broker=False))
        return responses
    codes: dict[int, list[str]] = {status: list(names) for status, names in _EVERYWHERE.items()}
    if operation.transfer == "upload":
        codes[408] = ["timeout"]
    if operation.takes.request is not None:
        codes.update({status: list(names) for status, names in _WITH_BODY.items()})
    for code in operation.errors:
        codes.setdefault(STATUS_OF_CODE[code], []).append(code)
    for status in sorted(codes):
        error = {_JSON: {"schema": reference(ANSWER_OF_CODE.get(codes[status][0], ErrorResponse))}}
        responses[str(status)] = {"description": ", ".join(codes[status]), "content": error}
    return responses


def _success(operation: AnyOperation, example: Any) -> dict[str, Any]:
    if operation.transfer == "download":
        description = (
            f"{operation.summary}; the connection ends early when it turns out not to be what `Artifact-Digest` says."
        )
        headers = {name: {"schema": {"type": "string"}} for name in ("Artifact-Digest", "Artifact-Size")}
        return {"description": description, "headers": headers, "content": {_CONTENT: {"schema": _BINARY}}}
    shown = msgspec.json.decode(msgspec.json.encode(example))
    if operation.transfer == "events":
        return {"description": _STREAM, "content": {_EVENTS: {"schema": _event(operation), "example": shown}}}
    schema = {"type": "object"} if operation.response is dict else reference(operation.response)
    return {"description": operation.summary, "content": {_JSON: {"schema": schema, "example": shown}}}


def _event(operation: AnyOperation) -> dict[str, Any]:
    """The schema of the data of one event: OpenAPI 3.1 has no other place for it than that of the whole response."""
    forms: dict[type[msgspec.Struct], None] = dict.fromkeys(
        (operation.response, Event)
    )  # the gaps of any stream are of the latter
    references = [reference(form) for form in forms]
    return references[0] if len(references) == 1 else {"anyOf": references}


def _schemas() -> dict[str, Any]:
    types: list[type[msgspec.Struct]] = [ErrorResponse, *ANSWER_OF_CODE.values()]
    types += [
        form
        for operation in OPERATIONS
        for form in (operation.response, operation.takes.request)
        if form not in (None, dict, bytes)
    ]
    return schemas(types)
