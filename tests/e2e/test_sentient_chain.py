"""The whole chain of the Sentient platform over the bus, six agents on six daemons and the user on a seventh.

Each test has sessions and days of its own, so that a day's log has the entries of one test. Expected log entries are
written by hand from the layout of the seed (Log Entry Format).
"""

import contextlib
import copy
import json
import signal
from collections.abc import Iterator
from functools import partial
from http.client import HTTPException
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest

from aghbus.daemon.base.failpoints import VARIABLE
from tests.support.bridging import (
    WITHIN,
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
from tests.support.daemons import Daemon, HttpError, wait_for

PEERS: Final = {
    "objective_agent": "objective",
    "goal_agent": "goal",
    "planning_agent": "planning",
    "sentiment agent": "executional",
    "final_output_agent": "final",
    "memory_agent": "memory",
}
TYPES: Final = {"objective_agent": "governance", "goal_agent": "governance", "sentiment agent": "executional"}
QUICK: Final = ("--retry-first", "100ms", "--retry-ceiling", "500ms")  # as daemons of the tests die and come back
LATE: Final = [("/timestamp/executed_at", "clock_skew", "warning")]  # the days of the tests are not today
SOURCE: Final = {
    "ref_id": "src_1",
    "url": "https://example.com/watch?v=a,b",
    "platform": "web",
    "media_type": "video",
    "provided_by": "user",
    "extracted_at_sequence": 1,
}
STORED: Final = {
    "ref_id": "store_1",
    "source_ref_id": "src_1",
    "storage_uri": None,
    "storage_backend": "wasabi",
    "media_type": "video",
    "created_at_sequence": None,
    "status": "pending",
}
DERIVED: Final = [
    {
        "ref_id": f"derived_{number}",
        "parent_ref_id": "store_1",
        "storage_uri": None,
        "asset_type": asset,
        "capability_id": "CAP-AUD-001",
        "created_at_sequence": None,
        "status": "pending",
    }
    for number, asset in ((1, "audio_track"), (2, "transcript"))
]
FAILED: Final = {
    "has_error": True,
    "error_code": "DEPENDENCY_ERROR",
    "error_message": "store_1 was never stored",
    "retry_count": 2,
    "recoverable": True,
}


class Six(NamedTuple):
    """The daemons by peer id, and the folder below which each writes its logs."""

    at: dict[str, Daemon]
    root: Path

    def log(self, peer: str, day: str) -> str | None:
        """What a daemon has logged for a day; None without a file."""
        file = self.root / peer / "system" / "logs" / f"{day}.log"
        return file.read_text("utf-8") if file.exists() else None

    def logs(self, peer: str, day: str, text: str) -> None:
        """Fails unless the file of the day becomes exactly `text`."""
        wait_for(lambda: len(self.log(peer, day) or "") >= len(text), WITHIN, f"the log of {peer}")
        assert self.log(peer, day) == text

    def told(self, session: str) -> list[Any]:
        """The says at the memory agent's daemon that have entries of a session, once nobody has more to send."""
        for peer, daemon in self.at.items():
            wait_for(partial(at_rest, daemon), WITHIN, f"{peer} to come to rest")
        listed = self.at["memory"].get("/v1/messages?direction=in&kind=say&limit=500")["messages"]
        return [one for one in listed if f"[SESSION_ID: {session}]\n" in one["envelope"]["body"]["text"]]


def at_rest(daemon: Daemon) -> bool:
    """Whether nothing of our conversation is on its way to another peer."""
    listed = daemon.get("/v1/messages?direction=out&limit=500")["messages"]
    return not [one for one in listed if one["kind"] != "receipt" and one["delivery"] in ("queued", "published")]


@pytest.fixture(scope="module")
def six(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Six]:
    root = tmp_path_factory.mktemp("six")
    map_ = agent_map(PEERS)
    flags = {
        peer: (*map_, *QUICK, "--sentient-memory-agent", "memory", "--sentient-log-root", str(root / peer))
        for peer in PEERS.values()
    }
    with broker() as url, daemons(root / "home", url, {**flags, "desk": QUICK}) as made:
        yield Six(made, root)
        for daemon in made.values():
            counters = daemon.get("/v1/status")["counters"]
            assert not {"internal_errors", "bridge.terminal_not_forwarded"} & counters.keys()
            assert "Traceback" not in daemon.log.read_text()


def link(agent: str, following: str | None, at: str, **more: Any) -> dict[str, Any]:
    """A message of an agent, executed `at`; `more` replaces groups, and members of `metadata`."""
    metadata = {"session_id": "s", "request_id": "r", "sequence_number": 1, "parent_message_id": None}
    metadata.update({key: more.pop(key) for key in list(metadata) if key in more})
    return {
        "message_id": more.pop("message_id"),
        "timestamp": {"executed_at": at, "timezone": "Asia/Singapore"},
        "agent": {"name": agent, "type": TYPES.get(agent, "operational")},
        "input": {"source": "user", "content": "Find out"},
        "output": {"content": f"what {agent} says", "content_type": "plan"},
        "next_agent": {"name": following, "reason": "it is next"},
        "status": {"code": "success", "message": f"{agent} is done"},
        "error": {
            "has_error": False,
            "error_code": None,
            "error_message": None,
            "retry_count": 0,
            "recoverable": False,
        },
        "metadata": metadata,
        "resources": {"source_refs": [], "storage_refs": [], "derived_refs": []},
        "audit": {
            "compliance_notes": "in scope",
            "governance_files_consulted": ["context/governance/audit.md"],
            "reasoning": "Because the rules of context/governance/audit.md say so.",
        },
        **more,
    }


class Step(NamedTuple):
    """The result of one submission: the API's answer, and the message for the next agent."""

    answer: Any
    handed: Any


def step(six: Six, message: dict[str, Any], to: str, **more: Any) -> Step:
    """Submit a message at its agent's daemon, and read it at the daemon of the next one."""
    answer = submit(six.at[PEERS[message["agent"]["name"]]], "sentient", message, **more)
    return Step(answer, handed_out(six.at[to], "sentient", the_say(answer)["id"]))


def asked(six: Six, session: str, request: str) -> tuple[str, Any]:
    """The user's request to the objective agent: the id of its work, and the delivered message."""
    opened = six.at["desk"].post(
        "/v1/works", to="objective", text="How does she feel?", thread_id=session, trace_id=request
    )
    handed = handed_out(six.at["objective"], "sentient", opened["id"])
    assert handed["native"] is True
    assert handed["message"]["metadata"]["session_id"] == session
    assert handed["message"]["metadata"]["request_id"] == request
    return opened["work_id"], handed


def is_in(daemon: Daemon, work_id: str, state: str) -> bool:
    """Whether a work has this state here."""
    return daemon.state_of(work_id) == state


def passed_on(
    six: Six, session: str, request: str, day: str, upto: int
) -> tuple[str, list[Step], list[dict[str, Any]]]:
    """A request, and the first `upto` plain messages of its chain: the user's work, the steps and the messages."""
    work_id, _handed = asked(six, session, request)
    names = list(PEERS)
    steps: list[Step] = []
    sent: list[dict[str, Any]] = []
    for number in range(1, upto + 1):
        message = plain(names[number - 1], names[number], session, request, number, day)
        step_ = step(six, message, PEERS[names[number]])
        assert same_json(step_.handed["message"], message)
        steps.append(step_)
        sent.append(message)
    return work_id, steps, sent


def plain(agent: str, following: str | None, session: str, request: str, number: int, day: str, **more: Any) -> Any:
    """Message `number` of a chain without anything special."""
    at = f"{day[:4]}-{day[4:6]}-{day[6:]}T10:00:0{number}Z"
    parent = None if number == 1 else f"{session}-{number - 1}"
    return link(
        agent,
        following,
        at,
        message_id=f"{session}-{number}",
        session_id=session,
        request_id=request,
        sequence_number=number,
        parent_message_id=parent,
        **more,
    )


def entry(agent: str, session: str, number: int, status: str = "success", fault: str = "") -> str:
    """The log entry of a plain message."""
    return (
        f"[TIMESTAMP: 10:00:0{number}]\n"
        f"[AGENT: {agent}]\n"
        "[INPUT SOURCE: user]\n"
        "[INPUT]: Find out\n"
        "[OUTPUT TYPE: plan]\n"
        f"[STATUS: {status}] {agent} is done\n"
        f"{fault}"
        "[RESOURCES]: source_refs=, storage_refs=, derived_refs=\n"
        "[COMPLIANCE NOTES]: in scope\n"
        "[GOVERNANCE FILES]: context/governance/audit.md\n"
        f"[MESSAGE_ID: {session}-{number}]\n"
        f"[SESSION_ID: {session}]\n"
        "---\n"
    )


# the whole chain

SESSION: Final = "thread_whole-chain"
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
        resources={
            "source_refs": [SOURCE],
            "storage_refs": [{**STORED, "storage_uri": "s3://w/1", "created_at_sequence": 3, "status": "stored"}],
            "derived_refs": DERIVED,
        },
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
        resources={
            "source_refs": [SOURCE],
            "storage_refs": [{**STORED, "storage_uri": "s3://w/1", "created_at_sequence": 3, "status": "stored"}],
            "derived_refs": DERIVED,
        },
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
        resources={
            "source_refs": [SOURCE],
            "storage_refs": [{**STORED, "storage_uri": "s3://w/1", "created_at_sequence": 3, "status": "stored"}],
            "derived_refs": DERIVED,
        },
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
    assert (found(answer), [sent["kind"] for sent in answer["sent"]]) == (LATE, ["trace", "say"])

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
    assert (told["sender"], told["work_id"]) == ("final", None)
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
    assert told["sender"] == "executional"
    assert text in told["envelope"]["body"]["text"]
    retry = plain("planning_agent", "sentiment agent", session, "req_failing", 3, day)
    retry["message_id"] += "-again"
    assert refused(six.at["planning"], retry) == {("", "work_closed")}  # open a new work to retry


def test_a_chain_whose_request_was_canceled_reopens_nothing(six: Six) -> None:
    session, day = "thread_canceled", "20260311"
    work_id, steps, _sent = passed_on(six, session, "req_canceled", day, 4)
    six.at["desk"].post(f"/v1/works/{work_id}/cancel")
    assert work_ended(six.at["objective"], work_id)["state"] == "canceled"
    submit(six.at["final"], "sentient", plain("final_output_agent", None, session, "req_canceled", 5, day))
    for peer, one in zip(list(PEERS.values())[:4], steps, strict=True):
        assert work_ended(six.at[peer], one.handed["work_id"])["state"] == "completed"
    assert len(six.told(session)) == 1
    assert six.at["objective"].state_of(work_id) == six.at["desk"].state_of(work_id) == "canceled"


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
    answer = submit(planning, "sentient", third)  # its agent heard no yes
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


@contextlib.contextmanager
def dying(daemon: Daemon, point: str) -> Iterator[None]:
    """Starts a daemon again so that it dies at `point` in what follows, and raises it when it has."""
    assert daemon.stop() == 0
    daemon.env[VARIABLE] = point
    daemon.start()
    process = daemon.process
    assert process is not None
    del daemon.env[VARIABLE]
    yield
    assert process.wait(WITHIN) == -signal.SIGKILL, f"{daemon.name} never came to {point}"
    daemon.start()


# the memory agent


def test_a_chain_ended_by_the_memory_agent_notifies_no_peer(six: Six) -> None:
    session, day = "thread_remembered", "20260306"
    work_id, _steps, _sent = passed_on(six, session, "req_remembered", day, 1)
    submit(six.at["goal"], "sentient", plain("goal_agent", None, session, "req_remembered", 2, day))
    work_ended(six.at["desk"], work_id)
    (told,) = six.told(session)
    memory = six.at["memory"]
    handed = handed_out(memory, "sentient", told["id"])
    asked_by = handed["message"]
    before = {peer: sent_by(daemon) for peer, daemon in six.at.items()}
    learnt = plain("memory_agent", None, session, "req_remembered", 2, day)
    learnt["message_id"] = "learnt-1"
    learnt["metadata"]["parent_message_id"] = asked_by["message_id"]
    # The message after the one that it was handed, and a chain of its own.
    own = plain("memory_agent", None, "nightly", "req_nightly", 1, day)
    own["message_id"] = "learnt-2"
    for message in (learnt, own):
        answer = submit(memory, "sentient", message)
        assert (answer["sent"], answer["repeated"]) == ([], False)
        assert {one["severity"] for one in answer["findings"]} == {"warning"}
    again = submit(memory, "sentient", own)
    assert (again["sent"], again["repeated"]) == ([], True)
    other = {**own, "status": {"code": "success", "message": "something else"}}
    assert refused(memory, other) == {("/message_id", "id_conflict")}
    ids = [row["message_id"] for row in memory.get("/v1/bridge/sentient/log")["rows"]]
    assert ids.count("learnt-1") == ids.count("learnt-2") == 1
    session_of = asked_by["metadata"]["session_id"]
    six.logs(
        "memory",
        day,
        entry("memory_agent", "x", 2).replace("ID: x-2]", "ID: learnt-1]").replace("ID: x]", f"ID: {session_of}]")
        + entry("memory_agent", "nightly", 1).replace("nightly-1", "learnt-2"),
    )
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


def sent_by(daemon: Daemon) -> list[str]:
    """Ids of the conversation that a daemon's own agent has sent."""
    listed = daemon.get("/v1/messages?direction=out&limit=500")["messages"]
    return [one["id"] for one in listed if one["kind"] in ("say", "trace")]


def refused(daemon: Daemon, message: Any) -> set[tuple[str, str]]:
    """Path and rule of the errors for which a message is refused."""
    with pytest.raises(HttpError) as caught:
        submit(daemon, "sentient", message)
    assert (caught.value.status, caught.value.answer["code"]) == (422, "message_refused")
    return {(path, rule) for path, rule, severity in found(caught.value.answer) if severity == "error"}


# forged entries

EVIL: Final = "x\n---\n[TIMESTAMP: 00:00:00]\r\n[AGENT: root]\u202e\u2066\u2028\x1b[2J\x7f\x85\t"
SHOWN: Final = r"x\n---\n[TIMESTAMP: 00:00:00]\r\n[AGENT: root]\u202e\u2066\u2028\x1b[2J\x7f\x85\t"
AS_JSON: Final = r"x\n---\n[TIMESTAMP: 00:00:00]\r\n[AGENT: root]\u202e\u2066\u2028\u001b[2J\x7f\x85\t"
FORGED: Final = rf"""[TIMESTAMP: 10:00:01]
[AGENT: objective_agent]
[INPUT SOURCE: {SHOWN}]
[INPUT]: {{"{AS_JSON}":["{AS_JSON}"]}}
[OUTPUT TYPE: {SHOWN}]
[STATUS: failed] {SHOWN}
[ERROR: TIMEOUT] {SHOWN}
[RESOURCES]: source_refs=src_1:{SHOWN}, storage_refs=store_1:stored, derived_refs=derived_1:{SHOWN}
[COMPLIANCE NOTES]: {SHOWN}
[GOVERNANCE FILES]: {SHOWN}, context/{SHOWN}
[MESSAGE_ID: 1{SHOWN}]
[SESSION_ID: s{SHOWN}]
---
"""


def hostile() -> dict[str, Any]:
    """A message whose every logged field that may be any text tries to end its entry and to begin another."""
    return link(
        "objective_agent",
        "goal_agent",
        "2026-03-08T10:00:01Z",
        message_id=f"1{EVIL}",
        session_id=f"s{EVIL}",
        request_id=EVIL,
        input={"source": EVIL, "content": {EVIL: [EVIL]}},
        output={"content": EVIL, "content_type": EVIL},
        status={"code": "failed", "message": EVIL},
        error={**FAILED, "error_code": "TIMEOUT", "error_message": EVIL},
        resources={
            "source_refs": [{**SOURCE, "url": EVIL}],
            "storage_refs": [{**STORED, "status": "stored"}],
            "derived_refs": [{**DERIVED[0], "asset_type": EVIL}],
        },
        audit={"compliance_notes": EVIL, "governance_files_consulted": [EVIL, f"context/{EVIL}"], "reasoning": EVIL},
    )


def test_no_text_of_a_message_forges_an_entry_of_the_log(six: Six) -> None:
    message = hostile()
    _answer, handed = step(six, message, "goal")
    assert same_json(handed["message"], message)
    six.logs("objective", "20260308", FORGED)
    # The next one has the entry from the wire, and passes it on to the memory agent.
    second = copy.deepcopy(message)
    second.update(message_id="forged-2", agent={"name": "goal_agent", "type": "governance"})
    second["next_agent"] = {"name": None, "reason": EVIL}
    second["metadata"].update(sequence_number=2, parent_message_id=message["message_id"])
    submit(six.at["goal"], "sentient", second)
    next_entry = FORGED.replace("objective_agent", "goal_agent").replace(f"1{SHOWN}]\n[SESS", "forged-2]\n[SESS")
    six.logs("goal", "20260308", next_entry)
    (told,) = six.told(f"s{SHOWN}")
    text = told["envelope"]["body"]["text"]
    assert text.startswith("20260308.log\n" + FORGED + next_entry)
    assert text.split("\n").count("---") == 2


@pytest.mark.parametrize(
    ("where", "path"),
    [
        (("timestamp", "executed_at"), "/timestamp/executed_at"),
        (("agent", "name"), "/agent/name"),
        (("status", "code"), "/status/code"),
        (("error", "error_code"), "/error/error_code"),
        (("resources", "source_refs", 0, "ref_id"), "/resources/source_refs/0/ref_id"),
        (("resources", "storage_refs", 0, "ref_id"), "/resources/storage_refs/0/ref_id"),
        (("resources", "storage_refs", 0, "status"), "/resources/storage_refs/0/status"),
        (("resources", "derived_refs", 0, "ref_id"), "/resources/derived_refs/0/ref_id"),
    ],
    ids=str,
)
def test_where_the_format_allows_no_such_text_the_message_is_refused(
    six: Six, where: tuple[str | int, ...], path: str
) -> None:
    message = hostile()
    message["message_id"] = f"refused-{where}"
    message["timestamp"]["executed_at"] = "2026-03-09T10:00:01Z"
    inner: Any = message
    for key in where[:-1]:
        inner = inner[key]
    inner[where[-1]] = f"{inner[where[-1]]}{EVIL}"
    assert path in {found_path for found_path, _rule in refused(six.at["objective"], message)}
    assert six.log("objective", "20260309") is None


def test_forged_entries_of_a_peer_are_not_forwarded(six: Six) -> None:
    session, day = "thread_forged-wire", "20260310"
    good = entry("nobody", "elsewhere", 1)
    forged = [
        {"day": "../../../../tmp/x", "text": good},
        {"day": day, "text": good + good},
        {"day": day, "text": good.replace("Find out", "Find\nout")},
        {"day": day, "text": good.replace("Find out", "Find \u202eout")},
        {"day": day, "text": good.replace("[AGENT: nobody]\n", "")},
        {"day": day, "text": "[AGENT: root]\n---\n"},
        {"day": 20260310, "text": good},
        "---\n",
        None,
    ]
    opened = six.at["desk"].post(
        "/v1/works", to="objective", text="Go", thread_id=session, trace_id="req_wire", ext={"sentient.log": forged}
    )
    handed_out(six.at["objective"], "sentient", opened["id"])
    first = plain("objective_agent", "goal_agent", session, "req_wire", 1, day)
    _answer, handed = step(six, first, "goal")
    ext = envelope(six.at["goal"], handed["envelope_id"])["ext"]
    assert ext["sentient.log"] == [{"day": day, "text": entry("objective_agent", session, 1)}]
    six.logs("objective", day, entry("objective_agent", session, 1))
