"""AgentOS: a message that was taken and not answered within its ttl ends as a timeout, on both sides."""

from pathlib import Path

from tests.support.bridge_daemons import MAP, SHORT, daemons, messages, query, submit
from tests.support.daemons import Daemon, wait_for

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
