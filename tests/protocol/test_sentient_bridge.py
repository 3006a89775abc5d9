"""Sentient messages: their envelopes, and messages delivered from envelopes (adapters.md, sentient)."""

from typing import Any

import msgspec
import pytest

from aghbus.protocol.agh.send import build
from aghbus.protocol.formats import derived_ids as derived
from aghbus.protocol.formats.common import say
from aghbus.protocol.formats.model import AgentMap, BridgedEnvelope
from aghbus.protocol.formats.sentient.message import check_shape
from tests.support.seed_examples import replaced
from tests.support.sentient_peers import GOALS, NOW, OBJECTIVES, OUT_OF_SCOPE, SentientBus, SentientPeer, rules

SESSION = OBJECTIVES["metadata"]["session_id"]
ENDS = {"next_agent/name": None}


def chain() -> SentientBus:
    """Three agents and the user's peer; the objective agent has submitted the seed's Example 1."""
    bus = SentientBus(
        SentientPeer("obj", user="front"), SentientPeer("goal"), SentientPeer("plan"), SentientPeer("front")
    )
    bus.submit("obj", OBJECTIVES)
    return bus


def asked(bus: SentientBus, name: str = "ask", **more: Any) -> Any:
    """A native request of the peer `front` to the objective agent."""
    context = bus.peers["front"].context()
    body = {"text": "Do it"}
    return bus.request(say(context, "obj", f"msg_{name}", "thread_request", body, work_id=f"work_{name}", **more))


def test_a_first_message_opens_work_for_the_next_agent() -> None:
    bus = SentientBus(SentientPeer("obj"), SentientPeer("goal"))
    plan = bus.submit("obj", OBJECTIVES)
    (draft,) = plan.drafts
    assert (draft.kind, draft.to, draft.surface) == ("say", "goal", "thread")
    assert draft.container == derived.thread_id("sentient", SESSION)
    assert draft.trace_id == "req-20260127-143050"
    assert draft.causation_id is None
    assert draft.body["text"] == "\n".join(OBJECTIVES["output"]["content"])
    assert draft.body["intent"] == "objectives"
    assert draft.body["artifacts"] == [
        {
            "type": "source",
            "ref_id": "src_1",
            "media_type": "video",
            "uri": "https://www.youtube.com/watch?v=abc123",
        },
        {"type": "storage", "ref_id": "store_1", "media_type": "video", "source_ref_id": "src_1", "status": "pending"},
    ]
    assert draft.ext == {"sentient.message": OBJECTIVES}
    work = bus.peers["goal"].works[draft.work_id or ""]
    assert (work.initiator, work.target, work.state) == ("obj", "goal", "submitted")


def test_a_middle_message_reports_progress_and_passes_the_work_on() -> None:
    bus = chain()
    opened = bus.peers["goal"].delivered[0]
    assert opened.message == OBJECTIVES
    plan = bus.submit("goal", GOALS)
    progress, onward = plan.drafts
    first = next(iter(bus.peers["obj"].works.values()))
    assert (progress.kind, progress.to, progress.work_id) == ("trace", "obj", first.work_id)
    assert progress.body == {"state": "working", "message": GOALS["status"]["message"]}
    assert progress.ext is None
    assert (onward.kind, onward.to) == ("say", "plan")
    assert onward.causation_id == first.opening_id
    assert first.state == "working"
    assert bus.peers["plan"].delivered[0].message == GOALS


@pytest.mark.parametrize(
    ("code", "state", "partial"),
    [("success", "completed", None), ("partial", "completed", True), ("failed", "failed", None)],
)
@pytest.mark.parametrize("following", [None, "user"])
def test_the_end_of_a_chain_is_the_terminal_trace(code: str, state: str, partial: Any, following: Any) -> None:
    bus = chain()
    last = replaced(GOALS, {"next_agent/name": following, "status/code": code})
    plan = bus.submit("goal", last)
    (draft,) = plan.drafts
    assert (draft.kind, draft.body["state"], draft.body["message"]) == ("trace", state, last["status"]["message"])
    result = draft.body["result"]
    assert (result["content"], result["content_type"], result["status"]) == (last["output"]["content"], "goals", code)
    assert result.get("partial") == partial
    assert "error" not in result
    assert next(iter(bus.peers["obj"].works.values())).state == state
    assert len(bus.peers["obj"].delivered) == 0  # agents of this format are handed says only


def test_the_error_group_is_part_of_the_result() -> None:
    bus = chain()
    fault = {"has_error": True, "error_code": "TIMEOUT", "error_message": "slow", "retry_count": 2, "recoverable": True}
    (draft,) = bus.submit("goal", replaced(GOALS, {**ENDS, "status/code": "failed", "error": fault})).drafts
    del fault["has_error"]
    assert draft.body["result"]["error"] == fault


@pytest.mark.parametrize(
    ("following", "state"), [("planning_agent", "working"), (None, "working"), ("user", "needs_input")]
)
def test_pending_moves_the_work_and_sends_no_say(following: Any, state: str) -> None:
    bus = chain()
    plan = bus.submit("goal", replaced(GOALS, {"status/code": "pending", "next_agent/name": following}))
    (draft,) = plan.drafts
    assert (draft.kind, draft.body["state"]) == ("trace", state)
    later = replaced(GOALS, {"message_id": "later"})
    assert [one.kind for one in bus.submit("goal", later).drafts] == ["trace", "say"]


def test_pending_without_a_work_is_refused() -> None:
    plan = SentientPeer("obj", user="front").plan(replaced(OBJECTIVES, {"status/code": "pending"}))
    assert rules(plan.findings) == [("/status/code", "no_work")]


def test_a_chain_without_a_request_reports_to_the_users_peer() -> None:
    bus = SentientBus(SentientPeer("obj", user="front"), SentientPeer("front"))
    (draft,) = bus.submit("obj", OUT_OF_SCOPE).drafts
    assert (draft.kind, draft.to, draft.work_id) == ("say", "front", None)
    assert draft.body == {"text": "Request falls outside platform capabilities", "intent": "error"}
    assert bus.peers["front"].delivered[0].message == OUT_OF_SCOPE
    assert not bus.peers["front"].delivered[0].native


def test_without_a_users_peer_it_is_refused_naming_the_setting() -> None:
    plan = SentientPeer("obj").plan(OUT_OF_SCOPE)
    assert ("/next_agent/name", "no_user_peer") in rules(plan.findings)
    assert "`sentient.user`" in plan.findings[-1].message
    assert plan.drafts == ()
    by_map = SentientPeer("obj", names={"objective_agent": "obj", "user": "front"}).plan(OUT_OF_SCOPE)
    assert [draft.to for draft in by_map.drafts] == ["front"]


# the assigned work


@pytest.mark.parametrize("with_trace_id", [False, True])
def test_a_native_request_is_answered_with_its_session_and_request(with_trace_id: bool) -> None:
    bus = SentientBus(SentientPeer("obj", user="front"), SentientPeer("goal"), SentientPeer("front"))
    asked(bus, trace_id="trace-7" if with_trace_id else None)
    asked(bus, "other", trace_id="trace-8")
    request = bus.peers["obj"].delivered[0]
    assert request.message is not None
    assert (request.native, request.message["output"]["content"]) == (True, "Do it")
    assert check_shape(request.message) == ()
    metadata = request.message["metadata"]
    assert metadata["request_id"] == ("trace-7" if with_trace_id else "work_ask")
    first = replaced(OUT_OF_SCOPE, {"metadata/session_id": metadata["session_id"], "metadata/request_id": "another"})
    assert bus.peers["obj"].plan(first).drafts[0].kind == "say"
    first = replaced(first, {"metadata/request_id": metadata["request_id"]})
    plan = bus.submit("obj", first)
    assert [(draft.kind, draft.work_id) for draft in plan.drafts] == [("trace", "work_ask")]
    assert bus.peers["front"].works["work_ask"].state == "failed"
    assert bus.peers["obj"].plan(first).repeats


def test_the_only_native_request_is_answered_with_ids_of_ones_own() -> None:
    bus = SentientBus(SentientPeer("obj", user="front"), SentientPeer("goal"), SentientPeer("front"))
    asked(bus)
    assert [(draft.kind, draft.work_id) for draft in bus.peers["obj"].plan(OUT_OF_SCOPE).drafts] == [
        ("trace", "work_ask")
    ]
    asked(bus, "other")
    assert [(draft.kind, draft.work_id) for draft in bus.peers["obj"].plan(OUT_OF_SCOPE).drafts] == [("say", None)]


def test_a_native_request_is_answered_as_the_parent() -> None:
    bus = SentientBus(SentientPeer("obj"), SentientPeer("goal"), SentientPeer("front"))
    asked(bus)
    second = replaced(GOALS, {"agent/name": "objective_agent", "next_agent/name": "goal_agent", "status/message": None})
    second = replaced(second, {"metadata/parent_message_id": "msg_ask", "metadata/session_id": "made-up"})
    plan = bus.submit("obj", second)
    assert [draft.kind for draft in plan.drafts] == ["trace", "say"]
    assert plan.message["metadata"]["session_id"] == "thread_request"
    assert plan.message["metadata"]["request_id"] == "work_ask"


def test_the_caller_may_name_the_work() -> None:
    bus = SentientBus(SentientPeer("obj", user="front"), SentientPeer("front"))
    asked(bus)
    assert [draft.work_id for draft in bus.submit("obj", OUT_OF_SCOPE, work_id="work_ask").drafts] == ["work_ask"]
    assert rules(SentientPeer("obj").plan(OUT_OF_SCOPE, work_id="work_x").findings, "error") == [("", "unknown_work")]
    theirs = bus.peers["front"].plan(replaced(OUT_OF_SCOPE, {"agent/name": "front"}), work_id="work_ask")
    assert ("", "not_our_work") in rules(theirs.findings)


def test_a_status_never_reopens_a_work() -> None:
    bus = chain()
    bus.submit("goal", replaced(GOALS, ENDS))
    for late in (replaced(GOALS, {"message_id": "late"}), replaced(GOALS, {**ENDS, "message_id": "late"})):
        plan = bus.peers["goal"].plan(late)
        assert rules(plan.findings) == [("", "work_closed")]
        assert plan.drafts == ()


# ids that several peers use

NAMES_OF_TWO = {"one": "obj", "two": "front", "goal_agent": "goal"}
SAME = {"message_id": "msg-same"}
ANSWER = replaced(GOALS, {**ENDS, "metadata/parent_message_id": "msg-same"})


def asked_by_two() -> tuple[SentientBus, list[str]]:
    """Two peers have opened works for the goal agent with equal message ids and sessions; and these works."""
    bus = SentientBus(*(SentientPeer(name, names=NAMES_OF_TWO) for name in ("obj", "front", "goal")))
    works = []
    for agent in ("one", "two"):
        plan = bus.submit(bus.peers["obj"].agents.names[agent], replaced(OBJECTIVES, {"agent/name": agent, **SAME}))
        works.append(plan.drafts[0].work_id or "")
    return bus, works


@pytest.mark.parametrize(("source", "number"), [("one", 0), ("two", 1)])
def test_an_answer_goes_to_the_peer_of_its_input(source: str, number: int) -> None:
    bus, works = asked_by_two()
    answer = replaced(ANSWER, {"input/source": source})
    assert [draft.work_id for draft in bus.submit("goal", answer).drafts] == [works[number]]
    again = bus.peers["goal"].plan(answer)
    assert (again.repeats, again.refused) == (True, False)


def test_ambiguous_parent_of_several_open_works_requires_a_work_id() -> None:
    bus, works = asked_by_two()
    answer = replaced(ANSWER, {"input/source": "somebody"})
    assert rules(bus.peers["goal"].plan(answer).findings) == [("/metadata/parent_message_id", "parent_ambiguous")]
    assert [draft.work_id for draft in bus.submit("goal", answer, work_id=works[0]).drafts] == [works[0]]
    again = bus.peers["goal"].plan(answer)  # not the other work, which alone is open now
    assert (again.repeats, again.drafts[0].work_id) == (True, works[0])
    last = replaced(answer, {"message_id": "msg-second"})
    assert [draft.work_id for draft in bus.submit("goal", last).drafts] == [works[1]]


# who is who


def test_the_agent_must_belong_to_the_submitting_peer() -> None:
    assert rules(SentientPeer("plan").plan(OBJECTIVES).findings) == [("/agent/name", "agent_map")]
    unmapped = SentientPeer("obj", names={"goal_agent": "goal"}).plan(
        replaced(OBJECTIVES, {"agent/name": "Objective Agent"})
    )
    assert rules(unmapped.findings) == [("/agent/name", "agent_map")]
    assert (
        not SentientPeer("obj", names={"goal_agent": "goal"}).plan(replaced(OBJECTIVES, {"agent/name": "obj"})).refused
    )


@pytest.mark.parametrize(("name", "rule"), [("Goal Agent", "agent_map"), ("", "agent_map"), ("obj", "same_peer")])
def test_the_next_agent_must_be_another_known_peer(name: str, rule: str) -> None:
    assert rules(SentientPeer("obj").plan(replaced(OBJECTIVES, {"next_agent/name": name})).findings) == [
        ("/next_agent/name", rule)
    ]


# once


def test_the_same_message_twice_is_sent_once() -> None:
    bus = chain()
    again = bus.peers["obj"].plan(OBJECTIVES)
    assert again.repeats
    sent = bus.peers["obj"].envelopes
    assert [draft.id in {envelope.id for envelope in sent} for draft in again.drafts] == [True]
    first = bus.submit("goal", GOALS)
    again = bus.peers["goal"].plan(GOALS, now=NOW + 9)
    assert again.repeats
    assert [draft.id for draft in again.drafts] == [draft.id for draft in first.drafts]


def test_a_repeated_last_message_is_not_an_error() -> None:
    bus = chain()
    bus.submit("goal", replaced(GOALS, ENDS))
    again = bus.peers["goal"].plan(replaced(GOALS, ENDS))
    assert (again.repeats, again.refused) == (True, False)


@pytest.mark.parametrize("path", ["status/message", "audit/reasoning"])
def test_the_same_id_with_other_content_is_an_error(path: str) -> None:
    bus = chain()
    assert rules(bus.peers["obj"].plan(replaced(OBJECTIVES, {path: "other"})).findings) == [
        ("/message_id", "id_conflict")
    ]
    elsewhere = replaced(OBJECTIVES, {path: "other", "metadata/session_id": "another"})
    assert rules(bus.peers["obj"].plan(elsewhere).findings) == [("/message_id", "id_conflict")]


def test_ids_that_the_bus_cannot_carry_are_hashed() -> None:
    odd = replaced(
        OBJECTIVES, {"metadata/request_id": " odd \n", "metadata/session_id": "Ü" * 500, "message_id": "\t1"}
    )
    bus = SentientBus(SentientPeer("obj"), SentientPeer("goal"))
    (draft,) = bus.submit("obj", odd).drafts
    assert (draft.trace_id or "").startswith("sha256_")
    assert bus.peers["goal"].delivered[0].message == odd


def test_text_result_and_artifacts_are_truncated() -> None:
    refs = [{**OBJECTIVES["resources"]["source_refs"][0], "ref_id": f"src_{n}"} for n in range(1, 1500)]
    big = replaced(OBJECTIVES, {"output/content": "x" * 200_000, "resources/source_refs": refs})
    bus = SentientBus(SentientPeer("obj", user="front"), SentientPeer("goal"), SentientPeer("front"))
    (draft,) = bus.submit("obj", big).drafts
    assert len(draft.body["text"].encode()) <= 65_536
    assert 100 < len(draft.body["artifacts"]) < 1499
    assert len(msgspec.json.encode(draft.body["artifacts"])) <= 65_536 + 2
    assert bus.peers["goal"].delivered[0].message == big


def test_a_trace_gives_its_message_back_where_it_agrees_with_the_state() -> None:
    bus = chain()
    last = replaced(GOALS, ENDS)
    plan = bus.peers["goal"].plan(last)
    (draft,) = plan.drafts
    obj = bus.peers["obj"]
    assert obj.adapter.deliver(BridgedEnvelope(envelope=build(draft, NOW)), obj.context(), obj).message == last
    body = {**draft.body, "state": "failed"}
    lying = obj.adapter.deliver(
        BridgedEnvelope(envelope=build(msgspec.structs.replace(draft, body=body), NOW)), obj.context(), obj
    )
    assert lying.native
    assert lying.message is not None
    assert lying.message["status"]["code"] == "failed"
    assert rules(lying.findings) == [("/status/code", "carried_message")]


def test_an_offline_conversion_fills_missing_ends() -> None:
    peer = SentientPeer("agent-a")
    peer.whole = False
    peer.agents = AgentMap(own="agent-a", other="agent-b")
    ends = {"agent/name": "The Objectives", "next_agent/name": "The Goals"}
    assert [draft.to for draft in peer.plan(replaced(OBJECTIVES, ends)).drafts] == ["agent-b"]
    lone = peer.plan(replaced(OUT_OF_SCOPE, {"agent/name": "The Objectives"}))
    assert [(draft.kind, draft.to) for draft in lone.drafts] == [("say", "agent-b")]


def test_a_chain_continues_from_its_own_question_and_from_the_answer() -> None:
    bus = chain()
    question = replaced(GOALS, {"message_id": "q", "status/code": "pending", "next_agent/name": "user"})
    bus.submit("goal", question)
    (work,) = bus.peers["obj"].works.values()
    assert work.state == "needs_input"
    context = bus.peers["obj"].context()
    answer = say(context, "goal", "msg_answer", work.container, {"text": "yes"}, work_id=work.work_id)
    bus.request(answer)
    ids = {"metadata/parent_message_id": "q", "metadata/sequence_number": 3}
    from_question = bus.peers["goal"].plan(replaced(GOALS, ids))
    assert [draft.work_id for draft in from_question.drafts][:1] == [work.work_id]
    assert from_question.findings == ()
    from_answer = bus.peers["goal"].plan(replaced(GOALS, {"metadata/parent_message_id": "msg_answer"}))
    assert [draft.work_id for draft in from_answer.drafts][:1] == [work.work_id]
    # The answer is native: it carries no refs to compare with, and it belongs to the session that opened the work.
    assert from_answer.findings == ()
    assert from_answer.scope == SESSION
