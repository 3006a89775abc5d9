"""The OpenAPI 3.1 document of the local API, made from the table of operations and the types of `protocol/api/`.

Types are described by their docstrings, fields by their comments.
"""

import inspect
import re
import sys
from functools import cache
from typing import Any, Final

import msgspec

from aghbus.daemon.api.http.errors import ANSWER_OF_CODE, STATUS_OF_CODE
from aghbus.protocol.api.base import API_VERSION, ErrorResponse
from aghbus.protocol.api.messages import Event
from aghbus.protocol.api.operation import AnyOperation
from aghbus.protocol.api.operations import OPERATIONS
from aghbus.protocol.api.queries import Query

_REF: Final = "#/components/schemas/{name}"

_CONTENT: Final = "application/octet-stream"
_BINARY: Final = {"type": "string", "format": "binary"}
_LINE: Final = re.compile(r"class (?P<type>\w+)|    # (?P<above>.+)|    (?P<field>\w+): [^#]+?(?:  # (?P<beside>.+))?$")

# Codes that any operation may answer: of HTTP itself first, then of the daemon's state.
_EVERYWHERE: Final = {400: ("invalid_request",), 500: ("internal",), 503: ("unavailable",)}
_WITH_BODY: Final = {408: ("timeout",), 413: ("too_large",), 415: ("unsupported_media_type",)}


@cache
def document() -> bytes:
    """The document as JSON, made once."""
    return msgspec.json.encode(_document())


def described_fields(form: type[msgspec.Struct]) -> dict[str, str]:
    """The description of each field of a type, by its name in JSON, from the comments in the sources of it and its bases."""
    found: dict[str, str] = {}
    for base in reversed(form.__mro__):
        found |= _comments(base.__module__).get(base.__name__, {}) if issubclass(base, msgspec.Struct) else {}
    return {field.encode_name: f"{found[field.name]}." for field in msgspec.structs.fields(form)}


@cache
def _comments(module: str) -> dict[str, dict[str, str]]:
    """The comment of every field in a module's source, by type."""
    fields: dict[str, str] = {}
    types: dict[str, dict[str, str]] = {}
    above: list[str] = []
    for line in inspect.getsource(sys.modules[module]).splitlines():
        match = _LINE.match(line)
        if match and match["type"]:
            fields = types[match["type"]] = {}
        elif match and match["field"]:
            fields[match["field"]] = match["beside"] or " ".join(above)
        above = [*above, match["above"]] if match and match["above"] else []
    return types


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
        "parameters": [*_parameters(operation.takes.path, "path"), *_parameters(operation.takes.query, "query")],
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
        content = {"application/json": {"schema": _ref(operation.takes.request)}}
        described["requestBody"] = {"required": needed, "content": content}
    return described


def _operation_id(operation: AnyOperation) -> str:
    words = [word.strip("{}").replace(".", "_") for word in operation.path.split("/") if word not in ("", API_VERSION)]
    return "_".join([operation.method.lower(), *words])


def _parameters(form: type[Query], place: str) -> list[dict[str, Any]]:
    (_,), components = msgspec.json.schema_components([form], ref_template=_REF)
    schema, described = components[form.__name__], described_fields(form)
    return [
        {
            "name": name,
            "in": place,
            "required": name in schema["required"],
            "description": described[name],
            "schema": _without_null(rule),
        }
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
        error = {"application/json": {"schema": _ref(ANSWER_OF_CODE.get(codes[status][0], ErrorResponse))}}
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
    return {"description": operation.summary, "content": {"application/json": {"schema": _ref(operation.response)}}}


def _schemas() -> dict[str, Any]:
    types: list[type[msgspec.Struct]] = [ErrorResponse, *ANSWER_OF_CODE.values()]
    types += [
        form
        for operation in OPERATIONS
        for form in (operation.response, operation.takes.request)
        if form not in (None, dict, bytes)
    ]
    _, components = msgspec.json.schema_components(list(dict.fromkeys(types)), ref_template=_REF)
    forms = {form.__name__: form for form in _structs(types)}
    for name, schema in components.items():
        schema["description"], fields = inspect.getdoc(forms[name]), described_fields(forms[name])
        for field, rule in schema["properties"].items():
            schema["properties"][field] = {"description": fields[field], **rule}
    _name_items(components)
    return components


def _structs(types: list[type[msgspec.Struct]]) -> set[type[msgspec.Struct]]:
    """These types, and all that their fields hold."""
    found: set[type[msgspec.Struct]] = set()

    def walk(info: Any) -> None:
        if isinstance(info, msgspec.inspect.StructType):
            if info.cls in found:
                return
            found.add(info.cls)
            for field in info.fields:
                walk(field.type)
        for part in (
            *getattr(info, "types", ()),
            *(getattr(info, name, None) for name in ("item_type", "value_type", "type")),
        ):
            if isinstance(part, msgspec.inspect.Type):
                walk(part)

    for form in types:
        walk(msgspec.inspect.type_info(form))
    return found


def _name_items(schema: Any) -> None:
    """Give every array `items`, also one of any values: client generators require it."""
    if isinstance(schema, dict):
        if schema.get("type") == "array":
            schema.setdefault("items", {})
        schema = schema.values()
    elif not isinstance(schema, list):
        return
    for part in schema:
        _name_items(part)


def _ref(form: type[msgspec.Struct]) -> dict[str, str]:
    return {"$ref": _REF.format(name=form.__name__)}
