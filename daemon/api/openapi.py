"""The OpenAPI 3.1 document of the local API, drawn from the table of routes and the types of `protocol/api/models.py`."""

from functools import cache
from typing import Any, Final

import msgspec

from aghbus.daemon.api.http.errors import ANSWER_OF_CODE, STATUS_OF_CODE
from aghbus.daemon.api.queries import Query
from aghbus.daemon.api.route import Route
from aghbus.daemon.api.routes import ROUTES
from aghbus.protocol.api.base import API_VERSION, ErrorResponse, RequestModel
from aghbus.protocol.api.messages import Event

_REF: Final = "#/components/schemas/{name}"

_CONTENT: Final = "application/octet-stream"
_BINARY: Final = {"type": "string", "format": "binary"}

# Codes that any route may answer: our rules for HTTP itself come first, then the daemon's own state.
_EVERYWHERE: Final = {400: ("invalid_request",), 500: ("internal",), 503: ("unavailable",)}
_WITH_BODY: Final = {408: ("timeout",), 413: ("too_large",), 415: ("unsupported_media_type",)}


@cache
def document() -> bytes:
    """The document as JSON, made once."""
    return msgspec.json.encode(_document(ROUTES))


def _document(routes: tuple[Route, ...]) -> dict[str, Any]:
    paths: dict[str, dict[str, Any]] = {}
    for route in routes:
        paths.setdefault(route.path, {})[route.method.lower()] = _operation(route)
    return {
        "openapi": "3.1.0",
        "info": {
            "title": "aghbus local API",
            "version": API_VERSION,
            "description": "The API that aghd serves on its Unix socket, and on loopback TCP with a bearer token.",
        },
        "servers": [{"url": "/", "description": "Unix socket (mode 0600) or loopback TCP"}],
        "components": {
            "schemas": _schemas(routes),
            "securitySchemes": {"bearer": {"type": "http", "scheme": "bearer", "description": "On loopback TCP only."}},
        },
        "security": [{}, {"bearer": []}],
        "paths": paths,
    }


def _operation(route: Route) -> dict[str, Any]:
    operation: dict[str, Any] = {
        "operationId": _operation_id(route),
        "summary": route.summary,
        "parameters": [*_parameters(route.parameters, "path"), *_parameters(route.query, "query")],
        "responses": _responses(route),
    }
    if route.stream is not None:
        operation["parameters"].append(
            {
                "name": "Last-Event-ID",
                "in": "header",
                "required": False,
                "description": "Sequence of the last event seen; goes before `since`.",
                "schema": {"type": "integer", "minimum": 0},
            }
        )
    if route.upload is not None:
        operation["requestBody"] = {"required": True, "content": {_CONTENT: {"schema": _BINARY}}}
    if route.ask is not None:
        needed = any(field.required for field in msgspec.structs.fields(route.ask))
        operation["requestBody"] = {"required": needed, "content": {"application/json": {"schema": _ref(route.ask)}}}
    return operation


def _operation_id(route: Route) -> str:
    words = [word.strip("{}").replace(".", "_") for word in route.path.split("/") if word not in ("", API_VERSION)]
    return "_".join([route.method.lower(), *words])


def _parameters(form: type[Query], place: str) -> list[dict[str, Any]]:
    (_,), components = msgspec.json.schema_components([form], ref_template=_REF)
    schema = components[form.__name__]
    return [
        {"name": name, "in": place, "required": name in schema["required"], "schema": _without_null(rule)}
        for name, rule in schema["properties"].items()
    ]


def _without_null(rule: dict[str, Any]) -> dict[str, Any]:
    """A parameter is given or left out, never null: the null of an optional field says only that."""
    rule = {key: value for key, value in rule.items() if not (key == "default" and value is None)}
    choices = [choice for choice in rule.pop("anyOf", []) if choice != {"type": "null"}]
    if len(choices) == 1:
        rule = {**choices[0], **rule}
    if "enum" in rule:
        rule["enum"] = [value for value in rule["enum"] if value is not None]
    return rule


def _responses(route: Route) -> dict[str, Any]:
    responses: dict[str, Any] = {str(route.status): _success(route)}
    if route.path == "/readyz":
        responses["503"] = _success(route)
        return responses
    codes: dict[int, list[str]] = {status: list(names) for status, names in _EVERYWHERE.items()}
    if route.upload is not None:
        codes[408] = ["timeout"]
    if route.ask is not None:
        codes.update({status: list(names) for status, names in _WITH_BODY.items()})
    for code in route.errors:
        codes.setdefault(STATUS_OF_CODE[code], []).append(code)
    for status in sorted(codes):
        error = {"application/json": {"schema": _ref(ANSWER_OF_CODE.get(codes[status][0], ErrorResponse))}}
        responses[str(status)] = {"description": ", ".join(codes[status]), "content": error}
    return responses


def _success(route: Route) -> dict[str, Any]:
    if route.download is not None:
        description = (
            f"{route.summary}; the connection ends early when it turns out not to be what `Artifact-Digest` says."
        )
        headers = {name: {"schema": {"type": "string"}} for name in ("Artifact-Digest", "Artifact-Size")}
        return {"description": description, "headers": headers, "content": {_CONTENT: {"schema": _BINARY}}}
    if route.answer is None:
        return {"description": route.summary, "content": {"application/json": {"schema": {"type": "object"}}}}
    if route.stream is not None:
        name, form = ("envelope", "Event") if route.answer is Event else ("message", route.answer.__name__)
        description = f"Events `{name}` and `gap`: `id` is the position to go on from, `data` one JSON object of the schema {form}"
        description += " (a gap's of Event)." if name == "message" else "."
        return {"description": description, "content": {"text/event-stream": {"schema": {"type": "string"}}}}
    return {"description": route.summary, "content": {"application/json": {"schema": _ref(route.answer)}}}


def _schemas(routes: tuple[Route, ...]) -> dict[str, Any]:
    types: list[type[msgspec.Struct]] = [ErrorResponse, *ANSWER_OF_CODE.values()]
    types += [found for route in routes for found in (route.answer, route.ask) if found is not None]
    _, components = msgspec.json.schema_components(list(dict.fromkeys(types)), ref_template=_REF)
    return components


def _ref(form: type[msgspec.Struct] | type[RequestModel]) -> dict[str, str]:
    return {"$ref": _REF.format(name=form.__name__)}
