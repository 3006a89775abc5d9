"""The OpenAPI 3.1 document of the local API, made from the table of operations and the types of `protocol/api/`."""

from functools import cache
from typing import Any, Final

import msgspec

from aghbus.daemon.api.http.errors import ANSWER_OF_CODE, STATUS_OF_CODE
from aghbus.daemon.api.schemas import parameters, reference, schemas
from aghbus.protocol.api.base import API_VERSION, ErrorResponse
from aghbus.protocol.api.messages import Event
from aghbus.protocol.api.operation import AnyOperation
from aghbus.protocol.api.operations import OPERATIONS

_CONTENT: Final = "application/octet-stream"
_BINARY: Final = {"type": "string", "format": "binary"}

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
    described: dict[str, Any] = {
        "operationId": _operation_id(operation),
        "summary": operation.summary,
        "parameters": [*parameters(operation.takes.path, "path"), *parameters(operation.takes.query, "query")],
        "responses": _responses(operation),
    }
    if operation.transfer == "events":
        described["parameters"].append(
            {
                "name": "Last-Event-ID",
                "in": "header",
                "required": False,
                "description": "Sequence of the last event seen; takes precedence over `since`.",
                "schema": {"type": "integer", "minimum": 0},
            }
        )
    if operation.transfer == "upload":
        described["requestBody"] = {"required": True, "content": {_CONTENT: {"schema": _BINARY}}}
    if operation.takes.request is not None:
        needed = any(field.required for field in msgspec.structs.fields(operation.takes.request))
        content = {"application/json": {"schema": reference(operation.takes.request)}}
        described["requestBody"] = {"required": needed, "content": content}
    return described


def _operation_id(operation: AnyOperation) -> str:
    words = [word.strip("{}").replace(".", "_") for word in operation.path.split("/") if word not in ("", API_VERSION)]
    return "_".join([operation.method.lower(), *words])


def _responses(operation: AnyOperation) -> dict[str, Any]:
    responses: dict[str, Any] = {str(operation.status): _success(operation)}
    if operation.may_be_unready:
        responses["503"] = _success(operation)
        return responses
    codes: dict[int, list[str]] = {status: list(names) for status, names in _EVERYWHERE.items()}
    if operation.transfer == "upload":
        codes[408] = ["timeout"]
    if operation.takes.request is not None:
        codes.update({status: list(names) for status, names in _WITH_BODY.items()})
    for code in operation.errors:
        codes.setdefault(STATUS_OF_CODE[code], []).append(code)
    for status in sorted(codes):
        error = {"application/json": {"schema": reference(ANSWER_OF_CODE.get(codes[status][0], ErrorResponse))}}
        responses[str(status)] = {"description": ", ".join(codes[status]), "content": error}
    return responses


def _success(operation: AnyOperation) -> dict[str, Any]:
    if operation.transfer == "download":
        description = (
            f"{operation.summary}; the connection ends early when it turns out not to be what `Artifact-Digest` says."
        )
        headers = {name: {"schema": {"type": "string"}} for name in ("Artifact-Digest", "Artifact-Size")}
        return {"description": description, "headers": headers, "content": {_CONTENT: {"schema": _BINARY}}}
    if operation.response is dict:
        return {"description": operation.summary, "content": {"application/json": {"schema": {"type": "object"}}}}
    if operation.transfer == "events":
        name = "envelope" if operation.response is Event else "message"
        description = (
            f"Events `{name}` and `gap`: `id` is the position to go on from, `data` one JSON object of the schema"
        )
        description += f" {operation.response.__name__}" + (" (a gap's of Event)." if name == "message" else ".")
        return {"description": description, "content": {"text/event-stream": {"schema": {"type": "string"}}}}
    return {
        "description": operation.summary,
        "content": {"application/json": {"schema": reference(operation.response)}},
    }


def _schemas() -> dict[str, Any]:
    types: list[type[msgspec.Struct]] = [ErrorResponse, *ANSWER_OF_CODE.values()]
    types += [
        form
        for operation in OPERATIONS
        for form in (operation.response, operation.takes.request)
        if form not in (None, dict, bytes)
    ]
    return schemas(types)
