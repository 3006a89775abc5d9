"""The examples of the OpenAPI document against running daemons: the requests are understood, and the answers fit the schemas."""

import contextlib
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.api_document import JSON, example_request, misfits, operations
from tests.support.daemons import Daemon, Home, HttpError, wait_for

OTHER_REFUSALS = {"not_found", "refused", "conflict", "lease_lost"}  # no such work, message or lease here


@pytest.fixture
def ops(tmp_path: Path) -> Iterator[Daemon]:
    home = Home(tmp_path)
    with Daemon(home, "ops") as ops, Daemon(home, "patch-worker", "--capability", "test.run") as worker:
        wait_for(lambda: ops.knows("patch-worker") and worker.knows("ops"), 30, "presence")
        worker.post("/v1/messages", kind="say", to="ops", body={"text": "hello"})
        wait_for(lambda: ops.get("/v1/inbox")["items"], 30, "a message to lease")
        yield ops


def answered(ops: Daemon, method: str, target: str, body: Any) -> tuple[str, Any]:
    """The status and the answer; the first event of a stream."""
    if "stream" in target or target.startswith("/v1/events"):
        with contextlib.closing(ops.stream(target)) as events:
            return "200", next(events)
    try:
        return ("201" if method == "POST" else "200"), ops.request(method, target, body)
    except HttpError as error:
        assert error.answer["code"] in OTHER_REFUSALS, (method, target, error.answer)
        return str(error.status), error.answer


def test_each_example_is_understood_and_its_answer_fits_the_document(ops: Daemon) -> None:
    document = ops.get("/openapi.json")
    succeeded = set()
    for method, path, operation in operations(document):
        target, body = example_request(path, operation)
        if "artifacts/{" in path or path == "/v1/bridge/{format}/stream":
            continue  # raw bytes, and a stream that may have no event
        status, answer = answered(ops, method, target, body)
        responses = operation["responses"]
        content = (responses.get(status) or responses["200"])["content"]
        schema = content.get(JSON, content.get("text/event-stream"))["schema"]
        assert not misfits(document, schema, answer), (method, path)
        if status.startswith("2"):
            succeeded.add(operation["operationId"])
    assert succeeded >= {"openWork", "listPeers", "findPeers", "leaseNextMessage", "streamEvents", "reportMcpSession"}
