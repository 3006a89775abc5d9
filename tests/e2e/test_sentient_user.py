"""The final output of a sentient chain that its first agent began reaches the user: by inbox and stream, with its session."""

from typing import Any

import pytest

from tests.support.bridging import WITHIN, handed_out, submit, the_say
from tests.support.daemons import wait_for
from tests.support.sentient_daemons import FAILED, PEERS, Six, passed_on, plain

EXECUTIONAL = ("sentiment agent", "final_output_agent")


def told_user(six: Six, session: str) -> Any:
    """What the user's stream has of a session: exactly one message, which is in the inbox too."""
    desk = six.at["desk"]

    def arrived() -> list[Any]:
        listed = desk.get("/v1/messages?direction=in&kind=say&limit=500")["messages"]
        return [one for one in listed if named(one["envelope"]) == session]

    wait_for(lambda: bool(arrived()), WITHIN, "the final output at the user")
    six.told(session)  # once nobody has more to send
    (said,) = arrived()
    assert said["seq"] in [item["seq"] for item in desk.get("/v1/inbox?limit=500")["items"]]
    handed = handed_out(desk, "sentient", said["id"])
    assert (handed["native"], handed["work_id"], handed["findings"]) == (False, None, [])
    assert handed["message"]["metadata"]["session_id"] == session
    assert handed["message"]["next_agent"]["name"] == "user"
    return {"text": said["envelope"]["body"]["text"], "sender": said["sender"], **handed["message"]}


def named(envelope: dict[str, Any]) -> str | None:
    session: str | None = ((envelope.get("ext") or {}).get("sentient.chain") or {}).get("session_id")
    return session


def fan_out(six: Six, session: str, day: str, agent: str, number: int) -> None:
    """Message `number` of `agent` for each of two executional agents, as one array; their daemons have them then."""
    messages = []
    for branch, following in enumerate(EXECUTIONAL):
        message = plain(agent, following, session, f"req_{session}", number, day)
        messages.append({**message, "message_id": f"{session}-{number}-{branch}"})
    sent = submit(six.at[PEERS[agent]], "sentient", messages)["sent"]
    for following, said in zip(EXECUTIONAL, [one for one in sent if one["kind"] == "say"], strict=True):
        handed_out(six.at[PEERS[following]], "sentient", said["id"])


def finish(six: Six, session: str, day: str, branch: int, number: int, **more: Any) -> None:
    """The end of one branch, as message `number`."""
    agent = EXECUTIONAL[branch]
    message = plain(agent, None, session, f"req_{session}", number, day, **more)
    message["message_id"] = f"{session}-end-{branch}"
    message["metadata"]["parent_message_id"] = f"{session}-{number - 1}-{branch}"
    submit(six.at[PEERS[agent]], "sentient", message)


@pytest.mark.parametrize("failed", [False, True])
def test_the_final_output_reaches_the_user_from_a_chain_of_three(six_and_user: Six, failed: bool) -> None:
    six, session, day = six_and_user, f"began by itself {failed}", "20260601"
    passed_on(six, session, "req", day, 2, native=False)
    more = {"status": {"code": "failed", "message": "no plan"}, "error": FAILED} if failed else {}
    submit(six.at["planning"], "sentient", plain("planning_agent", None, session, "req", 3, day, **more))
    told = told_user(six, session)
    assert told["sender"] == "objective"
    assert told["metadata"]["request_id"] == "req"
    assert told["output"] == {"content": "what planning_agent says", "content_type": "plan"}
    if failed:
        assert told["text"] == "failed: no plan\nwhat planning_agent says"
        assert told["status"] == {"code": "failed", "message": "no plan"}
        assert told["error"] == FAILED
    else:
        assert told["text"] == "what planning_agent says"
        assert told["status"] == {"code": "success", "message": "planning_agent is done"}
        assert told["error"]["has_error"] is False


@pytest.mark.parametrize("fails", [(), (1,), (0, 1)])
def test_the_user_gets_the_join_of_branches_below(six_and_user: Six, fails: tuple[int, ...]) -> None:
    six, session, day = six_and_user, f"joined below {fails}", "20260602"
    passed_on(six, session, f"req_{session}", day, 1, native=False)
    fan_out(six, session, day, "goal_agent", 2)
    for branch in range(2):
        more = {"status": {"code": "failed", "message": "no"}, "error": FAILED} if branch in fails else {}
        finish(six, session, day, branch, 3, **more)
    told = told_user(six, session)
    assert [part["agent"] for part in told["output"]["content"]] == list(EXECUTIONAL)
    assert told["status"]["code"] == ("success", "partial", "failed")[len(fails)]
    assert told["error"]["has_error"] is bool(fails)


def test_the_branches_of_the_first_agent_are_one_final_output(six_and_user: Six) -> None:
    six, session, day = six_and_user, "joined at the first", "20260603"
    fan_out(six, session, day, "objective_agent", 1)
    finish(six, session, day, 1, 2)
    objective = six.at["objective"]
    wait_for(lambda: "a branch of a work ended" in objective.log.read_text(), WITHIN, "the first end")
    objective.kill()
    objective.start()
    finish(six, session, day, 0, 2)
    told = told_user(six, session)
    assert told["status"] == {"code": "success", "message": "2 of 2 branches completed"}
    rows = objective.get("/v1/bridge/sentient/log")["rows"]
    assert [row["agent"] for row in rows if row["session_id"] == session].count("orchestration") == 1


def test_a_chain_of_one_message_still_reaches_the_user_as_it_is(six_and_user: Six) -> None:
    six, day = six_and_user, "20260604"
    message = plain("goal_agent", None, "one message", "req", 1, day)
    said = the_say({"sent": submit(six.at["goal"], "sentient", message)["sent"][:1]})
    assert handed_out(six.at["desk"], "sentient", said["id"])["envelope_id"] == said["id"]
