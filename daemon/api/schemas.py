"""The schemas of the OpenAPI document, made from the types of `protocol/api/`: what msgspec writes, as client generators read it.

Types are described by their docstrings, fields by their comments. A field that a request may leave out has no `default`, which
some generators take for a promise that it is there: its description has it. A response has all its fields.
"""

import inspect
import json
import re
import sys
from collections.abc import Iterable
from functools import cache
from typing import Any, Final

import msgspec

from aghbus.protocol.api.base import SECONDS, RequestModel
from aghbus.protocol.api.queries import Query
from aghbus.protocol.base.durations import DURATION

_REF: Final = "#/components/schemas/{name}"
_LINE: Final = re.compile(r"class (?P<type>\w+)|    # (?P<above>.+)|    (?P<field>\w+): [^#]+?(?:  # (?P<beside>.+))?$")
_DURATION: Final = {
    "description": "A duration: a number of seconds, or a text such as 500ms, 30s, 5m, 1h30m or 7d.",
    "anyOf": [{"type": "number", "format": "double"}, {"type": "string", "pattern": f"^{DURATION.pattern}$"}],
}
_FORMATS: Final = {"number": "double", "integer": "int64"}
_NULL: Final = {"type": "null"}


def reference(form: type[msgspec.Struct]) -> dict[str, str]:
    """A reference to the schema of `form`."""
    return {"$ref": _REF.format(name=form.__name__)}


def schemas(types: Iterable[type[msgspec.Struct]]) -> dict[str, Any]:
    """The schemas of these types and of all that their fields hold, by name."""
    types = list(dict.fromkeys(types))
    _, components = msgspec.json.schema_components(types, ref_template=_REF)
    forms = {form.__name__: form for form in _structs(types)}
    return {name: _of_struct(forms[name], schema) for name, schema in components.items()} | {"Duration": _DURATION}


def parameters(form: type[Query], place: str) -> list[dict[str, Any]]:
    """The fields of `form` as parameters in `place`, `path` or `query`."""
    (_,), components = msgspec.json.schema_components([form], ref_template=_REF)
    schema = _of_struct(form, components[form.__name__])
    return [
        {
            "name": name,
            "in": place,
            "required": name in schema["required"],
            "description": rule.pop("description"),
            "schema": _without_null(rule),
        }
        for name, rule in schema["properties"].items()
    ]


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


def _of_struct(form: type[msgspec.Struct], schema: dict[str, Any]) -> dict[str, Any]:
    """The schema of `form`, its fields described."""
    texts, given = described_fields(form), issubclass(form, RequestModel | Query)
    properties: dict[str, Any] = {}
    for name, rule in schema["properties"].items():
        default = rule.pop("default", None)
        text = f" Default: {_json(default)}." if given and default not in (None, [], "") else ""
        properties[name] = {"description": texts[name] + text, **_readable(rule)}
    required = schema["required"]
    if not given:
        required = [f.encode_name for f in msgspec.structs.fields(form) if f.default is not msgspec.UNSET]
    return {**schema, "description": inspect.getdoc(form), "properties": properties, "required": required}


def _json(value: Any) -> str:
    return f"{value:g}" if isinstance(value, float) else json.dumps(value)


def _readable(rule: Any) -> Any:
    """The schema of a value: with the size of numbers, the type of choices, and the items of arrays; durations by their name."""
    if isinstance(rule, list):
        return [_readable(part) for part in rule]
    if not isinstance(rule, dict):
        return rule
    rule = {key: _readable(part) for key, part in rule.items()}
    kind = rule.get("type")
    if SECONDS.items() <= rule.items():
        del rule["type"], rule["format"]
        return {"$ref": _REF.format(name="Duration"), **rule}
    if kind in _FORMATS:
        rule["format"] = _FORMATS[kind]
    if kind == "array":
        rule.setdefault("items", {})
    if "enum" in rule:
        words = {"type": "string", "enum": [word for word in rule["enum"] if word is not None]}
        return words if None not in rule["enum"] else {"anyOf": [words, _NULL]}
    return rule


def _without_null(rule: dict[str, Any]) -> dict[str, Any]:
    """A parameter is given or left out, never null: the null of an optional field says only that."""
    choices = [choice for choice in rule.pop("anyOf", []) if choice != _NULL]
    return {**choices[0], **rule} if len(choices) == 1 else rule


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
