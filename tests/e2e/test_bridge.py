"""Agents of the four foreign formats on real daemons: submission, delivery, acknowledgement, crashes."""

import concurrent.futures
import json
import re
from collections.abc import Iterator
from datetime import UTC, datetime
from pathlib import Path

import pytest

from tests.support.bridge_daemons import INPUT, MAP, OUTPUT, REPLY, SHORT, daemons, link, messages, query
from tests.support.bridging import submit
from tests.support.daemons import Daemon, HttpError, wait_for
from tests.support.natsutil import NatsServer


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Daemon, Daemon]]:
    with daemons(tmp_path, ("ops", *MAP), ("worker", *MAP)) as (ops, worker):
        yield ops, worker


def test_a_sacp_question_is_sent_and_its_response_delivered(pair: tuple[Daemon, Daemon]) -> None:
    ops, worker = pair
    opened = submit(ops, "sacp", "List the names.", target="worker")
    (asked,) = messages(worker, "sacp", 1)
    assert asked["message"] == "List the names."
    assert worker.post("/v1/bridge/sacp/ack", seq=asked["seq"]) == {"format": "sacp", "seq": asked["seq"]}
    wait_for(lambda: ops.state_of(asked["work_id"]) == "working", SHORT, "the acceptance")
    submit(worker, "sacp", f"Here you are:\n```json\n{json.dumps(REPLY)}\n```")
    (answer,) = messages(ops, "sacp", 1)
    assert answer["message"] == REPLY
    assert (answer["work_id"], answer["work_state"]) == (opened["sent"][0]["work_id"], "completed")
    question, row = worker.get("/v1/bridge/sacp/log")["rows"]
    assert (question["direction"], question["peer"], question["raw"]) == ("received", "ops", "List the names.")
    assert row["raw"].startswith("Here you are")
    assert (row["direction"], row["stage"]) == ("sent", "fence")
    rows = ops.get("/v1/bridge/sacp/log")["rows"]
    assert [(row["direction"], row["stage"], row["thought"]) for row in rows] == [
        ("sent", "text", None),
        ("received", "object", REPLY["thought"]),
    ]


def test_messages_of_settled_works_are_skipped_and_end_no_other_work(
    pair: tuple[Daemon, Daemon],
) -> None:
    ops, worker = pair
    done, kept = (submit(ops, "sacp", text, target="worker")["sent"][0]["work_id"] for text in ("one", "two"))
    wait_for(lambda: len(worker.get("/v1/works")["works"]) == 2, SHORT, "the works")
    worker.post(f"/v1/works/{done}/complete", result={})
    assert [item["message"]["work_id"] for item in worker.get("/v1/inbox")["items"]] == [kept]
    (asked,) = messages(worker, "sacp", 1)
    assert (asked["work_id"], asked["work_state"]) == (kept, "submitted")
    again, _ = messages(worker, "sacp", 2, "?since=0")
    assert (again["work_id"], again["work_state"]) == (done, "completed")
    submit(worker, "sacp", json.dumps(REPLY))
    wait_for(lambda: ops.state_of(kept) == "completed", SHORT, "the answer to what was handed out")


def test_an_answer_to_a_canceled_work_is_not_used_for_the_next_question(tmp_path: Path) -> None:
    with daemons(tmp_path, ("one",), ("other",), ("worker",)) as (one, other, worker):
        first = submit(one, "sacp", "question one", target="worker")["sent"][0]["work_id"]
        messages(worker, "sacp", 1)
        one.post(f"/v1/works/{first}/cancel")
        wait_for(lambda: worker.state_of(first) == "canceled", SHORT, "the first to be called off")
        second = submit(other, "sacp", "question two", target="worker")["sent"][0]["work_id"]
        wait_for(lambda: worker.state_of(second), SHORT, "the second question")
        with pytest.raises(HttpError) as caught:
            submit(worker, "sacp", json.dumps(REPLY))
        assert [found["rule"] for found in caught.value.answer["findings"]] == ["no_work"]
        assert worker.state_of(second) == "submitted"


def test_resubmitted_answer_is_a_duplicate_after_a_new_question(tmp_path: Path) -> None:
    with daemons(tmp_path, ("one",), ("other",), ("worker",)) as (one, other, worker):
        first = submit(one, "sacp", "question one", target="worker")["sent"][0]["work_id"]
        messages(worker, "sacp", 1)
        submit(worker, "sacp", json.dumps(REPLY))
        second = submit(other, "sacp", "question two", target="worker")["sent"][0]["work_id"]
        wait_for(lambda: worker.state_of(second), SHORT, "the second question")
        again = submit(worker, "sacp", json.dumps(REPLY))
        assert (again["repeated"], again["sent"][0]["work_id"]) == (True, first)
        assert worker.state_of(second) == "submitted"


CHANNELS = ("--channel", "default", "--channel", "ops")


def test_output_without_work_id_uses_the_only_work_of_all_channels(tmp_path: Path) -> None:
    with daemons(tmp_path, ("flow", *CHANNELS), ("spec", *CHANNELS)) as (flow, spec):
        first = submit(flow, "humaninloop", INPUT, target="spec", channel="ops")["sent"][0]["work_id"]
        messages(spec, "humaninloop", 1)
        second_input = {**INPUT, "prior_context": ["of another"]}
        second = submit(flow, "humaninloop", second_input, target="spec", channel="default")["sent"][0]["work_id"]
        messages(spec, "humaninloop", 2)
        with pytest.raises(HttpError) as caught:
            submit(spec, "humaninloop", OUTPUT)
        assert [found["rule"] for found in caught.value.answer["findings"]] == ["ambiguous_work"]
        submit(spec, "humaninloop", OUTPUT, work_id=second)
        (sent,) = submit(spec, "humaninloop", {**OUTPUT, "summary": "of the first"})["sent"]
        assert (sent["work_id"], sent["channel"]) == (first, "ops")
        again = submit(spec, "humaninloop", {**OUTPUT, "summary": "of the first"})
        assert (again["repeated"], again["sent"][0]["work_id"]) == (True, first)


def test_a_message_with_correlation_is_sent_on_the_channel_of_its_work(tmp_path: Path) -> None:
    names = (*CHANNELS, *MAP)
    with daemons(tmp_path, ("ops", *names), ("worker", *names)) as (ops, worker):
        question = query("asker", "helper")
        asked = submit(ops, "agentos", question, channel="ops")["sent"][0]["work_id"]
        messages(worker, "agentos", 1)
        for kind in ("correction", "response"):
            answer = query("helper", "asker", type=kind, replyTo=question["id"])
            assert submit(worker, "agentos", answer)["sent"][0]["channel"] == "ops"
        wait_for(lambda: ops.state_of(asked) == "completed", SHORT, "the answer")
        late = query("helper", "asker", type="response", replyTo=question["id"])
        with pytest.raises(HttpError) as caught:
            submit(worker, "agentos", late)
        assert "work_closed" in [found["rule"] for found in caught.value.answer["findings"]]


def test_a_chain_continues_on_its_channel(tmp_path: Path) -> None:
    names = (*CHANNELS, "--bridge-agent", "a=a", "--bridge-agent", "b=b")
    with daemons(tmp_path, ("a", *names), ("b", *names)) as (a, b):
        first = link("a", "b", 1)
        submit(a, "sentient", first, channel="ops")
        messages(b, "sentient", 1)
        (sent,) = submit(b, "sentient", link("b", None, 2, parent=first["message_id"]))["sent"]
        assert (sent["channel"], sent["work_state"]) == ("ops", "completed")


def test_works_of_a_chain_that_runs_here_are_not_handed_to_our_agent(pair: tuple[Daemon, Daemon]) -> None:
    ops, worker = pair
    chain = {"name": "c", "start": "a", "max_steps": 2, "nodes": {"a": {"peer": "worker", "input": "for the run"}}}
    run_id = ops.post("/v1/chains/runs", chain=chain)["run_id"]
    (asked,) = messages(worker, "sacp", 1)
    submit(worker, "sacp", json.dumps(REPLY), work_id=asked["work_id"])
    wait_for(lambda: ops.get(f"/v1/chains/runs/{run_id}")["state"] == "completed", SHORT, "the run")
    own = submit(ops, "sacp", "for the agent", target="worker")["sent"][0]["work_id"]
    wait_for(lambda: len(worker.get("/v1/works")["works"]) == 2, SHORT, "the agent's own question")
    submit(worker, "sacp", json.dumps(REPLY), work_id=own)
    (answer,) = messages(ops, "sacp", 1)
    assert answer["work_id"] == own


def test_humaninloop_input_and_output_cross_unchanged(pair: tuple[Daemon, Daemon]) -> None:
    ops, worker = pair
    submit(ops, "humaninloop", INPUT, target="worker")
    (asked,) = messages(worker, "humaninloop", 1)
    assert asked["message"] == INPUT
    assert not asked["native"]
    submit(worker, "humaninloop", OUTPUT, work_id=asked["work_id"])
    (answer,) = messages(ops, "humaninloop", 1)
    assert answer["message"] == OUTPUT
    assert ops.state_of(asked["work_id"]) == "completed"


def test_agentos_question_and_answer_cross_unchanged_and_are_logged(pair: tuple[Daemon, Daemon]) -> None:
    ops, worker = pair
    question = query("asker", "helper")
    submit(ops, "agentos", question)
    (asked,) = messages(worker, "agentos", 1)
    assert asked["message"] == question
    evidence = {
        "sources": [{"type": "code", "location": "a.py", "confidence": 90}],
        "confidence": 90,
        "verification": [],
    }
    reply = query("helper", "asker", type="response", replyTo=question["id"], evidence=evidence)
    submit(worker, "agentos", reply)
    (answer,) = messages(ops, "agentos", 1)
    assert answer["message"] == reply
    rows = ops.get("/v1/bridge/agentos/log")["rows"]
    assert [(row["messageId"], row["direction"], row["status"]) for row in rows] == [
        (question["id"], "sent", "success"),
        (reply["id"], "received", "success"),
    ]
    assert len(rows[0]) == 10
    there = worker.get("/v1/bridge/agentos/log")["rows"]
    assert [(row["messageId"], row["direction"]) for row in there] == [
        (question["id"], "received"),
        (reply["id"], "sent"),
    ]


def test_a_question_without_an_answer_in_time_has_status_timeout(pair: tuple[Daemon, Daemon]) -> None:
    ops, _worker = pair
    question = query("asker", "helper", ttl=1)
    submit(ops, "agentos", question)

    def timed_out() -> bool:
        (row,) = (row for row in ops.get("/v1/bridge/agentos/log")["rows"] if row["messageId"] == question["id"])
        return bool(row["status"] == "timeout" and row["latencyMs"] == 1000)

    wait_for(timed_out, SHORT, "the time to run out")


def test_conversation_end_is_forwarded_back_and_to_memory_agent(tmp_path: Path) -> None:
    logs = tmp_path / "audit"
    flags = ("--sentient-memory-agent", "memory", "--sentient-log-root", str(logs), "--sentient-user", "desk")
    with daemons(
        tmp_path, ("objective", *flags), ("goal", *flags), ("final", *flags), ("memory", *flags), ("desk",)
    ) as (objective, goal, final, memory, desk):
        work_id = desk.post("/v1/works", to="objective", text="Plan my day")["work_id"]
        (asked,) = messages(objective, "sentient", 1)
        assert asked["native"]
        session = asked["message"]["metadata"]["session_id"]
        request = asked["message"]["metadata"]["request_id"]
        first = link("objective", "goal", 1, session=session, request=request)
        submit(objective, "sentient", first)
        (second_in,) = messages(goal, "sentient", 1)
        assert second_in["message"] == first
        second = link("goal", "final", 2, first["message_id"], session=session, request=request)
        submit(goal, "sentient", second)
        (third_in,) = messages(final, "sentient", 1)
        assert third_in["message"] == second
        third = link("final", None, 3, second["message_id"], session=session, request=request)
        submit(final, "sentient", third)
        wait_for(lambda: desk.state_of(work_id) == "completed", SHORT, "the end to travel back")
        result = desk.get(f"/v1/works/{work_id}")["work"]["result"]
        assert result["content"] == "words of final"
        assert goal.state_of(second_in["work_id"]) == "completed"
        (told,) = messages(memory, "sentient", 1)
        text = told["message"]["output"]["content"]
        for sent in (first, second, third):
            assert f"[MESSAGE_ID: {sent['message_id']}]" in text
        assert told["work_role"] == "target"
        ids = told["message"]["metadata"]
        assert (ids["session_id"], ids["request_id"]) == (session, request)

        day = datetime.now(UTC).strftime("%Y%m%d")
        file = logs / "system" / "logs" / f"{day}.log"
        wait_for(lambda: file.exists() and file.read_text().count("---\n") == 3, SHORT, "the log")
        ids = [line for line in file.read_text().splitlines() if line.startswith("[MESSAGE_ID")]
        assert ids == [f"[MESSAGE_ID: {sent['message_id']}]" for sent in (first, second, third)]
        # The memory agent's own end of the chain calls nobody.
        assert [m["kind"] for m in memory.get("/v1/messages?direction=out")["messages"] if m["kind"] == "say"] == []


def test_next_agents_refusal_fails_work_and_notifies_memory_agent(tmp_path: Path) -> None:
    flags = ("--sentient-memory-agent", "memory")
    with daemons(tmp_path, ("objective", *flags), ("goal",), ("memory",), ("desk",)) as (objective, goal, memory, desk):
        work_id = desk.post("/v1/works", to="objective", text="Plan my day")["work_id"]
        (asked,) = messages(objective, "sentient", 1)
        metadata = asked["message"]["metadata"]
        first = link("objective", "goal", 1, session=metadata["session_id"], request=metadata["request_id"])
        submit(objective, "sentient", first)
        (got,) = messages(goal, "sentient", 1)
        goal.post(f"/v1/works/{got['work_id']}/reject", reason="busy", message="no time")
        wait_for(lambda: desk.state_of(work_id) == "failed", SHORT, "the failure to travel back")
        assert "busy" in desk.get(f"/v1/works/{work_id}")["work"]["message"]
        (told,) = messages(memory, "sentient", 1)
        assert first["message_id"] in told["message"]["output"]["content"]


def largest_result(daemon: Daemon, work_id: str, limit: int) -> None:
    """Complete a work with as large a result as an envelope of `limit` bytes holds."""
    size = limit
    while True:
        try:
            daemon.post(f"/v1/works/{work_id}/complete", message="done", result={"words": "x" * size})
        except HttpError as error:
            (length,) = re.findall(r"ha(?:s|ve) (\d+) bytes", error.answer["message"])
            size -= int(length) - limit
        else:
            return


@pytest.mark.parametrize(
    ("limit", "message", "left"),
    [
        (1_048_576, "the result of the next work was too large to forward in full: done", True),
        (65_536, "the result of the next work was too large to forward in full", False),
    ],
    ids=["cut", "left out"],
)
async def test_a_result_too_large_to_forward_still_ends_the_assigned_work(
    tmp_path: Path, limit: int, message: str, left: bool
) -> None:
    async with NatsServer(config=f"max_payload: {limit}") as server:
        flags = ("--nats", server.url)
        starts = [("objective", *flags, "--sentient-memory-agent", "memory"), ("goal", *flags)]
        with daemons(tmp_path, *starts, ("final", *flags), ("memory", *flags)) as (objective, goal, final, memory):
            first = link("objective", "goal", 1)
            opened = next(sent for sent in submit(objective, "sentient", first)["sent"] if sent["kind"] == "say")
            messages(goal, "sentient", 1)
            submit(goal, "sentient", link("goal", "final", 2, first["message_id"]))
            (asked,) = messages(final, "sentient", 1)
            largest_result(final, asked["work_id"], limit)
            wait_for(lambda: objective.state_of(opened["work_id"]) == "completed", SHORT, "the end to travel back")
            work = objective.get(f"/v1/works/{opened['work_id']}")["work"]
            assert work["message"] == message
            if left:
                assert work["result"]["truncated"] == ["words"]
                assert len(work["result"]["words"]) > 40_000
            else:
                assert work.get("result") is None
            (told,) = messages(memory, "sentient", 1)
            assert first["metadata"]["session_id"] in told["message"]["output"]["content"]


def test_answers_to_two_peers_with_equal_message_ids_go_to_each(tmp_path: Path) -> None:
    names = ("--bridge-agent", "one=ops", "--bridge-agent", "two=desk", "--bridge-agent", "both=goal")
    with daemons(tmp_path, ("ops", *names), ("desk", *names), ("goal", *names)) as (ops, desk, goal):
        opened: dict[str, str] = {}
        for agent, daemon in (("one", ops), ("two", desk)):
            submit(daemon, "sentient", link(agent, "both", 1, message_id="msg-objectives-001"))
            opened[agent] = messages(goal, "sentient", len(opened) + 1)[-1]["work_id"]
        for agent, daemon in (("one", ops), ("two", desk)):
            answer = link("both", None, 2, "msg-objectives-001", input={"source": agent, "content": "objectives"})
            (sent,) = submit(goal, "sentient", answer)["sent"]
            assert (sent["to"], sent["work_id"]) == (daemon.name, opened[agent])
            wait_for(lambda: daemon.state_of(opened[agent]) == "completed", SHORT, "the answer")  # noqa: B023 - at once


def test_a_first_agent_with_own_ids_answers_the_only_delivered_request(tmp_path: Path) -> None:
    with daemons(tmp_path, ("objective",), ("goal",), ("desk",)) as (objective, goal, desk):
        first = desk.post("/v1/works", to="objective", text="Plan my day")["work_id"]
        messages(objective, "sentient", 1)
        passed_on = link("objective", "goal", 1, session="own-session", request="own-request")
        submit(objective, "sentient", passed_on)
        assert messages(goal, "sentient", 1)[0]["message"] == passed_on
        second = desk.post("/v1/works", to="objective", text="Plan my night")["work_id"]
        messages(objective, "sentient", 2)
        refusal = link("objective", None, 1, session="other-session", request="other-request")
        submit(objective, "sentient", refusal)  # the first work waits for its chain: only the second is in hand
        wait_for(lambda: desk.state_of(second) == "completed", SHORT, "the second request to be answered")
        assert desk.state_of(first) == "working"


def test_concurrent_and_post_restart_submits_send_a_message_once(pair: tuple[Daemon, Daemon]) -> None:
    ops, worker = pair
    question = query("asker", "helper")
    with concurrent.futures.ThreadPoolExecutor(8) as pool:
        answers = [done.result() for done in [pool.submit(submit, ops, "agentos", question) for _ in range(8)]]
    assert sorted(answer["repeated"] for answer in answers) == [False] + [True] * 7
    assert len({sent["id"] for answer in answers for sent in answer["sent"]}) == 1
    assert ops.stop() == 0
    ops.start()
    again = submit(ops, "agentos", question)
    assert (again["repeated"], again["sent"][0]["id"]) == (True, answers[0]["sent"][0]["id"])
    assert len(ops.get("/v1/messages?direction=out&kind=say")["messages"]) == 1
    assert len(messages(worker, "agentos", 1)) == 1
    assert len(worker.get("/v1/messages?direction=in&kind=say")["messages"]) == 1
    assert len(ops.get("/v1/bridge/agentos/log")["rows"]) == 1
