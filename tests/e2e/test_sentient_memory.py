"""The memory agent of the Sentient platform."""

import contextlib
from http.client import HTTPException

import pytest

from tests.support.bridging import WITHIN, handed_out, same_json, submit, the_say, work_ended
from tests.support.daemons import wait_for
from tests.support.sentient_daemons import PEERS, Six, asked, dying, entry, passed_on, plain, refused, sent_by, step


def test_memory_agent_gets_conversation_ids_and_reply_ends_work(six: Six) -> None:
    session, day = "session of the user", "20260306"
    passed_on(six, session, "req/1", day, 1, native=False)
    submit(six.at["goal"], "sentient", plain("goal_agent", None, session, "req/1", 2, day))
    wait_for(lambda: six.told(session), WITHIN, "the call")
    (told,) = six.told(session)
    assert told["sender"] == "objective"
    memory = six.at["memory"]
    handed = handed_out(memory, "sentient", told["id"])
    metadata = handed["message"]["metadata"]
    assert (metadata["session_id"], metadata["request_id"]) == (session, "req/1")
    before = {peer: sent_by(daemon) for peer, daemon in six.at.items() if peer != "memory"}
    learnt = plain("memory_agent", None, "forgotten", "forgotten", 2, day)
    learnt["message_id"] = "learnt-1"
    learnt["metadata"]["parent_message_id"] = handed["message"]["message_id"]
    answer = submit(memory, "sentient", learnt)
    assert [sent["kind"] for sent in answer["sent"]] == ["trace"]
    assert answer["message"]["metadata"]["session_id"] == session
    assert work_ended(six.at["objective"], told["work_id"])["state"] == "completed"
    text = entry("memory_agent", "x", 2).replace("ID: x-2]", "ID: learnt-1]").replace("ID: x]", f"ID: {session}]")
    six.logs("memory", day, text)
    assert {peer: sent_by(six.at[peer]) for peer in before} == before  # its end calls nobody


def test_an_answer_with_the_ids_of_the_chain_ends_the_memory_work(six: Six) -> None:
    session, day = "thread_copied", "20260313"
    work_id, _steps, _sent = passed_on(six, session, "req_copied", day, 1)
    submit(six.at["goal"], "sentient", plain("goal_agent", None, session, "req_copied", 2, day))
    work_ended(six.at["desk"], work_id)
    (told,) = six.told(session)
    handed_out(six.at["memory"], "sentient", told["id"])
    first = {**plain("memory_agent", None, session, "req_copied", 1, day), "message_id": "copied-memory"}
    submit(six.at["memory"], "sentient", first)
    assert work_ended(six.at["objective"], told["work_id"])["state"] == "completed"


def test_a_chain_of_the_memory_agent_itself_notifies_no_peer(six: Six) -> None:
    day = "20260314"
    memory = six.at["memory"]
    before = {peer: sent_by(daemon) for peer, daemon in six.at.items()}
    own = {**plain("memory_agent", None, "nightly", "req_nightly", 1, day), "message_id": "learnt-2"}
    answer = submit(memory, "sentient", own)
    assert (answer["sent"], answer["repeated"]) == ([], False)
    assert {one["severity"] for one in answer["findings"]} == {"warning"}
    again = submit(memory, "sentient", own)
    assert (again["sent"], again["repeated"]) == ([], True)
    other = {**own, "status": {"code": "success", "message": "something else"}}
    assert refused(memory, other) == {("/message_id", "id_conflict")}
    ids = [row["message_id"] for row in memory.get("/v1/bridge/sentient/log")["rows"]]
    assert ids.count("learnt-2") == 1
    six.logs("memory", day, entry("memory_agent", "nightly", 1).replace("nightly-1", "learnt-2"))
    assert {peer: sent_by(daemon) for peer, daemon in six.at.items()} == before


def test_a_memory_agent_with_the_assigned_work_is_not_notified_again(six: Six) -> None:
    session, day = "thread_on-demand", "20260312"
    work_id, _handed = asked(six, session, "req_on-demand")
    first = plain("objective_agent", "memory_agent", session, "req_on-demand", 1, day)
    given = step(six, first, "memory").handed
    submit(six.at["memory"], "sentient", plain("memory_agent", None, session, "req_on-demand", 2, day))
    assert work_ended(six.at["memory"], given["work_id"])["state"] == "completed"
    assert work_ended(six.at["desk"], work_id)["result"]["content"] == "what memory_agent says"
    assert six.told(session) == []  # a say to remember by would name the session
    six.logs("memory", day, entry("memory_agent", session, 2))


def test_an_unrequested_end_is_refused_for_other_agents(six: Six) -> None:
    lone = plain("goal_agent", None, "lonely", "req_lonely", 1, "20260307")
    assert refused(six.at["goal"], lone) == {("/next_agent/name", "no_user_peer")}
    told = plain("memory_agent", "user", "lonely", "req_lonely", 1, "20260307")
    assert refused(six.at["memory"], told) == {("/next_agent/name", "no_user_peer")}
    assert six.log("goal", "20260307") is None
    assert six.log("memory", "20260307") is None


@pytest.mark.parametrize(
    ("handing_over", "passing_on"),
    [
        ("send.decided:1", "receive.decided:1"),
        ("send.decided:2", "receive.committed:1"),
        ("send.committed:1", "receive.acted:1"),
        ("publish.before:1", "send.decided:1"),
        ("publish.handed:1", "send.committed:1"),
        ("publish.confirmed:1", "publish.before:1"),
        ("bridge.appended:1", "publish.confirmed:1"),
    ],
)
def test_a_daemon_that_dies_in_the_middle_loses_and_doubles_nothing(
    six: Six, handing_over: str, passing_on: str, request: pytest.FixtureRequest
) -> None:
    number = request.node.callspec.indices["handing_over"]
    session, day = f"thread_killed-{number}", f"2026040{number + 1}"
    planning = six.at["planning"]
    work_id, steps, _sent = passed_on(six, session, f"req_killed-{number}", day, 2)
    third = plain("planning_agent", "sentiment agent", session, f"req_killed-{number}", 3, day)
    with dying(planning, handing_over), contextlib.suppress(OSError, HTTPException):
        submit(planning, "sentient", third)
    answer = submit(planning, "sentient", third)  # its agent received no yes
    assert answer["repeated"] is not handing_over.startswith("send.decided")
    handed = handed_out(six.at["executional"], "sentient", the_say(answer)["id"])
    assert same_json(handed["message"], third)
    fourth = plain("sentiment agent", "final_output_agent", session, f"req_killed-{number}", 4, day)
    final = step(six, fourth, "final").handed
    fifth = plain("final_output_agent", None, session, f"req_killed-{number}", 5, day)
    with dying(planning, passing_on):
        submit(six.at["final"], "sentient", fifth)
    assert work_ended(six.at["desk"], work_id)["result"]["content"] == "what final_output_agent says"
    works = [work_id, *(one.handed["work_id"] for one in steps), handed["work_id"], final["work_id"]]
    for peer, held in zip(PEERS.values(), works, strict=False):
        assert work_ended(six.at[peer], held)["state"] == "completed"
    assert len(six.told(session)) == 1
    for at, agent in enumerate(list(PEERS)[:5], 1):
        six.logs(PEERS[agent], day, entry(agent, session, at))
    for peer, parent in (("executional", f"{session}-3"), ("final", f"{session}-4")):
        listed = six.at[peer].get("/v1/messages?direction=in&kind=say&limit=500")["messages"]
        ids = [one["envelope"]["ext"]["sentient.message"]["message_id"] for one in listed]
        assert ids.count(parent) == 1


def test_a_restarted_daemon_forwards_a_terminal_state_from_its_downtime(six: Six) -> None:
    session, day = "thread_away", "20260305"
    planning = six.at["planning"]
    work_id, _steps, _sent = passed_on(six, session, "req_away", day, 4)
    planning.kill()
    submit(six.at["final"], "sentient", plain("final_output_agent", None, session, "req_away", 5, day))
    wait_for(lambda: six.log("final", day), WITHIN, "the last entry")
    assert six.at["desk"].state_of(work_id) == "working"
    planning.start()
    assert work_ended(six.at["desk"], work_id)["result"]["content"] == "what final_output_agent says"
    assert len(six.told(session)) == 1
    for at, agent in enumerate(list(PEERS)[:5], 1):
        six.logs(PEERS[agent], day, entry(agent, session, at))
