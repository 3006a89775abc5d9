"""`python -m aghbus.daemon.api.documents DOCS`: writes openapi.json, api-types.md and the table of routes in api.md there."""

import json
import re
import sys
from pathlib import Path
from typing import Any, Final

import msgspec

from aghbus.daemon.api.openapi import document
from aghbus.daemon.api.route import Route
from aghbus.daemon.api.routes import ROUTES

_TABLE: Final = re.compile(r"\| method \| path .*?\n\n", re.DOTALL)


def openapi_text() -> str:
    """docs/openapi.json: the OpenAPI document, indented."""
    return json.dumps(json.loads(document()), indent=2, ensure_ascii=False) + "\n"


def types_text() -> str:
    """docs/api-types.md: every type of the OpenAPI document with its fields."""
    schemas = json.loads(document())["components"]["schemas"]
    note = (
        "Written by `make api-docs` from `protocol/api/`, as `openapi.json` is, which has the bounds of the fields too."
    )
    return "\n".join(
        [f"# Types of the local API\n\n{note}\n", *(_type(name, schema) for name, schema in sorted(schemas.items()))]
    )


def _type(name: str, schema: dict[str, Any]) -> str:
    required = schema.get("required", [])
    rows = [
        f"| `{field}` | {_form(rule)}{'' if field in required else ', optional'} | {_cell(rule.get('description', ''))} |"
        for field, rule in schema.get("properties", {}).items()
    ]
    table = ["| field | type | meaning |", "|---|---|---|", *rows, ""] if rows else []
    return "\n".join([f"## {name}", "", schema.get("description", ""), "", *table])


def _cell(text: str) -> str:
    return text.replace("|", "\\|").replace("\n", " ")


def _form(rule: dict[str, Any]) -> str:
    """The type of a field in words: `string`, `list of Message`, `integer or null`."""
    if "anyOf" in rule:
        return " or ".join(_form(choice) for choice in rule["anyOf"])
    if "$ref" in rule:
        name = rule["$ref"].rpartition("/")[2]
        return f"[{name}](#{name.lower()})"
    if "enum" in rule:
        return " or ".join(f"`{value}`" for value in rule["enum"])
    if rule.get("type") == "array":
        return f"list of {_form(rule.get('items', {}))}"
    return str(rule.get("type", "any JSON value"))


def with_table(text: str) -> str:
    """`text` of docs/api.md with the table of routes as it is now."""
    head = ["| method | path | what | query or body | response |", "|---|---|---|---|---|"]
    table = "\n".join(head + [_row(route) for route in ROUTES])
    return _TABLE.sub(lambda _: f"{table}\n\n", text, count=1)


def _row(route: Route) -> str:
    return f"| `{route.method}` | `{route.path}` | {route.summary} | {_given(route)} | {_response(route)} |"


def _given(route: Route) -> str:
    if route.transfer == "upload":
        return "the content"
    if route.request is not None:
        return f"`{route.request.__name__}`" if route.request.__struct_fields__ else ""
    return ", ".join(f"`{field.encode_name}`" for field in msgspec.structs.fields(route.query))


def _response(route: Route) -> str:
    if route.transfer == "download":
        return "the content"
    if route.response is None:
        return "OpenAPI 3.1"
    status = f" ({route.status})" if route.status != 200 else ""
    return ("events of " if route.transfer == "events" else "") + f"`{route.response.__name__}`{status}"


def main(folder: Path) -> None:
    """Write both documents."""
    (folder / "openapi.json").write_text(openapi_text())
    (folder / "api-types.md").write_text(types_text())
    page = folder / "api.md"
    page.write_text(with_table(page.read_text()))


if __name__ == "__main__":
    main(Path(sys.argv[1]))
