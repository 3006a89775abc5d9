"""`aghctl bridge FORMAT -- COMMAND` with agents that ask: the work waits, and the command runs again with the conversation."""

import json
import os
import signal
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.asking_commands import AGENTOS, HUMANINLOOP, IMPORTS, NOW, SACP, SENTIENT
from tests.support.bridge_daemons import INPUT, link, messages, query
from tests.support.bridging import submit
from tests.support.chain_agents import begin, chain, reach
from tests.support.daemons import wait_for
from tests.support.serving import WAIT, Bus, script, serving, two_peers

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="bridging to a command needs Linux")

START = f"""{IMPORTS}{NOW}
text = sys.stdin.read()
with open("inputs", "a") as inputs:
    print(json.dumps(text), file=inputs)
agent, first = "worker", "AGH_ANSWER" not in os.environ
message = "Which company?" if first else "Found."
"""


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    with two_peers(tmp_path_factory.mktemp("questions")) as both:
        yield both


def asked(bus: Bus, work_id: str, text: str = "Which company?") -> None:
    """Wait until the initiator has the question."""
    wait_for(lambda: bus.ops.get(f"/v1/works/{work_id}")["work"]["message"] == text, WAIT, "the question to arrive")
    assert bus.ops.state_of(work_id) == "needs_input"


def say(bus: Bus, work_id: str) -> None:
    bus.ops.post(f"/v1/works/{work_id}/say", message="Acme")


def respond(bus: Bus, work_id: str) -> None:
    """Answer the question as an agent of AgentOS: a response to the query that it got."""
    seq = bus.ops.get(f"/v1/messages?work={work_id}&kind=trace&direction=in")["messages"][-1]["seq"]
    question = bus.ops.get(f"/v1/bridge/agentos/messages/{seq}")["message"]
    assert (question["type"], question["payload"]["content"]) == ("query", "Which company?")
    answer = query("ops", "worker", type="response", replyTo=question["id"])
    answer["payload"] = {**answer["payload"], "content": "Acme", "format": "text"}
    (sent,) = submit(bus.ops, "agentos", between(answer))["sent"]
    assert (sent["kind"], sent["work_id"]) == ("say", work_id)


def between(message: dict[str, Any]) -> dict[str, Any]:
    """A message of AgentOS from `ops` to `worker`."""
    return {**message, "from": {"agentId": "ops", "instanceId": ""}, "to": {"agentId": "worker", "instanceId": ""}}


def check_text(inputs: list[str]) -> None:
    assert inputs[0] == "find the CEO\n"
    question, status = '"message": "Which company?"', '"status": "clarification_needed"'
    opening, own, reply = inputs[1].split("\n\n")
    assert (opening, reply) == ("find the CEO", "ops answered:\nAcme\n")
    assert own.startswith("You answered:\n{")
    assert question in own
    assert status in own


def check_prior_context(inputs: list[str]) -> None:
    first, second = map(json.loads, inputs)
    assert first == INPUT
    question, reply = second["conversation"]
    assert (question["recommendation"], reply["task"]["params"]["text"]) == ("escalate", "Acme")
    assert second["prior_context"] == ["earlier notes", "question: Which company?", "n", "answer: Acme"]
    assert {**second, "prior_context": INPUT["prior_context"], "conversation": None} == {**INPUT, "conversation": None}


def check_messages(inputs: list[str]) -> None:
    first, second = map(json.loads, inputs)
    question, reply = second.pop("conversation")
    assert second == first
    assert (question["type"], question["replyTo"]) == ("query", first["id"])
    assert (reply["type"], reply["replyTo"], reply["payload"]["content"]) == ("response", question["id"], "Acme")


def check_chain(inputs: list[str]) -> None:
    first, second = map(json.loads, inputs)
    question, reply = second.pop("conversation")
    assert second == first
    assert (question["status"]["code"], question["metadata"]["parent_message_id"]) == ("pending", first["message_id"])
    assert (reply["agent"]["name"], reply["output"]["content"]) == ("ops", "Acme")
    assert reply["metadata"]["session_id"] == first["metadata"]["session_id"]


def open_text(bus: Bus) -> str:
    return bus.open("find the CEO")


def open_input(bus: Bus) -> str:
    return str(submit(bus.ops, "humaninloop", INPUT, target="worker")["sent"][0]["work_id"])


def open_query(bus: Bus) -> str:
    return str(submit(bus.ops, "agentos", between(query("ops", "worker")))["sent"][0]["work_id"])


def open_chain(bus: Bus) -> str:
    return str(submit(bus.ops, "sentient", link("ops", "worker", 1, session=f"s-{id(bus)}"))["sent"][0]["work_id"])


Open = Callable[[Bus], str]
Answer = Callable[[Bus, str], None]
Check = Callable[[list[str]], None]
FORMATS = [
    pytest.param("sacp", SACP, open_text, say, check_text, id="sacp"),
    pytest.param("humaninloop", HUMANINLOOP, open_input, say, check_prior_context, id="humaninloop"),
    pytest.param("agentos", AGENTOS, open_query, respond, check_messages, id="agentos"),
    pytest.param("sentient", SENTIENT, open_chain, say, check_chain, id="sentient"),
]


def inputs_of(folder: Path) -> list[str]:
    return [json.loads(line) for line in (folder / "inputs").read_text().splitlines()]


@pytest.mark.parametrize(("name", "agent", "opens", "answers", "check"), FORMATS)
def test_a_command_that_asks_runs_again_with_the_conversation(
    bus: Bus, tmp_path: Path, name: str, agent: str, opens: Open, answers: Answer, check: Check
) -> None:
    command = script(tmp_path, START + agent)
    with serving(bus, tmp_path, "--once", command=command, words=("bridge", name)) as serve:
        work_id = opens(bus)
        asked(bus, work_id)
        assert serve.until("asked")["message"] == "Which company?"
        assert bus.waiting(work_id) == []
        answers(bus, work_id)
        end = bus.end_of(work_id)
        assert (end["event"], end["message"]) == ("trace:completed", "Found.")
        assert serve.ended() == 0
    check(inputs_of(tmp_path))
    assert bus.waiting(work_id) == []


@pytest.mark.parametrize(("name", "agent", "opens", "answers", "check"), FORMATS)
def test_the_waiting_work_survives_a_kill_of_bridge_and_daemon(
    tmp_path: Path, name: str, agent: str, opens: Open, answers: Answer, check: Check
) -> None:
    command = script(tmp_path, START + agent)
    with two_peers(tmp_path) as bus:
        with serving(bus, tmp_path, command=command, words=("bridge", name)) as serve:
            work_id = opens(bus)
            serve.until("asked")
            asked(bus, work_id)
            serve.stop(signal.SIGKILL)
        bus.worker.kill()
        bus.worker.start()
        bus.meet()
        answers(bus, work_id)
        with serving(bus, tmp_path, command=command, words=("bridge", name)) as serve:
            assert bus.end_of(work_id)["event"] == "trace:completed"
            assert serve.until("recovered")["phase"] == "waiting"
    check(inputs_of(tmp_path))


@pytest.mark.parametrize(("name", "agent", "opens", "answers", "check"), FORMATS)
def test_without_an_answer_the_work_fails_at_the_end_of_the_time(
    bus: Bus, tmp_path: Path, name: str, agent: str, opens: Open, answers: Answer, check: Check
) -> None:
    command = script(tmp_path, START + agent)
    with serving(bus, tmp_path, "--once", "--answer-within", "1s", command=command, words=("bridge", name)) as serve:
        end = bus.end_of(opens(bus))
        assert serve.ended() == 1
    assert (end["event"], end["message"]) == ("trace:failed", "no answer within 1s: Which company?")


def test_a_question_that_was_not_yet_in_the_journal_is_asked_once(bus: Bus, tmp_path: Path) -> None:
    command = script(tmp_path, START + SACP)
    with serving(bus, tmp_path, command=command, words=("bridge", "sacp")) as serve:
        work_id = bus.open("find the CEO")
        serve.until("asked")
        asked(bus, work_id)
        serve.stop(signal.SIGKILL)
    (path,) = (bus.journal().parent / "bridge-sacp").glob("job_*.jsonl")
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    say(bus, work_id)
    wait_for(lambda: bus.waiting(work_id), WAIT, "the answer to arrive")
    with serving(bus, tmp_path, command=command, words=("bridge", "sacp")):
        assert bus.end_of(work_id)["message"] == "Found."
    assert [trace["state"] for trace in bus.traces(work_id)] == ["needs_input", "completed"]


def test_an_answer_as_an_input_envelope_is_carried_with_its_notes(bus: Bus, tmp_path: Path) -> None:
    with serving(bus, tmp_path, command=script(tmp_path, START + HUMANINLOOP), words=("bridge", "humaninloop")):
        work_id = open_input(bus)
        asked(bus, work_id)
        task = {"action": "answer", "params": {"company": "Acme"}}
        reply = {**INPUT, "task": task, "prior_context": ["from the board"]}
        submit(bus.ops, "humaninloop", reply, work_id=work_id)
        assert bus.end_of(work_id)["event"] == "trace:completed"
    second = json.loads(inputs_of(tmp_path)[1])
    assert second["task"] == INPUT["task"]
    assert second["prior_context"][1:] == [
        *("question: Which company?", "n", f"answer: {json.dumps(task)}", "from the board")
    ]
    assert second["conversation"][1] == reply


def test_a_bridged_command_can_ask_with_need_input_too(bus: Bus, tmp_path: Path) -> None:
    asks = """
import subprocess
if first:
    ask = ["-m", "aghbus.cli", "work", "need-input", os.environ["AGH_WORK_ID"], "--message", "Which company?"]
    subprocess.run([sys.executable, *ask], check=True, stdout=subprocess.DEVNULL)
    sys.exit()
"""
    with serving(bus, tmp_path, command=script(tmp_path, START + asks + SACP), words=("bridge", "sacp")):
        work_id = bus.open("find the CEO")
        asked(bus, work_id)
        say(bus, work_id)
        assert bus.end_of(work_id)["message"] == "Found."
    assert inputs_of(tmp_path)[1] == "find the CEO\n\nYou answered:\nWhich company?\n\nops answered:\nAcme\n"


def test_an_output_that_leaves_the_work_open_is_waited_for_only_so_long(bus: Bus, tmp_path: Path) -> None:
    command = script(tmp_path, START + AGENTOS.replace('"query" if first', '"event" if first'))
    words = ("bridge", "agentos")
    with serving(bus, tmp_path, "--once", "--answer-within", "1s", command=command, words=words) as serve:
        end = bus.end_of(open_query(bus))
        assert serve.ended() == 1
    assert (end["event"], end["message"]) == ("trace:failed", "no answer within 1s")


def test_a_message_passed_on_to_the_next_agent_is_no_question(bus: Bus, tmp_path: Path) -> None:
    passes = SENTIENT.replace('"user" if first', '"ops" if first').replace('"pending"', '"success"')
    with serving(
        bus, tmp_path, "--once", command=script(tmp_path, START + passes), words=("bridge", "sentient")
    ) as serve:
        open_chain(bus)
        assert serve.ended() == 0
    assert not serve.seen("asked")
    assert messages(bus.ops, "sentient", 1)[0]["message"]["agent"]["name"] == "worker"


def test_chain_pauses_at_a_commands_question_and_resumes_on_answer(bus: Bus, tmp_path: Path) -> None:
    nodes = {name: {"peer": "worker", "input": "find the CEO"} for name in ("a", "b")}
    with serving(bus, tmp_path, command=script(tmp_path, START + SACP), words=("bridge", "sacp")):
        run_id = begin(bus.ops, chain(nodes, ("a", "b", 'response.message == "Found."')))
        for node in ("a", "b"):
            assert reach(bus.ops, run_id, "waiting")["question"] == "Which company?"
            bus.ops.post(f"/v1/chains/runs/{run_id}/answer", text="Acme", node=node)
        run = reach(bus.ops, run_id, "completed", "failed")
    assert (run["state"], [step["message"] for step in run["history"]]) == ("completed", ["Found.", "Found."])
    assert inputs_of(tmp_path)[1].endswith("ops answered:\nAcme\n")


def test_a_chain_fails_at_a_question_that_nobody_answers(bus: Bus, tmp_path: Path) -> None:
    command = script(tmp_path, START + SACP)
    with serving(bus, tmp_path, "--answer-within", "1s", command=command, words=("bridge", "sacp")):
        run_id = begin(bus.ops, chain({"a": {"peer": "worker", "input": "find the CEO"}}))
        run = reach(bus.ops, run_id, "completed", "failed")
    assert run["state"] == "failed"
    assert "no answer within 1s: Which company?" in run["history"][-1]["message"]
