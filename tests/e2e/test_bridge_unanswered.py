"""Unanswered works: the daemon ends them, and the agent that asked gets a failure of its format."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.bridge_daemons import INPUT, MAP, SHORT, daemons, link, messages, query
from tests.support.bridging import submit
from tests.support.daemons import Daemon, wait_for

QUICK = ("--retry-first", "100ms", "--retry-ceiling", "500ms")
IMPATIENT = ("--work-accept-within", "1s")


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Daemon, Daemon]]:
    """ops, which does not wait long for an acceptance, and a worker that accepts nothing."""
    with daemons(tmp_path, ("ops", *MAP, *IMPATIENT), ("worker", *MAP)) as (ops, worker):
        yield ops, worker


def closing(daemon: Daemon) -> Any:
    """The receipt that the daemon sent."""
    (found,) = daemon.get("/v1/messages?direction=out&kind=receipt")["messages"]
    return found


def test_a_question_to_an_absent_peer_becomes_a_timeout(tmp_path: Path) -> None:
    names = ("--bridge-agent", "asker=ops", "--bridge-agent", "helper=ghost")
    with daemons(tmp_path, ("ops", *names, *QUICK)) as (ops,):
        question = query("asker", "helper", ttl=2)
        sent = submit(ops, "agentos", question)["sent"][0]
        (told,) = messages(ops, "agentos", 1)
        assert (told["message"]["type"], told["message"]["replyTo"]) == ("error", question["id"])
        content = told["message"]["payload"]["content"]
        assert (content["code"], content["recoverable"]) == ("TIMEOUT", True)
        assert content["details"] == {"status": "canceled", "reasonCode": "expired"}
        assert (told["work_id"], told["work_state"], told["kind"]) == (sent["work_id"], "canceled", "receipt")
        assert told["envelope_id"] == closing(ops)["id"]
        assert closing(ops)["envelope"]["trace_id"] == question["context"]["requestId"]
        assert told["message"]["context"].items() <= question["context"].items()
        assert told["native"]
        assert ops.get(f"/v1/bridge/agentos/messages/{told['seq']}")["message"] == told["message"]

        def logged() -> bool:
            rows = {row["messageId"]: row for row in ops.get("/v1/bridge/agentos/log")["rows"]}
            asked, answer = rows[question["id"]], rows.get(told["message"]["id"], {})
            return (asked["status"], asked["latencyMs"], answer.get("status")) == ("timeout", 2000, "error")

        wait_for(logged, SHORT, "both rows")


def test_the_end_is_delivered_once_and_again_without_an_acknowledgement(pair: tuple[Daemon, Daemon]) -> None:
    ops, worker = pair
    submit(ops, "sacp", "List the names.", target="worker")
    (told,) = messages(ops, "sacp", 1)
    ops.kill()
    ops.start()
    assert messages(ops, "sacp", 1) == [told]
    ops.post("/v1/bridge/sacp/ack", seq=told["seq"])
    worker.post("/v1/messages", kind="say", to="ops", body={"text": "later"}, thread_id="thread_later")
    assert [one["message"] for one in messages(ops, "sacp", 1)] == ["later"]


def test_the_failure_of_each_format_has_its_reason(pair: tuple[Daemon, Daemon]) -> None:
    ops, _worker = pair
    submit(ops, "humaninloop", INPUT, target="worker")
    (told,) = messages(ops, "humaninloop", 1)
    assert (told["message"]["success"], told["message"]["recommendation"]) == (False, "escalate")
    assert told["message"]["summary"] == "canceled: not accepted within 1 s"
    submit(ops, "sacp", "List the names.", target="worker")
    (told,) = messages(ops, "sacp", 1, f"?since={told['seq']}")
    assert told["message"] == {
        "thought": "",
        "status": "failure",
        "data": {"receipt": "canceled"},
        "message": "not accepted within 1 s",
    }
    submit(ops, "agentos", query("asker", "helper"))
    (told,) = messages(ops, "agentos", 1, f"?since={told['seq']}")
    assert told["message"]["payload"]["content"]["code"] == "TIMEOUT"


def test_neither_the_target_nor_the_canceling_agent_gets_the_end(tmp_path: Path) -> None:
    with daemons(tmp_path, ("ops", *MAP), ("worker", *MAP, *IMPATIENT)) as (ops, worker):
        work_id = submit(ops, "sacp", "one", target="worker")["sent"][0]["work_id"]
        (refused,) = messages(ops, "sacp", 1)  # the worker's daemon refused it: an ordinary receipt
        assert refused["message"]["data"] == {"receipt": "rejected", "reason_code": "busy"}
        assert ops.state_of(work_id) == "failed"
        assert (
            worker.stop() == 0
        )  # with more patience from now on: its refusal must not be quicker than the cancelation
        worker.args = MAP
        worker.start()
        second = submit(ops, "sacp", "two", target="worker")["sent"][0]["work_id"]
        ops.post(f"/v1/works/{second}/cancel")
        wait_for(lambda: worker.state_of(second) == "canceled", SHORT, "the end of it")
        for one, other in ((ops, worker), (worker, ops)):
            one.post("/v1/messages", kind="say", to=other.name, body={"text": "last"}, thread_id="thread_last")
        (last,) = messages(ops, "sacp", 1, f"?since={refused['seq']}")
        assert last["message"] == "last"
        received = messages(worker, "sacp", 4, "?since=0")
        assert [one["message"] for one in received if one["kind"] == "say"] == ["one", "two", "last"]
        (canceled,) = (one for one in received if one["kind"] == "receipt")
        assert canceled["work_id"] == second  # ops called it off; what the worker's own daemon refused is not here


def test_a_chain_ends_as_failed_when_the_next_agent_never_answers(tmp_path: Path) -> None:
    with daemons(tmp_path, ("desk",), ("objective", *IMPATIENT), ("goal",)) as (desk, objective, goal):
        work_id = desk.post("/v1/works", to="objective", text="Plan my day")["work_id"]
        (asked,) = messages(objective, "sentient", 1)
        objective.post("/v1/bridge/sentient/ack", seq=asked["seq"])
        metadata = asked["message"]["metadata"]
        first = link("objective", "goal", 1, session=metadata["session_id"], request=metadata["request_id"])
        submit(objective, "sentient", first)
        wait_for(lambda: desk.state_of(work_id) == "failed", SHORT, "the failure to travel back")
        assert "not accepted within 1 s" in desk.get(f"/v1/works/{work_id}")["work"]["message"]
        goal.post("/v1/messages", kind="say", to="objective", body={"text": "late"}, thread_id="thread_late")
        (late,) = messages(objective, "sentient", 1)
        assert late["message"]["output"]["content"] == "late"  # agents of this format are handed says only


NAMES = ("asker", "helper")


def take(worker: Daemon) -> str:
    """The agent of `worker` takes its query; the work."""
    (asked,) = messages(worker, "agentos", 1)
    worker.post("/v1/bridge/agentos/ack", seq=asked["seq"])
    assert worker.state_of(asked["work_id"]) == "working"
    return str(asked["work_id"])


def test_a_query_that_was_taken_and_not_answered_times_out_on_both_sides(tmp_path: Path) -> None:
    with daemons(tmp_path, ("ops", *MAP), ("worker", *MAP)) as (ops, worker):
        question = query(*NAMES, ttl=4)
        submit(ops, "agentos", question)
        work_id = take(worker)
        (told,) = messages(ops, "agentos", 1)
        assert (told["message"]["type"], told["message"]["replyTo"]) == ("error", question["id"])
        content = told["message"]["payload"]["content"]
        assert (content["code"], content["recoverable"]) == ("TIMEOUT", True)
        assert content["message"] == "not answered within its ttl of 4 s"
        wait_for(lambda: worker.state_of(work_id) == ops.state_of(work_id) == "canceled", SHORT, "the end")
        assert ("query", "timeout") in statuses(ops)
        wait_for(lambda: ("query", "timeout") in statuses(worker), SHORT, "the timeout in the log of the target")

        again = submit(ops, "agentos", {**question, "retryCount": 1, "ttl": 60})
        assert not again["repeated"]
        assert again["sent"][0]["work_id"] != work_id
        wait_for(lambda: worker.state_of(again["sent"][0]["work_id"]), SHORT, "the retry")


def test_the_target_ends_the_work_of_an_asker_that_is_gone(tmp_path: Path) -> None:
    with daemons(tmp_path, ("ops", *MAP), ("worker", *MAP)) as (ops, worker):
        submit(ops, "agentos", query(*NAMES, ttl=5))
        work_id = take(worker)
        ops.kill()
        wait_for(lambda: worker.state_of(work_id) == "failed", SHORT, "the end of the work")
        work = worker.get(f"/v1/works/{work_id}")["work"]
        assert work["message"] == "not answered within its ttl of 5 s"
        ops.start()
        (told,) = messages(ops, "agentos", 1)
        assert told["message"]["payload"]["content"]["code"] == "TIMEOUT"


def test_the_ttl_waits_for_the_answer_to_a_question_of_the_target(tmp_path: Path) -> None:
    with daemons(tmp_path, ("ops", *MAP), ("worker", *MAP)) as (ops, worker):
        submit(ops, "agentos", query(*NAMES, ttl=4))
        work_id = take(worker)
        worker.post(f"/v1/works/{work_id}/need-input", message="which year?")
        (asked,) = messages(ops, "agentos", 1)
        submit(ops, "agentos", query(*NAMES, ttl=4))
        wait_for(lambda: any(row["status"] == "timeout" for row in rows(ops)), SHORT, "the timeout of the other query")
        assert ops.state_of(work_id) == "needs_input"
        answer = query(*NAMES, type="response", replyTo=asked["message"]["id"])
        submit(ops, "agentos", answer)
        wait_for(lambda: worker.state_of(work_id) == "canceled", 2 * SHORT, "the end after the answer")


def statuses(daemon: Daemon) -> set[tuple[str, str]]:
    return {(row["type"], row["status"]) for row in rows(daemon)}


def rows(daemon: Daemon) -> list[dict[str, str]]:
    found: list[dict[str, str]] = daemon.get("/v1/bridge/agentos/log")["rows"]
    return found
