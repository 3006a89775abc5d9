"""The OpenAPI document as tests read it: its operations, their examples, and whether a value fits a schema."""

import json
from collections.abc import Iterator
from typing import Any
from urllib.parse import quote, urlencode

import jsonschema

JSON = "application/json"


def operations(document: Any) -> Iterator[tuple[str, str, dict[str, Any]]]:
    """Method, path and description of each operation."""
    for path, methods in document["paths"].items():
        for method, operation in methods.items():
            yield method.upper(), path, operation


def contents(operation: dict[str, Any]) -> list[dict[str, Any]]:
    """The bodies that an operation takes and answers with success, but for raw bytes."""
    bodies = [operation["requestBody"]] if "requestBody" in operation else []
    bodies += [response for status, response in operation["responses"].items() if status.startswith("2")]
    found = [(kind, content) for body in bodies for kind, content in body["content"].items()]
    return [content for kind, content in found if kind != "application/octet-stream"]


def misfits(document: Any, schema: Any, value: Any) -> list[str]:
    """What a value breaks of a schema of the document."""
    validator = jsonschema.Draft202012Validator({**schema, "components": document["components"]})
    return [f"{error.json_path}: {error.message}" for error in validator.iter_errors(value)]


def example_request(path: str, operation: dict[str, Any]) -> tuple[str, Any]:
    """The target and the body of an operation's example; the body is None without one."""
    query: dict[str, Any] = {}
    for parameter in operation["parameters"]:
        if parameter["in"] == "path":
            path = path.replace(f"{{{parameter['name']}}}", quote(str(parameter["example"]), safe=""))
        elif parameter["in"] == "query" and "example" in parameter:
            query[parameter["name"]] = parameter["example"]
    words = {name: value if isinstance(value, list) else json.dumps(value).strip('"') for name, value in query.items()}
    body = operation.get("requestBody", {}).get("content", {}).get(JSON)
    return f"{path}?{urlencode(words, doseq=True)}".removesuffix("?"), body and body["example"]
