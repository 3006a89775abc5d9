"""Daemons of a sentient chain that are killed or away."""

import contextlib
from http.client import HTTPException

import pytest

from tests.support.bridging import WITHIN, handed_out, same_json, submit, the_say, work_ended
from tests.support.daemons import wait_for
from tests.support.sentient_daemons import PEERS, Six, dying, entry, passed_on, plain, step


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
