"""What the OpenAPI document refuses, the daemon refuses, and the other way round: values at and beyond each bound."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aghbus.protocol.agh.limits import PROTOCOL
from tests.support.api_document import misfits
from tests.support.daemons import Daemon, Home, HttpError

WEEK = 7 * 86_400
SAY = {"kind": "say", "body": {"text": "hello"}}
OPEN = {"to": "worker", "text": "run it"}
CHAIN = {"chain": {"name": "c", "start": "a", "nodes": {"a": {"peer": "worker", "prompt": "p"}}}}


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(Home(tmp_path_factory.mktemp("bounds")), "ops") as ops:
        yield ops


@pytest.fixture(scope="module")
def document(daemon: Daemon) -> Any:
    return daemon.get("/openapi.json")


def refused(daemon: Daemon, method: str, path: str, body: dict[str, Any] | None = None) -> bool:
    """Whether the daemon finds the request itself invalid; what it refuses for another reason is not about the schema."""
    try:
        daemon.request(method, path, body)
    except HttpError as error:
        return error.status == 400
    return False


NUMBERS = [
    ("/v1/whois", {"wait": 0.0}, True),
    ("/v1/whois", {"wait": -0.1}, False),
    ("/v1/whois", {"wait": 60.1}, False),
    ("/v1/messages", {**SAY, "expires_in": 1}, True),
    ("/v1/messages", {**SAY, "expires_in": WEEK}, True),
    ("/v1/messages", {**SAY, "expires_in": 0.9}, False),
    ("/v1/messages", {**SAY, "expires_in": WEEK + 1}, False),
    ("/v1/works", {**OPEN, "expires_in": 0.9}, False),
    ("/v1/works", {**OPEN, "accept_within": 0}, True),
    ("/v1/works", {**OPEN, "accept_within": WEEK}, True),
    ("/v1/works", {**OPEN, "accept_within": -1}, False),
    ("/v1/works", {**OPEN, "accept_within": WEEK + 1}, False),
    ("/v1/works", {**OPEN, "accept_within": "5m"}, True),
    ("/v1/works", {**OPEN, "accept_within": "1h30m"}, True),
    ("/v1/works", {**OPEN, "accept_within": "5"}, True),
    ("/v1/works", {**OPEN, "accept_within": "5 minutes"}, False),
    ("/v1/works", {**OPEN, "accept_within": "1h30"}, False),
    ("/v1/works", {**OPEN, "accept_within": "-5m"}, False),
    ("/v1/works", {**OPEN, "accept_within": ""}, False),
    ("/v1/works", {**OPEN, "accept_within": True}, False),
    ("/v1/works", {**OPEN, "progress_within": -1}, False),
    ("/v1/works", {**OPEN, "progress_within": WEEK + 1}, False),
    ("/v1/works/work_1/accept", {"expires_in": 0}, False),
    ("/v1/inbox/next", {"wait": 0}, True),
    ("/v1/inbox/next", {"wait": -1}, False),
    ("/v1/inbox/next", {"wait": 300.5}, False),
    ("/v1/inbox/next", {"visibility": 1}, True),
    ("/v1/inbox/next", {"visibility": 43_200}, True),
    ("/v1/inbox/next", {"visibility": 0.5}, False),
    ("/v1/inbox/next", {"visibility": 43_201}, False),
    ("/v1/inbox/1/nack", {"delay": WEEK}, True),
    ("/v1/inbox/1/nack", {"delay": -1}, False),
    ("/v1/inbox/1/nack", {"delay": WEEK + 1}, False),
]
TEXTS = [
    ("/v1/messages", {**SAY, "kind": "greet"}, False),
    ("/v1/messages", {**SAY, "body": []}, False),
    ("/v1/messages", {**SAY, "to": "Worker"}, False),
    ("/v1/messages", {**SAY, "to": "worker", "channel": "Default"}, False),
    ("/v1/messages", {**SAY, "thread_id": "thread_abc"}, True),
    ("/v1/messages", {**SAY, "thread_id": "thread_a"}, False),
    ("/v1/messages", {**SAY, "to": "worker", "direct_id": "direct_x"}, False),
    ("/v1/messages", {**SAY, "id": "a" * 256}, True),
    ("/v1/messages", {**SAY, "id": "a" * 257}, False),
    ("/v1/messages", {**SAY, "id": ""}, False),
    ("/v1/messages", {**SAY, "id": "a\nb"}, False),
    ("/v1/messages", {**SAY, "id": " a"}, False),
    ("/v1/messages", {**SAY, "id": "a\u2003"}, False),
    ("/v1/messages", {**SAY, "reply_to": " a"}, False),
    ("/v1/messages", {**SAY, "trace_id": "a\x85b"}, False),
    ("/v1/messages", {**SAY, "causation_id": "x y"}, True),
    ("/v1/messages", {**SAY, "to": "worker", "work_id": "a/b"}, False),
    ("/v1/messages", {**SAY, "surplus": 1}, False),
    ("/v1/messages", {"kind": "say"}, False),
    ("/v1/works", {**OPEN, "to": "@"}, False),
    ("/v1/works", {**OPEN, "text": " \u2028"}, False),
    ("/v1/works", {**OPEN, "work_id": "work_" + "a" * 64}, True),
    ("/v1/works", {**OPEN, "work_id": "work_" + "a" * 65}, False),
    ("/v1/works", {**OPEN, "work_id": "w"}, False),
    ("/v1/works", {**OPEN, "artifacts": [1, {"uri": "x"}]}, True),
    ("/v1/works", {**OPEN, "artifacts": [0] * 10_001}, False),
    ("/v1/works", {**OPEN, "artifacts": {}}, False),
    ("/v1/works/work_1/reject", {"result": []}, False),
    ("/v1/whois", {"to": "no peer"}, False),
    ("/v1/whois", {"channel": "No"}, False),
    ("/v1/whois", {"capability_ids": [1]}, False),
    ("/v1/trust/pin", {"talk": "yes", "who": "x"}, False),
    ("/v1/bridge/sentient", {"text": "x", "channel": "No"}, False),
    ("/v1/bridge/sentient/ack", {"seq": 0}, True),
    ("/v1/bridge/sentient/ack", {"seq": "0"}, False),
    ("/v1/chains/runs", {**CHAIN, "run_id": "-a"}, False),
    ("/v1/chains/runs", {**CHAIN, "run_id": "a" * 129}, False),
    ("/v1/chains/runs/run_1/answer", {"text": " "}, False),
]


@pytest.mark.parametrize(("path", "body", "right"), NUMBERS + TEXTS, ids=str)
def test_bodies(daemon: Daemon, document: Any, path: str, body: dict[str, Any], right: bool) -> None:
    assert (not misfits(document, request_schema(document, path), body)) is right
    assert refused(daemon, "POST", path, body) is not right


def request_schema(document: Any, path: str) -> Any:
    """The schema of the body of `POST path`; words of the path go before parameters."""
    segments = path.split("/")
    for pattern in sorted(document["paths"], key=lambda pattern: pattern.count("{")):
        words = pattern.split("/")
        fits = len(words) == len(segments) and all(
            w.startswith("{") or w == s for w, s in zip(words, segments, strict=True)
        )
        if fits and "post" in document["paths"][pattern]:
            return document["paths"][pattern]["post"]["requestBody"]["content"]["application/json"]["schema"]
    raise AssertionError(path)


@pytest.mark.parametrize(
    ("path", "name", "value", "right"),
    [
        ("/v1/messages", "limit", 1, True),
        ("/v1/messages", "limit", 1000, True),
        ("/v1/messages", "limit", 0, False),
        ("/v1/messages", "limit", 1001, False),
        ("/v1/messages", "since", 0, True),
        ("/v1/messages", "since", 2**63 - 1, True),
        ("/v1/messages", "since", -1, False),
        ("/v1/messages", "since", 2**63, False),
        ("/v1/works", "role", "target", True),
        ("/v1/works", "role", "null", False),
        ("/v1/works", "role", "", False),
        ("/v1/artifacts", "work", "a/b", False),
        ("/v1/artifacts", "work", "a" * 129, False),
        ("/v1/chains/runs", "limit", 0, False),
        ("/v1/chains/runs/{id}", "wait", 60, True),
        ("/v1/chains/runs/{id}", "wait", "30s", True),
        ("/v1/chains/runs/{id}", "wait", "soon", False),
        ("/v1/chains/runs/{id}", "wait", -1, False),
        ("/v1/chains/runs/{id}", "wait", 61, False),
        ("/v1/chains/runs/{id}", "since", "null", False),
    ],
)
def test_parameters(daemon: Daemon, document: Any, path: str, name: str, value: object, right: bool) -> None:
    parameters = {one["name"]: one["schema"] for one in document["paths"][path]["get"]["parameters"]}
    assert (not misfits(document, parameters[name], value)) is right
    assert refused(daemon, "GET", f"{path.replace('{id}', 'x')}?{name}={value}".replace("a/b", "a%2Fb")) is not right


@pytest.mark.parametrize(
    ("path", "values", "right"),
    [
        ("/v1/artifacts/{work_id}/{name}", ("work_1", "a"), True),
        ("/v1/artifacts/{work_id}/{name}", ("work_1", "."), False),
        ("/v1/artifacts/{work_id}/{name}", ("w" * 129, "a"), False),
        ("/v1/bridge/{format}/messages/{seq}", ("sentient", 1), True),
        ("/v1/bridge/{format}/messages/{seq}", ("sentient", 0), False),
        ("/v1/bridge/{format}/messages/{seq}", ("another", 1), False),
    ],
)
def test_paths(daemon: Daemon, document: Any, path: str, values: tuple[object, ...], right: bool) -> None:
    schemas = [one["schema"] for one in document["paths"][path]["get"]["parameters"] if one["in"] == "path"]
    broken = [misfits(document, schema, value) for schema, value in zip(schemas, values, strict=True)]
    assert (not any(broken)) is right
    target = path
    for word, value in zip([part for part in path.split("/") if part.startswith("{")], values, strict=True):
        target = target.replace(word, str(value))
    assert refused(daemon, "GET", target) is not right


def test_a_running_daemon_responds_with_the_fields_of_its_document(tmp_path: Path) -> None:
    with Daemon(Home(tmp_path), "ops") as ops:
        document = ops.get("/openapi.json")
        read = 0
        for path, methods in document["paths"].items():
            operation = methods.get("get")
            if operation is None or "{" in path or path == "/openapi.json":
                continue
            media = operation["responses"]["200"]["content"].get("application/json")
            if media is not None:  # not a stream
                schema = document["components"]["schemas"][media["schema"]["$ref"].rpartition("/")[2]]
                assert set(ops.get(path)) == set(schema["properties"]), path
                read += 1
        assert read > 12
        version = ops.get("/v1/version")
        assert (version["name"], version["protocol"], version["api"]) == ("aghbus", PROTOCOL, "v1")
        assert version["version"][0].isdigit()
        assert ops.get("/healthz") == {"alive": True}
