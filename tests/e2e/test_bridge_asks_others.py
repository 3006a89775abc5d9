"""`aghctl bridge agentos -- COMMAND`: messages without a work run it, and it may ask further agents before it answers."""

import json
import os
import signal
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.asking_commands import IMPORTS, NOW
from tests.support.bridge_daemons import query
from tests.support.bridging import submit
from tests.support.daemons import Daemon, wait_for
from tests.support.serving import WAIT, Bus, Serve, script, serving, two_peers

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="bridging to a command needs Linux")

BRIDGE = ("bridge", "agentos")
READ = f"""{IMPORTS}{NOW}
text = sys.stdin.read()
with open("inputs", "a") as inputs:
    inputs.write(text)
told = json.loads(text)
answers = told.pop("conversation", [])
back = {{**told, "timestamp": now, "from": told["to"], "to": told["from"], "replyTo": told["id"], "type": "response"}}
back["evidence"] = {{"sources": [], "confidence": 50, "citations": [], "provenance": []}}
def send(**more):
    message = {{**back, "id": f"msg-{{uuid.uuid4()}}", **more}}
    if message["type"] != "response":
        del message["replyTo"]
    print(json.dumps(message))
def content(value):
    return {{**told["payload"], "format": "json", "content": value}}
"""
ASKS = """
replies = [one["payload"]["content"] for one in answers if one["type"] in ("response", "error")]
if not replies:
    for name in peers:
        send(to={"agentId": name, "instanceId": ""}, type="query", payload=content({"for": name}))
else:
    send(payload=content(replies))
"""


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    with two_peers(tmp_path / "home") as both:
        yield both


@pytest.fixture
def helpers(bus: Bus) -> Iterator[dict[str, Daemon]]:
    """Two further agents on the bus of `ops` and `worker`."""
    with Daemon(bus.home, "left") as left, Daemon(bus.home, "right") as right:
        made = {"left": left, "right": right}
        wait_for(lambda: bus.worker.knows("left", "right"), WAIT, "the helpers to be known")
        wait_for(lambda: all(one.knows("worker") for one in made.values()), WAIT, "the helpers to know the worker")
        yield made


def between(sender: str, to: str, message: dict[str, Any]) -> dict[str, Any]:
    return {**message, "from": {"agentId": sender, "instanceId": ""}, "to": {"agentId": to, "instanceId": ""}}


def asking(*peers: str) -> str:
    return f"{READ}peers = {peers!r}\n{ASKS}"


def ask(bus: Bus, **more: Any) -> str:
    sent = submit(bus.ops, "agentos", between("ops", "worker", query("ops", "worker", **more)))["sent"]
    return str(sent[0]["work_id"])


def inputs(folder: Path) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (folder / "inputs").read_text().splitlines()]


def received(helper: Daemon) -> dict[str, Any]:
    """The message of AgentOS that opened the only work of a helper."""
    wait_for(lambda: helper.get("/v1/inbox")["items"], WAIT, "the query to arrive")
    (item,) = helper.get("/v1/inbox")["items"]
    message: dict[str, Any] = helper.get(f"/v1/bridge/agentos/messages/{item['seq']}")["message"]
    return message


def reply(helper: Daemon, value: Any) -> None:
    asked = received(helper)
    answer = query("", "", type="response", replyTo=asked["id"])
    answer |= {"from": asked["to"], "to": asked["from"], "payload": {**asked["payload"], "content": value}}
    submit(helper, "agentos", answer)


def content_of(bus: Bus, work_id: str) -> Any:
    """What the asker got in the end."""
    step = bus.end_of(work_id)
    assert step["event"] == "trace:completed", step
    return step["result"]["content"]


# messages without a work


@pytest.mark.parametrize("kind", ["event", "gap", "evidence", "error"])
def test_each_type_without_a_work_runs_the_command(bus: Bus, tmp_path: Path, kind: str) -> None:
    acts = READ + 'send(type="event", payload=content({"seen": told["type"]}))\n'
    content = {"code": "SOURCE_ERROR", "details": "down", "recoverable": True} if kind == "error" else {"n": 1}
    message = between("ops", "worker", query("ops", "worker", type=kind))
    message["payload"] = {**message["payload"], "content": content}
    with serving(bus, tmp_path, command=script(tmp_path, acts), words=BRIDGE) as serve:
        submit(bus.ops, "agentos", message)
        serve.until("reported")
    (seen,) = inputs(tmp_path)
    assert (seen["type"], seen["id"], seen["payload"]["content"]) == (kind, message["id"], content)
    wait_for(lambda: bus.ops.get("/v1/inbox")["items"], WAIT, "the event of the command")
    (item,) = bus.ops.get("/v1/inbox")["items"]
    assert json.loads(item["message"]["envelope"]["body"]["text"]) == {"seen": kind}


def test_an_output_that_is_refused_is_told(bus: Bus, tmp_path: Path) -> None:
    with serving(bus, tmp_path, command=script(tmp_path, READ + "send()\n"), words=BRIDGE) as serve:
        submit(bus.ops, "agentos", between("ops", "worker", query("ops", "worker", type="event")))
        assert "no_work" in serve.until("problem")["message"]
        assert content_of(bus, ask(bus)) == {"question": "how many?"}


def test_other_formats_acknowledge_by_default(bus: Bus, tmp_path: Path) -> None:
    with serving(bus, tmp_path, command=["true"], words=("bridge", "sacp")) as serve:
        bus.ops.post("/v1/messages", kind="say", to="worker", body={"text": "just talking"})
        assert serve.until("acknowledged")["count"] == 1
        assert not serve.seen("started")


# queries to other agents


def test_a_command_that_asks_another_agent_runs_again_with_the_answer(
    bus: Bus, helpers: dict[str, Daemon], tmp_path: Path
) -> None:
    with serving(bus, tmp_path, command=script(tmp_path, asking("left")), words=BRIDGE) as serve:
        work_id = ask(bus)
        assert len(serve.until("asked")["asked"]) == 1
        reply(helpers["left"], 17)
        assert content_of(bus, work_id) == [17]
        first, second = inputs(tmp_path)
        own, answer = second.pop("conversation")
        assert second == first
        assert (own["type"], answer["replyTo"], answer["payload"]["content"]) == ("query", own["id"], 17)
        wait_for(lambda: not bus.worker.get("/v1/inbox")["items"], WAIT, "an empty inbox")


def test_several_agents_are_asked_at_once(bus: Bus, helpers: dict[str, Daemon], tmp_path: Path) -> None:
    with serving(bus, tmp_path, command=script(tmp_path, asking("left", "right")), words=BRIDGE) as serve:
        work_id = ask(bus)
        assert len(serve.until("asked")["asked"]) == 2
        reply(helpers["right"], "r")
        reply(helpers["left"], "l")
        assert content_of(bus, work_id) == ["r", "l"]
        assert len(inputs(tmp_path)) == 2


def test_the_failure_of_another_agent_is_an_answer(bus: Bus, helpers: dict[str, Daemon], tmp_path: Path) -> None:
    with serving(bus, tmp_path, command=script(tmp_path, asking("left")), words=BRIDGE):
        work_id = ask(bus)
        received(helpers["left"])
        (item,) = helpers["left"].get("/v1/inbox")["items"]
        helpers["left"].post(f"/v1/works/{item['message']['work_id']}/reject", reason="busy", message="later")
        (answer,) = content_of(bus, work_id)
        assert answer["code"] == "SOURCE_ERROR"


def test_the_time_to_live_of_the_first_query_ends_the_second_one(
    bus: Bus, helpers: dict[str, Daemon], tmp_path: Path
) -> None:
    with serving(bus, tmp_path, command=script(tmp_path, asking("left")), words=BRIDGE) as serve:
        work_id = ask(bus, ttl=10)
        serve.until("asked")
        (item,) = (received(helpers["left"]), helpers["left"].get("/v1/inbox")["items"])[1]
        assert bus.end_of(work_id)["event"] == "receipt:canceled"
        serve.until("dropped")
        second = item["message"]["work_id"]
        wait_for(lambda: helpers["left"].state_of(second) == "canceled", WAIT, "the second query to be canceled")
        assert len(inputs(tmp_path)) == 1


def test_an_answer_that_comes_while_the_bridge_is_down_is_found(
    bus: Bus, helpers: dict[str, Daemon], tmp_path: Path
) -> None:
    command = script(tmp_path, asking("left"))

    def serve() -> Any:
        return serving(bus, tmp_path, command=command, words=BRIDGE)

    with serve() as first:
        work_id = ask(bus)
        first.until("asked")
        kill(first)
    reply(helpers["left"], 17)
    with serve():
        assert content_of(bus, work_id) == [17]


def kill(serve: Serve) -> None:
    serve.process.send_signal(signal.SIGKILL)
    serve.process.wait(WAIT)
