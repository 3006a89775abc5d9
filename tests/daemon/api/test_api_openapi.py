"""The OpenAPI document and docs/api.md say what the server does."""

import importlib
import json
import pkgutil
import re
from collections.abc import AsyncIterator, Awaitable, Iterator
from pathlib import Path
from typing import Any, get_type_hints

import msgspec
import pytest

from aghbus.daemon.api.documents import openapi_text, with_table
from aghbus.daemon.api.handlers import HANDLERS
from aghbus.daemon.api.router import Router
from aghbus.protocol import api as types
from aghbus.protocol.api.base import EmptyRequest, RequestModel, ResponseModel
from aghbus.protocol.api.operations import OPERATIONS, Operations
from aghbus.protocol.api.queries import NoParameters
from tests.support.api_document import contents, misfits, operations
from tests.support.api_harness import Api

DURATION = "#/components/schemas/Duration"
DOCS = Path(__file__).parents[3] / "docs" / "api.md"


@pytest.fixture
async def document(api: Api) -> Any:
    return (await api.get("/openapi.json")).json


def walk(value: Any) -> Iterator[dict[str, Any]]:
    """Every object inside `value`."""
    if isinstance(value, dict):
        yield value
    for entry in value.values() if isinstance(value, dict) else value if isinstance(value, list) else ():
        yield from walk(entry)


async def test_every_operation_is_in_the_document_and_the_other_way_round(document: Any) -> None:
    assert document["openapi"] == "3.1.0"
    assert {(method, path) for method, path, _ in operations(document)} == {(o.method, o.path) for o in OPERATIONS}


async def test_every_reference_resolves(document: Any) -> None:
    references = [found["$ref"] for found in walk(document) if "$ref" in found]
    assert len(references) > 50
    for reference in references:
        target = document
        for part in reference.removeprefix("#/").split("/"):
            target = target[part]
        assert target["type"] == "object" if reference != DURATION else target["anyOf"]


async def test_operations_have_ids_parameters_and_responses(document: Any) -> None:
    ids = [operation["operationId"] for _, _, operation in operations(document)]
    assert len(set(ids)) == len(ids)
    for _, path, operation in operations(document):
        in_path = [p["name"] for p in operation["parameters"] if p["in"] == "path"]
        assert in_path == re.findall(r"{(\w+)}", path)
        assert all(p["required"] for p in operation["parameters"] if p["in"] == "path")
        assert all("description" in response for response in operation["responses"].values())
        assert all(re.fullmatch(r"[1-5]\d\d", status) for status in operation["responses"])
        assert all(p["schema"] for p in operation["parameters"])


async def test_ids_are_verbs_and_collide_with_no_type_that_generators_make_of_them(document: Any) -> None:
    ids = [operation["operationId"] for _, _, operation in operations(document)]
    assert {"openWork", "getWork", "listPeers", "actOnWork", "leaseNextMessage", "streamEvents"} <= set(ids)
    made = {f"{name}{ending}".lower() for name in ids for ending in ("", "Request", "Response", "Params", "JSONBody")}
    assert not made & {name.lower() for name in document["components"]["schemas"]}


async def test_every_operation_is_of_one_described_family(document: Any) -> None:
    described = {tag["name"] for tag in document["tags"] if tag["description"]}
    used = [operation["tags"] for _, _, operation in operations(document)]
    assert all(len(tags) == 1 for tags in used)
    assert {tag for tags in used for tag in tags} == described


async def test_only_what_a_request_must_have_is_required_and_a_response_has_all(document: Any) -> None:
    """And nothing has a default, by which generators take an optional field for one that is always there."""
    schemas = document["components"]["schemas"]
    assert schemas["WorkOpenRequest"]["required"] == []
    assert schemas["SendRequest"]["required"] == ["kind", "body"]
    assert schemas["InboxNextRequest"]["required"] == []
    assert schemas["InboxLeaseRequest"]["required"] == ["lease"]
    assert set(schemas["SendResponse"]["required"]) == set(schemas["SendResponse"]["properties"])
    assert set(schemas["Event"]["properties"]) - set(schemas["Event"]["required"]) == {"pruned_from"}
    assert not [found for found in walk(document) if "default" in found]


async def test_every_operation_has_examples_that_fit_its_schemas(document: Any) -> None:
    checked = 0
    for _, path, operation in operations(document):
        for described in [*operation["parameters"], *contents(operation)]:
            if "example" in described:
                assert not misfits(document, described["schema"], described["example"]), path
                checked += 1
        assert all("example" in content for content in contents(operation)), path
        assert all("example" in parameter for parameter in operation["parameters"] if parameter["required"]), path
    assert checked > 100


async def test_bounds_are_in_the_schemas(document: Any) -> None:
    schemas = document["components"]["schemas"]
    wait = schemas["InboxNextRequest"]["properties"]["wait"]
    assert (wait["$ref"], wait["minimum"], wait["maximum"]) == (DURATION, 0, 300)
    expires_in = {"$ref": DURATION, "minimum": 1, "maximum": 604800}
    assert expires_in in schemas["SendRequest"]["properties"]["expires_in"]["anyOf"]
    assert schemas["SendRequest"]["additionalProperties"] is False
    limit = next(p for p in document["paths"]["/v1/works"]["get"]["parameters"] if p["name"] == "limit")
    assert (limit["schema"]["minimum"], limit["schema"]["maximum"], limit["required"]) == (1, 1000, False)


async def test_responses_have_the_fields_of_their_schemas(api: Api, document: Any) -> None:
    """What really comes back, compared with what the document promises for it."""
    for target in (
        "/healthz",
        "/readyz",
        "/v1/version",
        "/v1/status",
        "/v1/peers",
        "/v1/works",
        "/v1/messages",
        "/v1/inbox",
    ):
        reference = document["paths"][target]["get"]["responses"]["200"]["content"]["application/json"]["schema"][
            "$ref"
        ]
        schema = document["components"]["schemas"][reference.rpartition("/")[2]]
        assert set((await api.get(target)).json) == set(schema["properties"]), target
    error = document["components"]["schemas"]["ErrorResponse"]
    assert set((await api.get("/nowhere")).json) == set(error["properties"])


async def test_every_operation_is_reached_by_its_path(api: Api) -> None:
    """No operation of the table is dead: each is reached by its own path, without a 404 or 405 of the router."""
    for operation in OPERATIONS:
        if operation.transfer in ("events", "download"):  # no JSON to be had from them
            continue
        target = operation.path.replace("{id}", "test.run").replace("{seq}", "1").replace("{verb}", "accept")
        reply = await api.request(operation.method, target)
        assert reply.status != 405
        assert reply.json.get("code") != "unknown_path", target


def test_words_go_before_parameters() -> None:
    router = Router(OPERATIONS)
    assert router.find("POST", "/v1/inbox/next") == (Operations.lease_next_message, [])
    assert router.find("POST", "/v1/works/a%2Fb/fail") == (Operations.act_on_work, ["a%2Fb", "fail"])


def test_every_request_and_response_type_belongs_to_an_operation() -> None:
    """A type of protocol/api that no operation takes or returns is forgotten, or has lost its operation."""
    _, components = msgspec.json.schema_components(
        [form for o in OPERATIONS for form in (o.response, o.takes.request) if form is not None]
    )
    modules = [
        importlib.import_module(name) for _, name, _ in pkgutil.iter_modules(types.__path__, types.__name__ + ".")
    ]
    ours = {
        name
        for module in modules
        for name, value in vars(module).items()
        if isinstance(value, type) and issubclass(value, ResponseModel | RequestModel)
    }
    errors = {"ErrorResponse", "MessageRefusedResponse"}
    assert ours - set(components) <= {"RequestModel", "ResponseModel"} | errors


def test_the_documents_in_docs_match_the_table() -> None:
    """`make api-docs` writes them."""
    text = DOCS.read_text()
    assert with_table(text) == text
    assert (DOCS.parent / "openapi.json").read_text() == openapi_text()


async def test_every_type_named_in_the_manual_is_in_the_document(document: Any) -> None:
    documented = set(document["components"]["schemas"])
    named = set(re.findall(r"`(\w+(?:Request|Response))`", DOCS.read_text()))
    assert named and named <= documented


def test_every_operation_has_a_handler_with_its_types() -> None:
    assert set(HANDLERS) == set(OPERATIONS) - {Operations.get_openapi}
    for operation, handler in HANDLERS.items():
        given, takes = get_type_hints(handler), operation.takes
        returned = given.pop("return")
        in_path = len(msgspec.structs.fields(takes.path))
        expected: list[Any] = [takes.query] if takes.query is not NoParameters else []
        expected += [takes.request] if takes.request not in (None, EmptyRequest) else []
        expected += [AsyncIterator[bytes]] if operation.transfer == "upload" else []
        assert list(given.values())[in_path:] == expected, operation.route
        if operation.transfer in ("json", "upload"):
            form: Any = operation.response
            assert returned in (form, Awaitable[form]), operation.route


async def test_every_property_and_parameter_is_described(document: Any) -> None:
    for name, schema in document["components"]["schemas"].items():
        assert schema["description"], name
        for field, rule in schema.get("properties", {}).items():
            assert rule["description"], f"{name}.{field}"
    for _, path, operation in operations(document):
        assert all(parameter["description"] for parameter in operation["parameters"]), path


async def test_every_array_has_items(document: Any) -> None:
    arrays = [found for found in walk(document) if found.get("type") == "array"]
    assert len(arrays) > 20
    assert all("items" in found for found in arrays)


async def test_documented_errors_are_those_of_the_server(document: Any) -> None:
    text = DOCS.read_text()
    documented = dict(re.findall(r"^\| `(\w+)` \| (\d{3}) \|", text, re.MULTILINE))
    for _, _, operation in operations(document):
        for status, response in operation["responses"].items():
            if status.startswith("2") or "ErrorResponse" not in json.dumps(response):
                continue
            for code in response["description"].split(", "):
                assert documented[code] == status
