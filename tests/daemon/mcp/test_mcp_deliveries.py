"""What a model is told of messages that are on their way: the delivery state, an unknown recipient, what to do."""

import threading
from collections.abc import Iterator
from time import monotonic
from typing import Any

import pytest

from tests.support.daemons import Daemon, Home, ops_and_worker, wait_for
from tests.support.mcp_client import TASKS, McpClient


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Home, Daemon, Daemon]]:
    home = Home(tmp_path_factory.mktemp("mcp"))
    with ops_and_worker(home) as (ops, worker):
        yield home, ops, worker


@pytest.fixture
def ops(pair: tuple[Home, Daemon, Daemon]) -> McpClient:
    return McpClient(pair[1].socket_path)


def test_a_peer_that_is_there_has_the_message_when_the_call_returns(ops: McpClient) -> None:
    opened = ops.tool("open_work", to="worker", task="x", wait=20, until="delivered")
    said = ops.tool("say", to="worker", text="hello", wait=20)
    assert (opened["delivery"], said["delivery"], "note" in said) == ("receipted", "receipted", False)
    assert "not accepted: no worker of worker has taken it" in opened["note"]
    assert "history" not in opened  # nothing of it is new to the model


def test_nobody_acknowledges_a_message_to_everybody(ops: McpClient) -> None:
    thread = ops.tool("say", to="worker", text="hello")["thread_id"]
    began = monotonic()
    said = ops.tool("say", thread_id=thread, text="hello all", wait=50)
    assert said["delivery"] in ("queued", "published") and "to" not in said
    assert monotonic() - began < 20


def test_a_misspelt_peer_is_named_with_one_like_it(ops: McpClient) -> None:
    opened, said = ops.tool("open_work", to="workr", task="x"), ops.tool("say", to="workr", text="x")
    assert {opened["delivery"], said["delivery"]} <= {"queued", "published"}
    assert "no peer workr was ever seen" in opened["note"] and "did you mean worker?" in opened["note"]
    assert "`peers` lists the known ones; `step` cancel takes it back" in opened["note"]
    assert said["note"].startswith("No peer called workr is known") and "did you mean worker?" in said["note"]
    user = McpClient(ops.socket, TASKS)
    task = user.call("open_work", to="workr", task="x")
    assert "no peer workr was ever seen" in task["statusMessage"]
    ops.tool("step", work_id=task["taskId"], step="cancel")
    assert user.request("tasks/get", taskId=task["taskId"]).result["statusMessage"] == "the work is canceled"


def test_a_call_waits_until_a_peer_that_was_away_has_the_message(home: Home) -> None:
    """Of `open_work`, of `say`, and of a `work` that was opened before."""
    with Daemon(home, "ops") as daemon:
        ops, answers = McpClient(daemon.socket_path), {}
        opened = ops.tool("open_work", to="late", task="x")
        assert opened["delivery"] != "receipted"
        work_id = opened["works"][0]["work_id"]
        calls: dict[str, dict[str, Any]] = {
            "work": {"work_id": work_id, "until": "delivered"},
            "open_work": {"to": "late", "task": "y", "until": "delivered"},
            "say": {"to": "late", "text": "z"},
        }

        def call(tool: str) -> None:
            answers[tool] = McpClient(daemon.socket_path).tool(tool, wait=50, **calls[tool])

        waiting = [threading.Thread(target=call, args=(tool,)) for tool in calls]
        for thread in waiting:
            thread.start()
        wait_for(lambda: len(daemon.get("/v1/messages?direction=out")["messages"]) == 3, 20, "the messages")
        assert not answers
        with Daemon(home, "late"):
            for thread in waiting:
                thread.join(60)
    assert {tool: answer["delivery"] for tool, answer in answers.items()} == dict.fromkeys(calls, "receipted")


@pytest.mark.parametrize(
    ("tool", "arguments", "told"),
    [
        ("open_work", {"to": "Worker", "task": "x"}, "to: must be a peer id: 1 to 128 of a-z"),
        ("open_work", {"to": "Worker", "task": "x"}, "(`peers` lists the known ones)"),
        ("say", {"to": "wörker", "text": "x"}, "to: must be a peer id"),
        ("whois", {"to": "Worker"}, "to: must be a peer id"),
        ("work", {"work_id": "work_none"}, "no work work_none is known here (`work` shows the works)"),
        ("step", {"work_id": "work_none", "step": "accept"}, "(`work` shows the works)"),
        ("open_work", {"capability": "test.none", "task": "x"}, "no present peer announces the capability test.none"),
    ],
)
def test_an_error_gives_the_rule_and_names_tools(ops: McpClient, tool: str, arguments: Any, told: str) -> None:
    result = ops.call(tool, **arguments)
    text = result["content"][0]["text"]
    assert result["isError"] is True
    assert told in text
    assert "aghctl" not in text or text.endswith("; `aghctl` is for your user)")
