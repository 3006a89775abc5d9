"""Artifacts that do not match their reference: the envelope counts as native, with a finding."""

import asyncio
import hashlib
import json
from pathlib import Path
from typing import Any

import pytest

from aghbus.daemon.config.settings import ArtifactSettings
from tests.support.bridge_daemons import MAP, SHORT, daemons, messages, put_artifact, query
from tests.support.bridging import submit
from tests.support.daemons import Daemon, HttpError, wait_for
from tests.support.jetstream import admin
from tests.support.natsutil import NatsServer


def refer(daemon: Daemon, reference: dict[str, Any]) -> None:
    """A say to the worker whose message lies elsewhere."""
    daemon.post(
        "/v1/messages",
        kind="say",
        to="worker",
        thread_id="thread_open",
        body={"text": "in plain words"},
        ext={"agentos.message_ref": reference},
    )


def native_with(got: dict[str, Any], words: str) -> None:
    """It was made from the envelope, and the finding says why."""
    assert got["native"]
    assert "in plain words" in json.dumps(got["message"])
    (why,) = (found for found in got["findings"] if found["rule"] == "message_ref")
    assert why["severity"] == "warning"
    assert words in why["message"]


@pytest.mark.parametrize(
    ("stored", "words"),
    [
        (lambda whole: whole.replace(b"event", b"query"), "does not match the content"),
        (lambda whole: whole[:-1], "another size"),
        (lambda whole: whole + b" ", "another size"),
    ],
    ids=["changed", "shorter", "longer"],
)
def test_an_artifact_that_does_not_match_its_reference_is_not_used(tmp_path: Path, stored: Any, words: str) -> None:
    with daemons(tmp_path, ("ops", *MAP), ("worker", *MAP)) as (ops, worker):
        whole = json.dumps(query("asker", "helper", type="event")).encode()
        uri = put_artifact(ops, "bridge", "message.json", stored(whole))
        refer(ops, {"uri": uri, "sha256": hashlib.sha256(whole).hexdigest(), "size": len(whole)})
        (got,) = messages(worker, "agentos", 1)
        native_with(got, words)


def test_an_artifact_that_is_not_json_is_an_invalid_carried_message(tmp_path: Path) -> None:
    with daemons(tmp_path, ("ops", *MAP), ("worker", *MAP)) as (ops, worker):
        content = b'{"id": 1, "id": 2}'
        uri = put_artifact(ops, "bridge", "message.json", content)
        refer(ops, {"uri": uri, "sha256": hashlib.sha256(content).hexdigest(), "size": len(content)})
        (got,) = messages(worker, "agentos", 1)
        assert got["native"]
        assert "carried_message" in {found["rule"] for found in got["findings"]}


def test_an_artifact_that_was_damaged_in_the_bucket(tmp_path: Path) -> None:
    async def run() -> None:
        async with NatsServer(jetstream=True) as server:
            await asyncio.to_thread(_damaged, tmp_path, server)

    asyncio.run(run())


def test_large_question_is_answerable_and_logged_by_its_own_id(tmp_path: Path) -> None:
    with daemons(tmp_path, ("ops", *MAP), ("worker", *MAP)) as (ops, worker):
        question = query("asker", "helper")
        question["payload"]["content"] = {"question": "x" * 1_200_000}
        sent = submit(ops, "agentos", question)["sent"][0]

        def logged() -> list[str]:
            return [row["messageId"] for row in worker.get("/v1/bridge/agentos/log")["rows"]]

        wait_for(logged, SHORT, "the row of the question, which nobody has read")
        assert logged() == [question["id"]]
        submit(worker, "agentos", query("helper", "asker", type="response", replyTo=question["id"]))
        wait_for(lambda: ops.state_of(sent["work_id"]) == "completed", SHORT, "the answer")


def _damaged(root: Path, server: NatsServer) -> None:
    async def damage() -> None:
        """The content is gone, its description is not."""
        bucket = ArtifactSettings().bucket
        async with admin(server) as api:
            await api.call(f"STREAM.PURGE.OBJ_{bucket}", {"filter": f"$O.{bucket}.C.>"})

    flags = (*MAP, "--nats", server.url)
    with daemons(root, ("ops", *flags), ("worker", *flags)) as (ops, worker):
        large = query("asker", "helper", type="event")
        large["payload"]["content"] = "in plain words " * 100_000
        sent = submit(ops, "agentos", large)["sent"][0]
        asyncio.run(damage())
        (got,) = messages(worker, "agentos", 1)
        native_with(got, "bytes are missing")
        assert got["envelope_id"] == sent["id"]
        assert worker.get("/v1/status")["counters"].get("internal_errors") is None


async def test_a_large_message_is_delivered_once_the_broker_is_reachable(tmp_path: Path, server: NatsServer) -> None:
    flags = (*MAP, "--nats", server.url)
    with daemons(tmp_path, ("ops", *flags), ("worker", *flags)) as (ops, worker):
        large = query("asker", "helper", type="event")
        large["payload"]["content"] = "in plain words " * 100_000
        sent = submit(ops, "agentos", large)["sent"][0]

        def came() -> list[int]:
            return [one["seq"] for one in worker.get("/v1/messages")["messages"] if one["id"] == sent["id"]]

        wait_for(came, SHORT, "the message")
        (seq,) = came()
        wait_for(lambda: worker.get("/v1/bridge/agentos/log")["rows"], SHORT, "the follower to have seen it")
        server.kill()
        wait_for(lambda: worker.get("/v1/status")["broker"]["state"] != "up", SHORT, "the link to be lost")
        with pytest.raises(HttpError) as refused:
            worker.get(f"/v1/bridge/agentos/messages/{seq}")
        assert refused.value.status == 503
        stream = asyncio.create_task(asyncio.to_thread(messages, worker, "agentos", 1, "?since=0"))
        await server.start()
        (got,) = await stream
        assert (got["message"], got["native"]) == (large, False)
