"""Questions, answers, cancellations and progress of a sentient chain cross all of its works, also over kills of daemons."""

import time
from functools import partial
from typing import Any

import pytest

from tests.support.bridging import WITHIN, handed_out, submit, work_ended
from tests.support.daemons import Daemon, wait_for
from tests.support.sentient_daemons import PEERS, Six, asked, is_in, passed_on, plain, step

CHAIN = list(PEERS.values())[:5]
BRANCHES = ("sentiment agent", "final_output_agent")
DAY = "20260610"


def works_of(work_id: str, steps: list[Any]) -> dict[str, str]:
    """The work that each agent of a chain has, by peer."""
    return dict(zip(CHAIN, [work_id, *(one.handed["work_id"] for one in steps)], strict=False))


def ask(six: Six, session: str, number: int, text: str) -> None:
    """Agent `number` of a chain asks the user."""
    agent = list(PEERS)[number - 1]
    pending = {"status": {"code": "pending", "message": text}}
    message = plain(agent, "user", session, f"req_{session}", number, DAY, **pending)
    submit(six.at[PEERS[agent]], "sentient", {**message, "message_id": f"{session}-{number}-{text}"})


def all_are(six: Six, works: dict[str, str], state: str) -> None:
    """Waits until each work has a state on both sides."""
    for peer, held in works.items():
        at = CHAIN.index(peer)
        for side in (peer, "desk" if at == 0 else CHAIN[at - 1]):
            wait_for(partial(is_in, six.at[side], held, state), WITHIN, f"{held} of {peer} to be {state} at {side}")


def said(six: Six, peer: str, work_id: str, text: str) -> list[Any]:
    """What a daemon got in a work with this text."""
    listed = six.at[peer].get("/v1/messages?direction=in&kind=say&limit=500")["messages"]
    return [one for one in listed if one["work_id"] == work_id and one["envelope"]["body"]["text"] == text]


def is_unread(six: Six, peer: str, message: Any) -> bool:
    return message["seq"] in [item["seq"] for item in six.at[peer].get("/v1/inbox?limit=500")["items"]]


def end(six: Six, session: str, number: int) -> None:
    agent = list(PEERS)[number - 1]
    message = plain(agent, None, session, f"req_{session}", number, DAY)
    submit(six.at[PEERS[agent]], "sentient", message)


@pytest.mark.parametrize("killed", [(), ("objective", "planning"), ("goal", "executional", "desk")])
def test_a_question_of_the_fifth_agent_goes_up_and_its_answer_down(six: Six, killed: tuple[str, ...]) -> None:
    session = f"thread_asking-{len(killed)}"
    work_id, steps, _sent = passed_on(six, session, f"req_{session}", DAY, 4)
    works = works_of(work_id, steps)
    for peer in killed:
        six.at[peer].kill()
    ask(six, session, 5, "Which day?")
    for peer in killed:
        six.at[peer].start()
    all_are(six, works, "needs_input")
    desk = six.at["desk"].get(f"/v1/works/{work_id}")
    assert desk["work"]["message"] == "Which day?"
    assert desk["why"]["code"] == "asks"
    above = six.at["planning"].get(f"/v1/works/{works['executional']}")["why"]
    assert (above["code"], above["said"]) == ("asks_further", "Which day?")
    for peer in killed[:2]:
        six.at[peer].kill()
    six.at["desk"].post(f"/v1/works/{work_id}/say", message="Monday")
    for peer in killed[:2]:
        six.at[peer].start()
    all_are(six, works, "working")
    for peer, held in works.items():
        (answer,) = said(six, peer, held, "Monday")
        assert is_unread(six, peer, answer) is (peer == "final"), peer
    handed = handed_out(six.at["final"], "sentient", answer["id"])
    assert handed["message"]["output"]["content"] == "Monday"
    assert handed["message"]["metadata"]["session_id"] == session
    end(six, session, 5)
    assert work_ended(six.at["desk"], work_id)["result"]["content"] == "what final_output_agent says"


def test_a_second_question_and_an_answer_given_halfway(six: Six) -> None:
    session = "thread_asking-twice"
    work_id, steps, _sent = passed_on(six, session, f"req_{session}", DAY, 3)
    works = works_of(work_id, steps)
    for text in ("first?", "second?"):
        ask(six, session, 4, text)
        all_are(six, works, "needs_input")
        assert six.at["desk"].get(f"/v1/works/{work_id}")["work"]["message"] == text
        six.at["desk"].post(f"/v1/works/{work_id}/say", message=f"to {text}")
        all_are(six, works, "working")
        assert len(said(six, "executional", works["executional"], f"to {text}")) == 1
    ask(six, session, 4, "third?")
    all_are(six, works, "needs_input")
    six.at["planning"].post(f"/v1/works/{works['executional']}/say", message="from the side")
    all_are(six, works, "working")  # nobody waits for the user any more
    end(six, session, 4)
    assert work_ended(six.at["desk"], work_id)["state"] == "completed"


def test_questions_of_two_branches_are_asked_one_after_the_other(six: Six) -> None:
    session = "thread_two-ask"
    work_id, opened = fanned_out(six, session)
    for number, agent in enumerate(BRANCHES):
        pending = {"status": {"code": "pending", "message": f"question {number}"}}
        message = plain(agent, "user", session, f"req_{session}", 2, DAY, **pending)
        message["metadata"]["parent_message_id"] = f"{session}-b{number}"
        submit(six.at[PEERS[agent]], "sentient", {**message, "message_id": f"{session}-q{number}"})
        wait_for(partial(is_in, six.at["objective"], opened[number], "needs_input"), WITHIN, "the question")
    desk = six.at["desk"]
    for number in range(2):
        wait_for(partial(asks, six, work_id, f"question {number}"), WITHIN, f"question {number}")
        desk.post(f"/v1/works/{work_id}/say", message=f"answer {number}")
        peer = PEERS[BRANCHES[number]]
        wait_for(partial(is_in, six.at[peer], opened[number], "working"), WITHIN, f"answer {number}")
        assert len(said(six, peer, opened[number], f"answer {number}")) == 1
    wait_for(partial(is_in, desk, work_id, "working"), WITHIN, "no question")


def asks(six: Six, work_id: str, text: str) -> bool:
    work = six.at["desk"].get(f"/v1/works/{work_id}")["work"]
    return (work["state"], work["message"]) == ("needs_input", text)


def fanned_out(six: Six, session: str) -> tuple[str, list[str]]:
    """A request that the objective agent passes on to two agents: the user's work, and those of the branches."""
    work_id, _handed = asked(six, session, f"req_{session}")
    messages = [plain("objective_agent", agent, session, f"req_{session}", 1, DAY) for agent in BRANCHES]
    messages = [{**message, "message_id": f"{session}-b{number}"} for number, message in enumerate(messages)]
    sent = [one for one in submit(six.at["objective"], "sentient", messages)["sent"] if one["kind"] == "say"]
    for agent, one in zip(BRANCHES, sent, strict=True):
        handed_out(six.at[PEERS[agent]], "sentient", one["id"])
    return work_id, [one["work_id"] for one in sent]


@pytest.mark.parametrize("verb", ["complete", "say"])
def test_the_user_answers_a_chain_that_its_first_agent_began(six_and_user: Six, verb: str) -> None:
    six, session = six_and_user, f"thread_asks-the-user-{verb}"
    desk, objective = six.at["desk"], six.at["objective"]
    _, steps, _sent = passed_on(six, session, f"req_{session}", DAY, 2, native=False)
    objective.kill()
    ask(six, session, 3, "Whose day?")
    objective.start()
    wait_for(lambda: questions(six, session), WITHIN, "the question at the user")
    (question,) = questions(six, session)
    assert (question["body"]["text"], question["from"]) == ("Whose day?", "objective")
    desk.kill()
    desk.start()
    objective.kill()
    desk.post(f"/v1/works/{question['work_id']}/{verb}", message="hers")
    objective.start()
    for peer, step_ in zip(("goal", "planning"), steps, strict=True):
        held = step_.handed["work_id"]
        wait_for(partial(is_in, six.at["planning"], steps[1].handed["work_id"], "working"), WITHIN, "the answer")
        (answer,) = said(six, peer, held, "hers")
        assert is_unread(six, peer, answer) is (peer == "planning")
    for answer in said(six, "objective", question["work_id"], "hers"):
        assert not is_unread(six, "objective", answer)
    assert work_ended(desk, question["work_id"])["state"] == ("completed" if verb == "complete" else "canceled")
    end(six, session, 3)
    wait_for(lambda: work_ended(objective, steps[0].handed["work_id"]), WITHIN, "the end")


def test_a_question_that_nobody_can_be_asked_is_named_where_its_chain_began(six: Six) -> None:
    session = "thread_asks-nobody"
    _, steps, _sent = passed_on(six, session, f"req_{session}", DAY, 2, native=False)
    ask(six, session, 3, "Who am I?")
    held = steps[0].handed["work_id"]
    wait_for(partial(is_in, six.at["objective"], held, "needs_input"), WITHIN, "the question")
    why = six.at["objective"].get(f"/v1/works/{held}")["why"]
    assert (why["code"], why["said"]) == ("asks", "Who am I?")  # `aghctl doctor` names these works
    assert why["hint"] == f"answer: `aghctl work say {held} TEXT`"


def test_a_question_to_the_user_is_taken_back_with_its_chain(six_and_user: Six) -> None:
    six, session = six_and_user, "thread_asks-in-vain"
    passed_on(six, session, f"req_{session}", DAY, 1, native=False)
    before = len(questions(six))
    ask(six, session, 2, "And now?")
    wait_for(lambda: len(questions(six)) > before, WITHIN, "the question at the user")
    end(six, session, 2)
    assert work_ended(six.at["desk"], questions(six)[-1]["work_id"])["state"] == "canceled"


def questions(six: Six, session: str = "") -> list[Any]:
    listed = six.at["desk"].get("/v1/messages?direction=in&kind=say&limit=500")["messages"]
    asked = [one["envelope"] for one in listed if one["envelope"]["body"].get("intent") == "question"]
    return [one for one in asked if session in str(one.get("ext"))]


@pytest.mark.parametrize("killed", [(), ("objective", "planning")])
def test_a_cancel_at_the_desk_ends_every_work_below(six: Six, killed: tuple[str, ...]) -> None:
    session = f"thread_canceled-{len(killed)}"
    work_id, steps, _sent = passed_on(six, session, f"req_{session}", DAY, 4)
    works = works_of(work_id, steps)
    all_are(six, {peer: held for peer, held in works.items() if peer != "final"}, "working")
    for peer in killed:
        six.at[peer].kill()
    six.at["desk"].post(f"/v1/works/{work_id}/cancel")
    for peer in killed:
        six.at[peer].start()
    all_are(six, works, "canceled")
    assert six.told(session) == []


def test_a_cancel_ends_branches_and_their_questions(six: Six) -> None:
    session = "thread_canceled-branches"
    work_id, opened = fanned_out(six, session)
    pending = {"status": {"code": "pending", "message": "which?"}}
    message = plain(BRANCHES[0], "user", session, f"req_{session}", 2, DAY, **pending)
    message["metadata"]["parent_message_id"] = f"{session}-b0"
    submit(six.at[PEERS[BRANCHES[0]]], "sentient", message)
    wait_for(partial(asks, six, work_id, "which?"), WITHIN, "the question")
    six.at["desk"].post(f"/v1/works/{work_id}/cancel")
    for agent, held in zip(BRANCHES, opened, strict=True):
        assert work_ended(six.at[PEERS[agent]], held)["state"] == "canceled"


def test_progress_below_keeps_the_work_of_the_desk_alive_until_it_stops(six: Six) -> None:
    session = "thread_progress"
    desk = six.at["desk"]
    opened = desk.post(
        "/v1/works", to="objective", text="Go", thread_id=session, trace_id=f"req_{session}", progress_within=5
    )
    work_id = opened["work_id"]
    handed_out(six.at["objective"], "sentient", opened["id"])
    names = list(PEERS)
    works = {"objective": work_id}
    for number in (1, 2, 3):
        message = plain(names[number - 1], names[number], session, f"req_{session}", number, DAY)
        works[PEERS[names[number]]] = step(six, message, PEERS[names[number]]).handed["work_id"]
    executional = six.at["executional"]
    began = time.monotonic()
    for _ in range(20):  # twice the limit
        executional.post(f"/v1/works/{works['executional']}/update", message="going on")
        wait_for(lambda: progress_at(desk, work_id) > 0, WITHIN, "progress at the desk")
        time.sleep(0.5)
        assert desk.state_of(work_id) == "working"
    wait_for(lambda: progress_at(desk, work_id) == 20, WITHIN, "all of it")
    for peer, held in works.items():  # the last report was the last one
        work = work_ended(six.at[peer], held)
        assert work["state"] == "canceled", peer
    assert time.monotonic() - began >= 14


def progress_at(daemon: Daemon, work_id: str) -> int:
    history = daemon.get(f"/v1/works/{work_id}")["history"]
    return sum(entry["event"] == "trace:working" and entry["message"] == "going on" for entry in history)
