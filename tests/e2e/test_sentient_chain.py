"""A whole chain of the Sentient platform over the bus."""

import copy
import json
from functools import partial
from typing import Final

from tests.support.bridging import WITHIN, envelope, found, same_json, submit, work_ended
from tests.support.daemons import wait_for
from tests.support.sentient_daemons import (
    DERIVED,
    FAILED,
    LATE,
    PEERS,
    SOURCE,
    STORED,
    Six,
    asked,
    entry,
    is_in,
    link,
    passed_on,
    plain,
    refused,
    step,
)

SESSION: Final = "thread_whole-chain"
FETCHED: Final = {
    "source_refs": [SOURCE],
    "storage_refs": [{**STORED, "storage_uri": "s3://w/1", "created_at_sequence": 3, "status": "stored"}],
    "derived_refs": DERIVED,
}
WHOLE: Final = [
    link(
        "objective_agent",
        "goal_agent",
        "2026-03-01T09:30:00+08:00",
        message_id="w-1",
        session_id=SESSION,
        request_id="req_whole",
        input={"source": "user", "content": "How does she feel in https://example.com/watch?v=a,b?"},
        output={
            "content": [
                "Obtain video content from src_1 and store as store_1",
                "From store_1 (acquired from src_1), analyze sentiment",
            ],
            "content_type": "objectives",
        },
        resources={"source_refs": [SOURCE], "storage_refs": [STORED], "derived_refs": []},
    ),
    link(
        "goal_agent",
        "planning_agent",
        "2026-03-01T09:30:01.75+08:00",
        message_id="w-2",
        session_id=SESSION,
        request_id="req_whole",
        sequence_number=2,
        parent_message_id="w-1",
        input={"source": "objective_agent", "content": ["one", "two — größer"]},
        output={
            "content": {"objective_1": {"objective": "Obtain it", "goals": ["Get src_1 as store_1", "Check store_1"]}},
            "content_type": "goals",
        },
        status={"code": "success", "message": "Split 1 objective into 2 goals"},
        resources={"source_refs": [SOURCE], "storage_refs": [STORED], "derived_refs": []},
        audit={
            "compliance_notes": None,
            "governance_files_consulted": ["context/application.md", "agent/governance/goal.md"],
            "reasoning": "Rule 4 of agent/governance/goal.md.",
        },
    ),
    link(
        "planning_agent",
        "sentiment agent",
        "2026-03-01T23:59:59+08:00",
        message_id="w-3",
        session_id=SESSION,
        request_id="req_whole",
        sequence_number=3,
        parent_message_id="w-2",
        input={"source": "goal_agent", "content": {"goals": 2, "deep": [1.5, True, None]}},
        output={"content": "1. fetch\n2. listen", "content_type": "plan"},
        status={"code": "partial", "message": "One goal has no plan\nyet"},
        resources=FETCHED,
    ),
    link(
        "sentiment agent",
        "final_output_agent",
        "2026-03-02T00:05:09+08:00",  # in UTC still the day before
        message_id="w-4",
        session_id=SESSION,
        request_id="req_whole",
        sequence_number=4,
        parent_message_id="w-3",
        input={"source": "planning_agent", "content": None},
        output={"content": {"mood": "calm", "score": 0.75}, "content_type": "analysis"},
        status={"code": "partial", "message": None},
        error={
            "has_error": True,
            "error_code": "TIMEOUT",
            "error_message": "the second speaker was not heard",
            "retry_count": 1,
            "recoverable": True,
        },
        resources=FETCHED,
        audit={
            "compliance_notes": "one of two",
            "governance_files_consulted": [],
            "reasoning": "Rule 2 of agent/x.md.",
        },
    ),
    link(
        "final_output_agent",
        "user",
        "2026-03-02T00:05:10+08:00",
        message_id="w-5",
        session_id=SESSION,
        request_id="req_whole",
        sequence_number=5,
        parent_message_id="w-4",
        input={"source": "sentiment agent", "content": {"mood": "calm", "score": 0.75}},
        output={"content": ["She is calm.", "Sure to 0.75."], "content_type": "response"},
        status={"code": "partial", "message": "Answered what could be heard"},
        resources=FETCHED,
    ),
]
ENTRIES: Final = {
    "objective": r"""[TIMESTAMP: 09:30:00]
[AGENT: objective_agent]
[INPUT SOURCE: user]
[INPUT]: How does she feel in https://example.com/watch?v=a,b?
[OUTPUT TYPE: objectives]
[STATUS: success] objective_agent is done
[RESOURCES]: source_refs=src_1:https://example.com/watch?v=a,b, storage_refs=store_1:pending, derived_refs=
[COMPLIANCE NOTES]: in scope
[GOVERNANCE FILES]: context/governance/audit.md
[MESSAGE_ID: w-1]
[SESSION_ID: thread_whole-chain]
---
""",
    "goal": r"""[TIMESTAMP: 09:30:01]
[AGENT: goal_agent]
[INPUT SOURCE: objective_agent]
[INPUT]: ["one","two — größer"]
[OUTPUT TYPE: goals]
[STATUS: success] Split 1 objective into 2 goals
[RESOURCES]: source_refs=src_1:https://example.com/watch?v=a,b, storage_refs=store_1:pending, derived_refs=
[COMPLIANCE NOTES]: null
[GOVERNANCE FILES]: context/application.md, agent/governance/goal.md
[MESSAGE_ID: w-2]
[SESSION_ID: thread_whole-chain]
---
""",
    "planning": r"""[TIMESTAMP: 23:59:59]
[AGENT: planning_agent]
[INPUT SOURCE: goal_agent]
[INPUT]: {"goals":2,"deep":[1.5,true,null]}
[OUTPUT TYPE: plan]
[STATUS: partial] One goal has no plan\nyet
[RESOURCES]: source_refs=src_1:https://example.com/watch?v=a,b, storage_refs=store_1:stored, """
    r"""derived_refs=derived_1:audio_track,derived_2:transcript
[COMPLIANCE NOTES]: in scope
[GOVERNANCE FILES]: context/governance/audit.md
[MESSAGE_ID: w-3]
[SESSION_ID: thread_whole-chain]
---
""",
    "executional": r"""[TIMESTAMP: 00:05:09]
[AGENT: sentiment agent]
[INPUT SOURCE: planning_agent]
[INPUT]: null
[OUTPUT TYPE: analysis]
[STATUS: partial] null
[ERROR: TIMEOUT] the second speaker was not heard
[RESOURCES]: source_refs=src_1:https://example.com/watch?v=a,b, storage_refs=store_1:stored, """
    r"""derived_refs=derived_1:audio_track,derived_2:transcript
[COMPLIANCE NOTES]: one of two
[GOVERNANCE FILES]: """
    r"""
[MESSAGE_ID: w-4]
[SESSION_ID: thread_whole-chain]
---
""",
    "final": r"""[TIMESTAMP: 00:05:10]
[AGENT: final_output_agent]
[INPUT SOURCE: sentiment agent]
[INPUT]: {"mood":"calm","score":0.75}
[OUTPUT TYPE: response]
[STATUS: partial] Answered what could be heard
[RESOURCES]: source_refs=src_1:https://example.com/watch?v=a,b, storage_refs=store_1:stored, """
    r"""derived_refs=derived_1:audio_track,derived_2:transcript
[COMPLIANCE NOTES]: in scope
[GOVERNANCE FILES]: context/governance/audit.md
[MESSAGE_ID: w-5]
[SESSION_ID: thread_whole-chain]
---
""",
}


def test_a_request_passes_the_chain_and_its_result_is_forwarded_back(six: Six) -> None:
    work_id, _handed = asked(six, SESSION, "req_whole")
    works = {"objective": work_id}
    peers = list(PEERS.values())
    for message, receiver in zip(WHOLE, peers[1:5], strict=False):
        answer, handed = step(six, message, receiver)
        assert found(answer) == found(handed) == LATE
        assert handed["native"] is False
        assert same_json(handed["message"], message)
        works[receiver] = handed["work_id"]
    for peer, held in works.items():  # a peer that passed its work on is still in work
        wanted = "submitted" if peer == "final" else "working"
        wait_for(partial(is_in, six.at[peer], held, wanted), WITHIN, f"{peer} to be {wanted}")
    answer = submit(six.at["final"], "sentient", WHOLE[4])
    assert (found(answer), [sent["kind"] for sent in answer["sent"]]) == (LATE, ["trace"])

    result = {
        "content": ["She is calm.", "Sure to 0.75."],
        "content_type": "response",
        "status": "partial",
        "partial": True,
    }
    for peer, held in works.items():
        other = "desk" if peer == "objective" else peers[peers.index(peer) - 1]
        for side in (peer, other):
            work = work_ended(six.at[side], held)
            assert (work["state"], work["message"]) == ("completed", "Answered what could be heard")
            assert same_json(work["result"], result)
    ext = envelope(six.at["executional"], answer["sent"][0]["id"])["ext"]
    assert same_json(ext["sentient.message"], WHOLE[4])

    for peer, text in ENTRIES.items():
        early = peer in ("objective", "goal", "planning")
        six.logs(peer, "20260301" if early else "20260302", text)
        assert six.log(peer, "20260302" if early else "20260301") is None

    (told,) = six.told(SESSION)
    assert told["sender"] == "objective"  # where the chain began
    text = told["envelope"]["body"]["text"]
    first_day = "20260301.log\n" + ENTRIES["objective"] + ENTRIES["goal"] + ENTRIES["planning"]
    second_day = "20260302.log\n" + ENTRIES["executional"] + ENTRIES["final"]
    assert text.startswith(first_day + second_day)
    assert same_json(json.loads(text.removeprefix(first_day + second_day)), WHOLE[4])
    assert same_json(told["envelope"]["ext"]["sentient.last"], WHOLE[4])
    assert six.log("memory", "20260301") is None  # it said nothing yet
    assert six.log("memory", "20260302") is None


def test_a_changed_request_id_is_overwritten_for_the_next_agent(six: Six) -> None:
    session, day = "thread_tampered", "20260303"
    work_id, _steps, sent = passed_on(six, session, "req_true", day, 1)
    tampered = plain("goal_agent", "planning_agent", "thread_other", "req_forged", 2, day)
    tampered["message_id"] = f"{session}-2"
    tampered["metadata"]["parent_message_id"] = sent[0]["message_id"]
    answer, handed = step(six, tampered, "planning")
    repaired = copy.deepcopy(tampered)
    repaired["metadata"].update(session_id=session, request_id="req_true")
    assert same_json(handed["message"], repaired)
    assert same_json(answer["message"], repaired)
    assert found(answer) == sorted(
        [*LATE, ("/metadata/request_id", "inherited", "warning"), ("/metadata/session_id", "inherited", "warning")]
    )
    told = {one["path"]: one["message"] for one in answer["findings"]}
    assert "'req_forged'" in told["/metadata/request_id"]
    assert "'thread_other'" in told["/metadata/session_id"]
    on_the_wire = envelope(six.at["planning"], handed["envelope_id"])
    assert on_the_wire["trace_id"] == "req_true"
    assert found({"findings": on_the_wire["ext"]["sentient.findings"]}) == found(answer)
    # And so on for the one after it, whose agent copied what it was handed.
    submit(six.at["planning"], "sentient", plain("planning_agent", None, session, "req_true", 3, day))
    assert work_ended(six.at["desk"], work_id)["state"] == "completed"
    six.logs("goal", day, entry("goal_agent", session, 2))
    assert len(six.told(session)) == 1


def test_a_failure_closes_every_work_upstream_with_its_result(six: Six) -> None:
    session, day = "thread_failing", "20260304"
    work_id, steps, _sent = passed_on(six, session, "req_failing", day, 3)
    status = {"code": "failed", "message": "sentiment agent is done"}
    last = plain("sentiment agent", None, session, "req_failing", 4, day, status=status, error=FAILED)
    submit(six.at["executional"], "sentient", last)
    fault = {key: held for key, held in FAILED.items() if key != "has_error"}
    held_by = [("desk", work_id), ("objective", work_id)]
    for peer, one in zip(("goal", "planning", "executional"), steps, strict=True):
        held_by += [(peer, one.handed["work_id"])]
    for peer, held in held_by:
        work = work_ended(six.at[peer], held)
        assert (work["state"], work["message"]) == ("failed", "sentiment agent is done")
        assert same_json(work["result"]["error"], fault)
        assert work["result"]["status"] == "failed"
    text = entry("sentiment agent", session, 4, "failed", "[ERROR: DEPENDENCY_ERROR] store_1 was never stored\n")
    six.logs("executional", day, text)
    (told,) = six.told(session)
    assert told["sender"] == "objective"
    assert text in told["envelope"]["body"]["text"]
    retry = plain("planning_agent", "sentiment agent", session, "req_failing", 3, day)
    retry["message_id"] += "-again"
    assert refused(six.at["planning"], retry) == {("", "work_closed")}  # open a new work to retry


def test_a_message_after_the_cancellation_is_refused(six: Six) -> None:
    session, day = "thread_canceled", "20260311"
    work_id, steps, _sent = passed_on(six, session, "req_canceled", day, 4)
    six.at["desk"].post(f"/v1/works/{work_id}/cancel")
    assert work_ended(six.at["final"], steps[3].handed["work_id"])["state"] == "canceled"
    late = plain("final_output_agent", None, session, "req_canceled", 5, day)
    assert refused(six.at["final"], late) == {("", "work_closed")}
    assert six.told(session) == []
    assert six.at["objective"].state_of(work_id) == six.at["desk"].state_of(work_id) == "canceled"
