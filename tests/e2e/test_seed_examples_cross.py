"""Every real JSON example of the four seeds crosses a real broker between two daemons unchanged, with the findings it deserves.

What deserves a finding: the examples were written long ago (`clock_skew`), AgentOS numbers its messages with UUIDs of
version 1 (`uuid_version`), and ADR-007 writes one path from the root of the repository (`feature_root_stripped`).
"""

import copy
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.bridging import (
    Found,
    agent_map,
    broker,
    daemons,
    envelope,
    found,
    handed_out,
    same_json,
    submit,
    the_say,
    work_ended,
)
from tests.support.daemons import Daemon
from tests.support.seed_examples import Example, examples

BRAIN: Final = "one-brain.ob-001"  # AgentOS's instance ids, as they are written in the seed
ANALYST: Final = "macro-analyst.ma-001"
AGENTS: Final = {
    "data-connector-wb": ANALYST,
    "gap-ticket-creator": ANALYST,
    "admin-monitor": BRAIN,
    "objective_agent": BRAIN,
    "goal_agent": ANALYST,
    "planning_agent": BRAIN,
}
Pair = tuple[Daemon, Daemon]

AGENTOS: Final[Found] = [
    ("/id", "uuid_version", "warning"),
    ("/timestamp", "clock_skew", "warning"),
]
SENTIENT: Final[Found] = [("/timestamp/executed_at", "clock_skew", "warning")]
OUTPUT: Final[Found] = [("/artifacts/0/path", "feature_root_stripped", "warning")]
SURROUNDED: Final[Found] = [
    ("", "surrounding_text", "warning")
]  # not the example's fault: what the test wrote around it


def of(name: str) -> list[Any]:
    """One parameter for each example of a format, called after its heading."""
    return [pytest.param(example, id=f"{name}-{example.source}") for example in examples(name)]


def value(name: str, source: str) -> Any:
    """The example under a heading that begins so."""
    (example,) = (example for example in examples(name) if example.source.startswith(source))
    return example.value


@pytest.fixture(scope="module")
def nats_url() -> Iterator[str]:
    with broker() as url:
        yield url


@pytest.fixture(scope="module")
def pair(nats_url: str, tmp_path_factory: pytest.TempPathFactory) -> Iterator[Pair]:
    """The brain's daemon and the analyst's."""
    flags = agent_map(AGENTS)
    with daemons(tmp_path_factory.mktemp("pair"), nats_url, {BRAIN: flags, ANALYST: flags}) as made:
        yield made[BRAIN], made[ANALYST]


def crosses(sender: Daemon, receiver: Daemon, name: str, message: Any, due: Found, **more: Any) -> Any:
    """Submit a message and read it at the other daemon: the same JSON value, and the findings `due` everywhere."""
    answer = submit(sender, name, message, **more)
    assert found(answer) == due
    assert same_json(answer["message"], message)
    carrier = answer["sent"][-1]
    handed = handed_out(receiver, name, carrier["id"])
    assert same_json(handed["message"], message)
    assert handed["native"] is False
    assert found(handed) == due
    on_the_wire = envelope(receiver, carrier["id"])["ext"]
    assert same_json(on_the_wire[f"{name}.message"], message)
    assert found({"findings": on_the_wire.get(f"{name}.findings", [])}) == due
    return handed


# agentos


@pytest.mark.parametrize("example", of("agentos"))
def test_an_example_of_agentos_crosses(pair: Pair, example: Example) -> None:
    brain, analyst = pair
    kind = example.value["type"]
    if kind == "query":
        handed = crosses(brain, analyst, "agentos", example.value, AGENTOS)
        assert (handed["kind"], handed["work_state"]) == ("say", "submitted")
        return
    if "replyTo" in example.value:  # answered by the response: the question must have crossed
        question = submit(brain, "agentos", value("agentos", "Query"))
        handed_out(analyst, "agentos", question["sent"][0]["id"])
    handed = crosses(analyst, brain, "agentos", example.value, AGENTOS)
    assert (handed["kind"], handed["work_state"]) == (("trace", "completed") if kind == "response" else ("say", None))
    if kind == "response":
        result = brain.get(f"/v1/works/{handed['work_id']}")["work"]["result"]
        assert same_json(result["content"], example.value["payload"]["content"])
        assert same_json(result["evidence"], example.value["evidence"])


def test_numbers_and_booleans_are_unchanged(pair: Pair) -> None:
    brain, analyst = pair
    message = copy.deepcopy(value("agentos", "Gap"))
    message["id"] = "msg-523e4567-e89b-12d3-a456-426614174004"
    message["payload"]["content"] = {
        "values": [1, 1.0, True, 0, 0.0, False, None, "1", 1e300, -5e-324, [], {}, "", "é"]
    }
    handed = crosses(analyst, brain, "agentos", message, AGENTOS)
    kinds = [type(one).__name__ for one in handed["message"]["payload"]["content"]["values"]]
    assert kinds[:7] == ["int", "float", "bool", "int", "float", "bool", "NoneType"]


# humaninloop


@pytest.mark.parametrize("example", of("humaninloop"))
def test_an_example_of_adr_007_crosses(pair: Pair, example: Example) -> None:
    agent, workflow = pair
    if "task" in example.value:
        handed = crosses(workflow, agent, "humaninloop", example.value, [], target=BRAIN, key="input")
        assert (handed["kind"], handed["work_state"]) == ("say", "submitted")
        return
    given = value("humaninloop", "Agent Input")
    asked = submit(workflow, "humaninloop", given, target=BRAIN, key="output")
    work_id = handed_out(agent, "humaninloop", asked["sent"][0]["id"])["work_id"]
    handed = crosses(agent, workflow, "humaninloop", example.value, OUTPUT, work_id=work_id)
    assert (handed["kind"], handed["work_id"], handed["work_state"]) == ("trace", work_id, "completed")


# sacp


@pytest.mark.parametrize("fenced", [False, True], ids=["bare", "fenced"])
@pytest.mark.parametrize("example", of("sacp"))
def test_an_example_of_sacp_crosses(pair: Pair, example: Example, fenced: bool) -> None:
    agent, asker = pair
    asked = asker.post("/v1/works", to=BRAIN, text=f"{example.source}, {fenced}")
    handed = handed_out(agent, "sacp", asked["id"])
    assert handed["message"] == f"{example.source}, {fenced}"
    raw = json.dumps(example.value, indent=2)
    raw = f"Here is what I found:\n```json\n{raw}\n```\nAnything else?" if fenced else raw
    answer = agent.post("/v1/bridge/sacp", text=raw, work_id=asked["work_id"])
    due = SURROUNDED if fenced else []
    assert (found(answer), same_json(answer["message"], example.value)) == (due, True)
    back = handed_out(asker, "sacp", answer["sent"][-1]["id"])
    assert (found(back), same_json(back["message"], example.value), back["native"]) == ([], True, False)
    assert found({"findings": envelope(asker, back["envelope_id"])["ext"].get("sacp.findings", [])}) == due
    state = "failed" if example.value["status"] == "failure" else "completed"
    assert (back["kind"], back["work_id"], back["work_state"]) == ("trace", asked["work_id"], state)
    assert asker.get(f"/v1/works/{asked['work_id']}")["work"]["message"] == example.value["message"]


# sentient: examples 1 and 2 are one chain, example 3 ends one at its first message

FIRST, SECOND, THIRD = examples("sentient")


@pytest.mark.parametrize("example", of("sentient")[:2])
def test_an_example_of_a_sentient_chain_crosses(pair: Pair, example: Example) -> None:
    objective_and_planning, goal = pair
    if example == SECOND:
        asked = submit(objective_and_planning, "sentient", FIRST.value)
        parent = handed_out(goal, "sentient", the_say(asked)["id"])
        handed = crosses(goal, objective_and_planning, "sentient", example.value, SENTIENT)
        # The link before it is in work until this one ends.
        assert goal.state_of(parent["work_id"]) == "working"
    else:
        handed = crosses(objective_and_planning, goal, "sentient", example.value, SENTIENT)
    assert (handed["kind"], handed["work_state"]) == ("say", "submitted")


def test_the_example_that_ends_its_chain_is_reported_to_the_users_peer(nats_url: str, tmp_path: Path) -> None:
    flags = (*agent_map({"objective_agent": "objective"}), "--sentient-user", "front")
    with daemons(tmp_path, nats_url, {"objective": flags, "front": flags}) as made:
        handed = crosses(made["objective"], made["front"], "sentient", THIRD.value, SENTIENT)
        assert (handed["kind"], handed["work_id"]) == ("say", None)
        again = submit(made["objective"], "sentient", THIRD.value)
        assert (again["repeated"], [sent["id"] for sent in again["sent"]]) == (True, [handed["envelope_id"]])


def test_the_example_that_ends_its_chain_fails_the_request(nats_url: str, tmp_path: Path) -> None:
    flags = agent_map({"objective_agent": "objective"})
    with daemons(tmp_path, nats_url, {"objective": flags, "front": flags}) as made:
        objective, front = made["objective"], made["front"]
        text = THIRD.value["input"]["content"]
        asked = front.post("/v1/works", to="objective", text=text, trace_id=THIRD.value["metadata"]["request_id"])
        request = handed_out(objective, "sentient", asked["id"])
        assert request["message"]["output"]["content"] == text
        assert request["message"]["metadata"]["request_id"] == THIRD.value["metadata"]["request_id"]
        # The example's session is no legal id of a thread: the agent says which work its message is about.
        answer = submit(objective, "sentient", THIRD.value, work_id=request["work_id"])
        assert found(answer) == SENTIENT
        (trace,) = answer["sent"]
        work = work_ended(front, asked["work_id"])
        assert (work["state"], work["message"]) == ("failed", "Request falls outside platform capabilities")
        assert same_json(
            work["result"],
            {
                "content": None,
                "content_type": "error",
                "status": "failed",
                "error": {key: held for key, held in THIRD.value["error"].items() if key != "has_error"},
            },
        )
        # Agents of this format are handed says only: the message is in what the peer has stored.
        ext = envelope(front, trace["id"])["ext"]
        assert same_json(ext["sentient.message"], THIRD.value)
        assert found({"findings": ext["sentient.findings"]}) == SENTIENT
