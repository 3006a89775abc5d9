"""Chains with messages that are too large for an envelope, over real daemons and their artifact store."""

import uuid
from pathlib import Path
from typing import Any

import pytest

from tests.support.bridge_daemons import put_artifact
from tests.support.bridging import WITHIN, broker
from tests.support.chain_agents import Agent, Envelope, asked, begin, chain, reach
from tests.support.daemons import Daemon, Home, wait_for
from tests.support.natsutil import NatsServer

NAMES = ("--bridge-agent", "asker=ops", "--bridge-agent", "helper=worker")
HALF = '"' * 400_000
QUESTION = "{{input}} {{input}}"  # 1.6 MB as JSON; the request that begins the run has half of that


def answered(got: dict[str, Any], content: Any) -> dict[str, Any]:
    """The helper's response to a message."""
    return {
        **got,
        "id": f"msg-{uuid.uuid4()}",
        "type": "response",
        "replyTo": got["id"],
        "from": got["to"],
        "to": got["from"],
        "payload": {**got["payload"], "content": content},
    }


def work(agent: Agent, _envelope: Envelope, seq: int) -> None:
    """Answers with as much as it was asked with."""
    got = agent.daemon.get(f"/v1/bridge/agentos/messages/{seq}")
    assert not got["native"]
    message = got["message"]
    size = len(message["payload"]["content"]["question"])
    agent.daemon.post("/v1/bridge/agentos", message=answered(message, {"size": size, "text": "y" * 2 * size}))


def test_an_opening_and_a_response_that_fit_no_envelope(home: Home) -> None:
    nodes = {
        "a": {"peer": "worker", "format": "agentos", "input": asked(QUESTION)},
        "b": {"peer": "worker", "format": "agentos", "input": asked("{{a.payload.content.size}} characters")},
    }
    document = chain(nodes, ("a", "b", f"response.payload.content.size == {2 * len(HALF) + 1}"))
    with Daemon(home, "ops", *NAMES) as ops, Daemon(home, "worker", *NAMES) as worker, Agent(worker, work) as agent:
        run = reach(ops, begin(ops, document, input=HALF), "completed", "failed")
        assert run["state"] == "completed", run["error"]
        assert run["response"]["payload"]["content"]["size"] == len("800001 characters")
        assert [len(step["response"]["payload"]["content"]["text"]) for step in run["history"]] == [1_600_002, 34]
        opening, second = agent.taken
        assert "agentos.message_ref" in opening["ext"]
        assert "agentos.message" not in opening["ext"]
        assert "agentos.message" in second["ext"]
        assert len(ops.get("/v1/works")["works"]) == 2


def test_without_an_artifact_store_an_opening_of_that_size_fails_the_run(tmp_path: Path) -> None:
    document = chain({"a": {"peer": "worker", "format": "agentos", "input": asked(QUESTION)}})
    with broker() as url, Daemon(Home(tmp_path), "ops", *NAMES, "--nats", url) as ops:
        run = reach(ops, begin(ops, document, input=HALF), "completed", "failed")
        assert run["state"] == "failed"
        assert "too many for an envelope" in run["error"]
        assert ops.get("/v1/works")["works"] == []


async def test_an_opening_of_that_size_waits_for_the_broker(tmp_path: Path) -> None:
    document = chain({"a": {"peer": "worker", "format": "agentos", "input": asked(QUESTION)}})
    async with NatsServer(jetstream=True) as server:
        home, flags = Home(tmp_path), (*NAMES, "--nats", server.url)
        with Daemon(home, "ops", *flags) as ops, Daemon(home, "worker", *flags) as worker, Agent(worker, work):
            server.kill()
            wait_for(lambda: ops.get("/v1/status")["broker"]["state"] != "up", WITHIN, "the link to be down")
            run_id = begin(ops, document, input=HALF)
            run = ops.get(f"/v1/chains/runs/{run_id}")
            assert (run["state"], run["history"][0]["work_id"]) == ("running", None)
            await server.restart()
            run = reach(ops, run_id, "completed", "failed")
            assert run["state"] == "completed", run["error"]


async def test_an_opening_of_that_size_waits_for_a_broker_that_died(tmp_path: Path) -> None:
    document = chain({"a": {"peer": "worker", "format": "agentos", "input": asked(QUESTION)}})
    async with NatsServer(jetstream=True) as server:
        home, flags = Home(tmp_path), (*NAMES, "--nats", server.url)
        with Daemon(home, "ops", *flags) as ops, Daemon(home, "worker", *flags) as worker, Agent(worker, work):
            await server.pause()
            run_id = begin(ops, document, input=HALF)
            server.kill()
            wait_for(lambda: ops.get("/v1/status")["broker"]["state"] != "up", WITHIN, "the link to be down")
            await server.restart()
            run = reach(ops, run_id, "completed", "failed")
            assert run["state"] == "completed", run["error"]


@pytest.mark.parametrize("reference", ["another", "missing"])
def test_a_response_that_does_not_match_its_reference_counts_as_native(home: Home, reference: str) -> None:
    """The worker completes by itself, with a reference to an artifact of other content, or to none."""

    def forge(agent: Agent, envelope: Envelope, _seq: int) -> None:
        content = b'{"type":"response","forged":true}'
        uri = f"agh://artifacts/{envelope['work_id']}/answer.json"
        if reference == "another":
            put_artifact(agent.daemon, envelope["work_id"], "answer.json", content)
        agent.daemon.post(
            "/v1/messages",
            kind="trace",
            to="ops",
            thread_id=envelope["thread_id"],
            work_id=envelope["work_id"],
            body={"state": "completed", "result": {"honest": True}},
            ext={"agentos.message_ref": {"uri": uri, "sha256": "0" * 64, "size": len(content)}},
        )

    document = chain({"a": {"peer": "worker", "input": "go"}})
    with Daemon(home, "ops", *NAMES) as ops, Daemon(home, "worker", *NAMES) as worker, Agent(worker, forge):
        wait_for(lambda: ops.knows("worker"), WITHIN, "presence")
        run = reach(ops, begin(ops, document), "completed", "failed")
        assert run["state"] == "completed"
        assert run["response"]["data"] == {"honest": True}
        assert ops.get("/v1/status")["counters"].get("chains.internal_errors") is None
