"""Several executional agents followed by a Final Output agent: it is called once, with the results of all branches."""

from collections.abc import Iterator
from typing import Any

import pytest

from tests.support.bridging import WITHIN, handed_out, submit, work_ended
from tests.support.daemons import wait_for
from tests.support.sentient_daemons import DERIVED, FAILED, PEERS, SOURCE, STORED, Six, asked, plain, six_daemons

DAY = "20260620"
FINAL = "final_output_agent"
REFS = {"source_refs": [SOURCE], "storage_refs": [STORED], "derived_refs": DERIVED}


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Six]:
    flags = ("--sentient-user", "desk", "--sentient-final-agent", "final")
    with six_daemons(tmp_path_factory.mktemp("six"), *flags) as made:
        yield made


def message(
    session: str, agent: str, following: str | None, number: int, id_: str, parent: str | None, **more: Any
) -> Any:
    made = plain(agent, following, session, f"req_{session}", number, DAY, resources=REFS, **more)
    made["message_id"], made["metadata"]["parent_message_id"] = f"{session}-{id_}", parent and f"{session}-{parent}"
    return made


def fan_out(six: Six, session: str, agent: str, to: dict[str, str], number: int, parent: str | None = None) -> None:
    """Message `number` of `agent` for each agent of `to`, with the message ids there, as one array."""
    messages = [message(session, agent, following, number, id_, parent) for following, id_ in to.items()]
    sent = submit(six.at[PEERS[agent]], "sentient", messages)["sent"]
    for following, one in zip(to, [one for one in sent if one["kind"] == "say"], strict=True):
        handed_out(six.at[PEERS[following]], "sentient", one["id"])


def calls(six: Six, session: str) -> list[Any]:
    """What the Final Output agent was called with."""
    listed = six.at["final"].get("/v1/messages?direction=in&kind=say&limit=500")["messages"]
    return [one for one in listed if one["envelope"]["ext"]["sentient.chain"]["session_id"] == session]


def called(six: Six, session: str) -> Any:
    """The one call of the Final Output agent, as its agent gets it."""
    wait_for(lambda: calls(six, session), WITHIN, "the call")
    six.told(session)  # once nobody has more to send
    (call,) = calls(six, session)
    handed = handed_out(six.at["final"], "sentient", call["id"])
    assert (handed["native"], handed["message"]["agent"]["name"]) == (False, "orchestration")
    return handed["message"]


def answer(six: Six, session: str, call: Any) -> None:
    last = plain(FINAL, None, session, f"req_{session}", call["metadata"]["sequence_number"] + 1, DAY)
    last["resources"], last["metadata"]["parent_message_id"] = call["resources"], call["message_id"]
    submit(six.at["final"], "sentient", last)


@pytest.mark.parametrize("fails", [False, True])
def test_the_final_output_agent_gets_all_branches_and_its_output_is_the_result(six: Six, fails: bool) -> None:
    session = f"thread_final-{fails}".lower()
    work_id, _handed = asked(six, session, f"req_{session}")
    first = message(session, "objective_agent", "planning_agent", 1, "1", None)
    (_trace, said) = submit(six.at["objective"], "sentient", first)["sent"]
    handed_out(six.at["planning"], "sentient", said["id"])
    fan_out(six, session, "planning_agent", {"sentiment agent": "a", "goal_agent": "b"}, 2, "1")
    done = {"storage_refs": [{**STORED, "storage_uri": "s3://w/1", "status": "stored"}]}
    one = message(session, "sentiment agent", FINAL, 3, "a2", "a")
    one["resources"] = {**REFS, **done}
    assert [sent["kind"] for sent in submit(six.at["executional"], "sentient", one)["sent"]] == ["trace"]
    assert submit(six.at["executional"], "sentient", one)["repeated"]
    planning = six.at["planning"]
    planning.kill()
    failed = {"status": {"code": "failed", "message": "no goal"}, "error": FAILED} if fails else {}
    other = message(session, "goal_agent", None if fails else FINAL, 3, "b2", "b", **failed)
    submit(six.at["goal"], "sentient", other)
    planning.start()
    call = called(six, session)
    assert [part["agent"] for part in call["output"]["content"]] == ["sentiment agent", "goal_agent"]
    assert call["status"]["code"] == ("partial" if fails else "success")
    assert call["error"]["has_error"] is fails
    assert call["resources"] == {**REFS, **done}
    assert call["metadata"]["sequence_number"] == 3
    assert six.at["desk"].state_of(work_id) == "working"
    answer(six, session, call)
    assert work_ended(six.at["desk"], work_id)["result"]["content"] == f"what {FINAL} says"
    wait_for(lambda: six.told(session), WITHIN, "the memory agent")
    (told,) = six.told(session)
    text = told["envelope"]["body"]["text"]
    for id_ in ("1", "a", "b", "a2", "b2", "4"):
        assert text.count(f"[MESSAGE_ID: {session}-{id_}]\n") == 1
    assert text.count("[AGENT: orchestration]\n") == 1


def test_nested_branches_meet_where_the_chain_began_and_the_user_gets_the_output(six: Six) -> None:
    session = "nested"
    fan_out(six, session, "objective_agent", {"goal_agent": "g", "sentiment agent": "s"}, 1)
    fan_out(six, session, "goal_agent", {"planning_agent": "gp", "memory_agent": "gm"}, 2, "g")
    for agent, id_, number, parent in (
        ("sentiment agent", "s2", 2, "s"),
        ("planning_agent", "gp2", 3, "gp"),
        ("memory_agent", "gm2", 3, "gm"),
    ):
        assert calls(six, session) == []
        submit(six.at[PEERS[agent]], "sentient", message(session, agent, FINAL, number, id_, parent))
    call = called(six, session)
    assert [part["agent"] for part in call["output"]["content"]] == ["goal_agent", "sentiment agent"]
    assert call["metadata"]["sequence_number"] == 3
    answer(six, session, call)
    wait_for(lambda: reports(six, session), WITHIN, "the final output at the user")
    (report,) = reports(six, session)
    assert report["envelope"]["body"]["text"] == f"what {FINAL} says"


def reports(six: Six, session: str) -> list[Any]:
    listed = six.at["desk"].get("/v1/messages?direction=in&kind=say&limit=500")["messages"]
    return [one for one in listed if one["envelope"]["ext"]["sentient.chain"]["session_id"] == session]


def test_an_agent_without_siblings_calls_the_final_output_agent_itself(six: Six) -> None:
    session = "thread_alone"
    work_id, _handed = asked(six, session, f"req_{session}")
    sent = submit(six.at["objective"], "sentient", message(session, "objective_agent", FINAL, 1, "1", None))["sent"]
    assert handed_out(six.at["final"], "sentient", sent[1]["id"])["sender"] == "objective"
    submit(six.at["final"], "sentient", message(session, FINAL, None, 2, "2", "1"))
    assert work_ended(six.at["desk"], work_id)["result"]["content"] == f"what {FINAL} says"
