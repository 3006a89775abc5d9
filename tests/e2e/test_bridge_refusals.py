"""Agents of the four foreign formats on real daemons: what is refused, restarts, retention, the seeds' examples."""

import asyncio
import contextlib
import copy
import json
import signal
import uuid
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aghbus.store.engine import meta
from aghbus.store.engine.database import Store
from tests.support.bridge_daemons import INPUT, MAP, OUTPUT, SHORT, daemons, link, messages, query
from tests.support.bridging import submit
from tests.support.daemons import Daemon, Home, HttpError, wait_for
from tests.support.natsutil import NatsServer


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Daemon, Daemon]]:
    with daemons(tmp_path, ("ops", *MAP), ("worker", *MAP)) as (ops, worker):
        yield ops, worker


def test_a_refused_message_has_its_findings_and_is_in_quarantine(pair: tuple[Daemon, Daemon]) -> None:
    ops, _worker = pair
    broken = query("asker", "helper", type="\u202eshout\n[FORGED]")
    with pytest.raises(HttpError) as caught:
        submit(ops, "agentos", broken)
    assert caught.value.status == 422
    assert caught.value.answer["code"] == "message_refused"
    assert "/type" in {found["path"] for found in caught.value.answer["findings"] if found["severity"] == "error"}
    (kept,) = ops.get("/v1/quarantine")["quarantined"]
    assert (kept["subject"], kept["reason"]) == ("bridge/agentos", "message_refused")
    assert kept["size"] == len(json.dumps(broken, ensure_ascii=False).encode())
    assert ops.get("/v1/messages?direction=out&kind=say")["messages"] == []
    assert ops.get("/v1/status")["counters"]["bridge.refused.agentos"] == 1


@pytest.mark.parametrize(
    "text",
    [
        '{"a": 1, "a": 2}',
        '{"a": NaN}',
        '{"a": 9007199254740993}',
        "[" * 5000,
        "",
        "null",
        '"{{node}}"',
        '{"a": "\\ud800"}',
    ],
)
def test_hostile_text_is_refused_and_harms_nothing(pair: tuple[Daemon, Daemon], text: str) -> None:
    ops, worker = pair
    for name in ("sentient", "humaninloop", "agentos"):
        with pytest.raises(HttpError) as caught:
            ops.post(f"/v1/bridge/{name}", text=text)
        assert caught.value.status == 422, caught.value.answer
    answer = ops.post("/v1/bridge/sacp", text=text or " ", target="worker")
    assert len(answer["sent"]) == 1
    assert messages(worker, "sacp", 1)[0]["envelope_id"] == answer["sent"][0]["id"]


def test_positions_survive_a_restart_and_a_second_reader_can_go_back(pair: tuple[Daemon, Daemon]) -> None:
    ops, worker = pair
    for number in range(4):
        submit(ops, "agentos", query("asker", "helper", type="event", payload={"content": number, "format": "json"}))
    four = messages(worker, "agentos", 4)
    assert [item["message"]["payload"]["content"] for item in four] == [0, 1, 2, 3]
    worker.post("/v1/bridge/agentos/ack", seq=four[1]["seq"])
    states = worker.get("/v1/inbox")["counts"]
    assert states["ready"] == 2
    worker.kill()
    worker.start()
    assert [item["message"] for item in messages(worker, "agentos", 2)] == [item["message"] for item in four[2:]]
    assert [item["seq"] for item in messages(worker, "agentos", 4, "?since=0")] == [item["seq"] for item in four]
    # An older acknowledgement moves nothing back, one of the future is refused.
    assert worker.post("/v1/bridge/agentos/ack", seq=1)["seq"] == four[1]["seq"]
    with pytest.raises(HttpError) as caught:
        worker.post("/v1/bridge/agentos/ack", seq=10**9)
    assert caught.value.status == 400
    one = worker.get(f"/v1/bridge/agentos/messages/{four[3]['seq']}")
    assert one["message"] == four[3]["message"]
    with pytest.raises(HttpError) as caught:
        worker.get("/v1/bridge/agentos/messages/999999")
    assert caught.value.status == 404


def test_message_too_large_for_an_envelope_uses_the_artifact_store(pair: tuple[Daemon, Daemon]) -> None:
    ops, worker = pair
    large = query("asker", "helper", type="event")
    large["payload"] = {"content": {"text": "x" * 1_500_000}, "format": "json"}
    sent = submit(ops, "agentos", large)["sent"]
    (got,) = messages(worker, "agentos", 1)
    assert got["message"] == large
    assert not got["native"]
    envelope = ops.get(f"/v1/messages/{sent[0]['id']}")["envelope"]
    assert envelope["ext"]["agentos.message_ref"]["uri"].startswith("agh://artifacts/")
    assert "agentos.message" not in envelope["ext"]
    assert submit(ops, "agentos", large)["repeated"]


def test_a_work_that_has_ended_takes_no_report(pair: tuple[Daemon, Daemon]) -> None:
    ops, worker = pair
    submit(ops, "humaninloop", INPUT, target="worker")
    (asked,) = messages(worker, "humaninloop", 1)
    ops.post(f"/v1/works/{asked['work_id']}/cancel")
    wait_for(lambda: worker.state_of(asked["work_id"]) == "canceled", SHORT, "the cancelation")
    with pytest.raises(HttpError) as caught:
        submit(worker, "humaninloop", OUTPUT, work_id=asked["work_id"])
    assert "work_closed" in {found["rule"] for found in caught.value.answer["findings"]}
    assert worker.get("/v1/messages?direction=out&kind=trace")["messages"] == []


def test_names_of_agents_map_to_peers_by_configuration(tmp_path: Path) -> None:
    agents = ("--bridge-agent", "com.acme.asker=ops", "--bridge-agent", "com.acme.helper=worker")
    with daemons(tmp_path, ("ops", *agents), ("worker", *agents)) as (ops, worker):
        question = query("com.acme.asker", "com.acme.helper")
        submit(ops, "agentos", question)
        (asked,) = messages(worker, "agentos", 1)
        assert asked["message"] == question
        assert asked["sender"] == "ops"
        unknown = copy.deepcopy(question)
        unknown["id"] = f"msg-{uuid.uuid4()}"
        unknown["to"]["agentId"] = "com.acme.nobody"
        with pytest.raises(HttpError) as caught:
            submit(ops, "agentos", unknown)
        assert "agent_map" in {found["rule"] for found in caught.value.answer["findings"]}


def test_terminal_state_reached_in_downtime_is_forwarded_on_start(tmp_path: Path) -> None:
    with daemons(tmp_path, ("objective",), ("goal",), ("desk",)) as (objective, goal, desk):
        work_id = desk.post("/v1/works", to="objective", text="Plan my day")["work_id"]
        (asked,) = messages(objective, "sentient", 1)
        metadata = asked["message"]["metadata"]
        first = link("objective", "goal", 1, session=metadata["session_id"], request=metadata["request_id"])
        submit(objective, "sentient", first)
        (got,) = messages(goal, "sentient", 1)
        objective.kill()
        last = link("goal", None, 2, first["message_id"], code="partial")
        last["metadata"].update(session_id="wrong", request_id="wrong")
        answer = submit(goal, "sentient", last)
        # Inherited from the parent before anything else is looked at.
        assert answer["message"]["metadata"]["session_id"] == metadata["session_id"]
        assert goal.state_of(got["work_id"]) == "completed"
        objective.start()
        wait_for(lambda: desk.state_of(work_id) == "completed", SHORT, "the end to travel back")
        assert desk.get(f"/v1/works/{work_id}")["work"]["result"]["partial"] is True


def test_the_audit_log_has_each_entry_once_after_a_crash_in_between(tmp_path: Path) -> None:
    home = Home(tmp_path)
    flags = ("--sentient-log-root", str(tmp_path / "audit"), "--sentient-user", "desk")
    ops = Daemon(home, "ops", *flags, env={"AGHD_FAILPOINT": "bridge.appended:2"})
    ops.start()
    process = ops.process
    assert process is not None
    sent = [link("ops", None, 1, session=f"session-{number}") for number in range(2)]
    submit(ops, "sentient", sent[0])
    folder = tmp_path / "audit" / "system" / "logs"
    wait_for(lambda: any(file.stat().st_size for file in folder.glob("*.log")), SHORT, "the first entry")
    with contextlib.suppress(OSError, HttpError):  # the daemon may die before it has answered
        submit(ops, "sentient", sent[1])
    wait_for(lambda: process.poll() is not None, SHORT, "the crash")
    ops.env.pop("AGHD_FAILPOINT")
    with ops:
        third = link("ops", None, 1, session="session-2")
        submit(ops, "sentient", third)
        wanted = [f"[MESSAGE_ID: {message['message_id']}]" for message in (*sent, third)]

        def ids() -> list[str]:
            text = "".join(file.read_text() for file in sorted(folder.glob("*.log")))
            return [line for line in text.splitlines() if line.startswith("[MESSAGE_ID")]

        wait_for(lambda: len(ids()) >= 3, SHORT, "the third entry")
        assert ids() == wanted


def test_message_over_envelope_limit_fails_without_artifact_store(tmp_path: Path) -> None:
    async def run() -> None:
        async with NatsServer() as broker:
            await asyncio.to_thread(_too_large, tmp_path, broker.url)

    asyncio.run(run())


def _too_large(root: Path, url: str) -> None:
    with daemons(root, ("ops", *MAP, "--nats", url), ("worker", *MAP, "--nats", url)) as (ops, _worker):
        large = query("asker", "helper", type="event")
        large["payload"]["content"] = "x" * 1_200_000
        with pytest.raises(HttpError) as caught:
            submit(ops, "agentos", large)
        assert (caught.value.status, caught.value.answer["code"]) == (413, "too_large")
        assert "JetStream" in caught.value.answer["hint"]
        assert ops.get("/v1/messages?direction=out&kind=say")["messages"] == []
        with pytest.raises(HttpError) as caught:
            submit(ops, "agentos", {"text": "x" * 5_000_000})
        assert caught.value.answer["code"] == "too_large"


def test_names_are_resolved_among_present_peers_only_when_enabled(tmp_path: Path) -> None:
    with daemons(
        tmp_path,
        ("ops", "--bridge-lookup", "both"),
        ("goal", "--display-name", "Goal Agent", "--capability", "goals:split"),
        ("twin", "--capability", "goals:split"),
    ) as (ops, goal, twin):
        submit(ops, "sentient", link("ops", "Goal Agent", 1))
        assert messages(goal, "sentient", 1)[0]["sender"] == "ops"
        with pytest.raises(HttpError) as caught:
            submit(ops, "sentient", link("ops", "goals:split", 1, session="other"))
        (found,) = (item for item in caught.value.answer["findings"] if item["rule"] == "agent_map")
        assert "2 peers" in found["message"]
        with pytest.raises(HttpError):
            submit(ops, "sentient", link("ops", "goal agent", 1, session="third"))  # nothing is lower-cased
        with pytest.raises(HttpError):
            submit(goal, "sentient", link("goal", "Goal Agent", 1, session="fourth"))  # off by default
        assert twin.get("/v1/messages?direction=in&kind=say")["messages"] == []


def test_agents_get_only_messages_for_them(tmp_path: Path) -> None:
    with daemons(tmp_path, ("ops", *MAP), ("worker", *MAP, "--observe"), ("third",)) as (ops, worker, third):
        third.post("/v1/messages", kind="say", body={"text": "private"}, to="ops", direct=True)
        third.post("/v1/messages", kind="say", body={"text": "to ops"}, to="ops", thread_id="thread_open")
        third.post("/v1/messages", kind="say", body={"text": "to all"}, thread_id="thread_open")
        third.post("/v1/messages", kind="say", body={"text": "to you"}, to="worker", direct=True)
        got = messages(worker, "sacp", 2)
        assert [item["message"] for item in got] == ["to all", "to you"]
        assert all(item["native"] for item in got)
        assert [item["message"] for item in messages(ops, "sacp", 3)] == ["private", "to ops", "to all"]


def test_an_inconsistent_carried_message_counts_as_native(pair: tuple[Daemon, Daemon]) -> None:
    ops, worker = pair
    forged = query("helper", "helper", type="event")
    ops.post(
        "/v1/messages",
        kind="say",
        body={"text": "what I really say"},
        to="worker",
        thread_id="thread_open",
        ext={
            "agentos.message": forged,
            "agentos.message_ref": {"uri": "agh://artifacts/a/../b", "sha256": "", "size": 5},
        },
    )
    (got,) = messages(worker, "agentos", 1)
    assert got["native"]
    assert got["message"] != forged
    assert "what I really say" in json.dumps(got["message"])
    assert {"message_ref", "carried_message"} <= {found["rule"] for found in got["findings"]}
    assert ops.get("/v1/status")["counters"].get("internal_errors") is None


def test_messages_removed_by_retention_are_a_gap_in_the_stream(pair: tuple[Daemon, Daemon]) -> None:
    ops, worker = pair
    for text in ("one", "two"):
        ops.post("/v1/messages", kind="say", body={"text": text}, to="worker", thread_id="thread_open")
    first, second = messages(worker, "sacp", 2)
    assert worker.stop() == 0

    async def prune() -> None:
        store = await Store.open(worker.store_path)
        await store.write(lambda tx: tx.db.execute("DELETE FROM log WHERE seq = ?", (first["seq"],)).rowcount)
        await store.write(lambda tx: meta.put(tx.db, "pruned_through", first["seq"]))
        await store.close()

    asyncio.run(prune())
    worker.start()
    gap, left = messages(worker, "sacp", 2, "?since=0")
    assert (gap["type"], gap["seq"], gap["pruned_from"]) == ("gap", first["seq"], 1)
    assert left["message"] == second["message"] == "two"


def test_the_agent_map_and_the_files_are_read_again_at_a_signal(tmp_path: Path) -> None:
    home = Home(tmp_path)
    config = tmp_path / "ops.toml"
    config.write_text("")
    with Daemon(home, "ops", "--config", str(config)) as ops, Daemon(home, "worker", *MAP) as worker:
        wait_for(lambda: ops.knows("worker") and worker.knows("ops"), SHORT, "presence")
        question = query("asker", "helper")
        with pytest.raises(HttpError):
            submit(ops, "agentos", question)
        config.write_text('[bridge]\nagents = ["asker=ops", "helper=worker"]\n[agentos]\nstrict = true\n')
        assert ops.process is not None
        ops.process.send_signal(signal.SIGHUP)

        def taken() -> bool:
            with contextlib.suppress(HttpError):
                return bool(submit(ops, "agentos", question)["sent"])
            return False

        wait_for(taken, SHORT, "the new map")
        old = query("asker", "helper", id=f"msg-{uuid.uuid1()}")
        with pytest.raises(HttpError) as caught:  # strict now
            submit(ops, "agentos", old)
        assert "uuid_version" in {found["rule"] for found in caught.value.answer["findings"]}
        # Bad files leave everything as it is.
        config.write_text(config.read_text() + f'manifest = "{tmp_path}/none"\n')
        ops.process.send_signal(signal.SIGHUP)
        wait_for(lambda: "not reloaded" in ops.log.read_text(), SHORT, "the complaint")
        assert submit(ops, "agentos", question)["repeated"]


def examples(name: str) -> list[Any]:
    """The real JSON examples of a seed, in its order."""
    lines = (Path(__file__).parent.parent / "vectors" / "seed_examples.jsonl").read_text().splitlines()
    return [row["value"] for row in map(json.loads, lines) if row["format"] == name]


def rules(answer: Any) -> set[str]:
    assert {found["severity"] for found in answer["findings"]} <= {"warning"}
    return {found["rule"] for found in answer["findings"]}


def test_seed_examples_of_sentient_cross_with_expected_findings(tmp_path: Path) -> None:
    flags = [
        flag
        for entry in ("objective_agent=objective", "goal_agent=goal", "planning_agent=planning", "user=planning")
        for flag in ("--bridge-agent", entry)
    ]
    first, second, third = examples("sentient")
    with daemons(tmp_path, ("objective", *flags), ("goal", *flags), ("planning", *flags)) as (
        objective,
        goal,
        planning,
    ):
        assert rules(submit(objective, "sentient", first)) == {"clock_skew"}
        (got,) = messages(goal, "sentient", 1)
        assert (got["message"], got["native"]) == (first, False)
        assert rules(submit(goal, "sentient", second)) == {"clock_skew"}
        assert rules(submit(objective, "sentient", third)) == {"clock_skew"}
        two = {item["message"]["message_id"]: item["message"] for item in messages(planning, "sentient", 2)}
        assert two == {second["message_id"]: second, third["message_id"]: third}


def test_seed_examples_of_agentos_cross_with_expected_findings(tmp_path: Path) -> None:
    senders = ("one-brain=brain", "admin-monitor=brain")
    others = ("macro-analyst=other", "data-connector-wb=other", "gap-ticket-creator=other")
    flags = [flag for entry in senders + others for flag in ("--bridge-agent", entry)]
    question, *rest = examples("agentos")
    with daemons(tmp_path, ("brain", *flags), ("other", *flags)) as (brain, other):
        assert rules(submit(brain, "agentos", question)) == {"uuid_version", "clock_skew"}
        (got,) = messages(other, "agentos", 1)
        assert (got["message"], got["native"]) == (question, False)
        for message in rest:
            assert rules(submit(other, "agentos", message)) == {"uuid_version", "clock_skew"}
        assert [item["message"] for item in messages(brain, "agentos", 3)] == rest


def test_seed_examples_of_humaninloop_and_sacp_cross_as_expected(
    pair: tuple[Daemon, Daemon],
) -> None:
    ops, worker = pair
    given, made = examples("humaninloop")
    assert rules(submit(ops, "humaninloop", given, target="worker")) == set()
    (asked,) = messages(worker, "humaninloop", 1)
    assert asked["message"] == given
    assert rules(submit(worker, "humaninloop", made)) == {"feature_root_stripped"}
    (answer,) = messages(ops, "humaninloop", 1)
    assert answer["message"] == made
    ops.post("/v1/bridge/sacp/ack", seq=answer["seq"])
    worker.post("/v1/bridge/sacp/ack", seq=asked["seq"])
    for response in examples("sacp"):
        submit(ops, "sacp", f"Work on {response['message']}", target="worker")
        (asked,) = messages(worker, "sacp", 1)
        assert rules(submit(worker, "sacp", json.dumps(response), work_id=asked["work_id"])) == set()
        (answer,) = messages(ops, "sacp", 1)
        assert answer["message"] == response
        ops.post("/v1/bridge/sacp/ack", seq=answer["seq"])
        worker.post("/v1/bridge/sacp/ack", seq=asked["seq"])


@pytest.mark.parametrize("point", ["send.decided", "send.committed"])
def test_a_submission_interrupted_by_a_crash_is_sent_once(home: Home, point: str) -> None:
    with Daemon(home, "worker", *MAP) as worker:
        ops = Daemon(home, "ops", *MAP, env={"AGHD_FAILPOINT": point})
        ops.start()
        question = query("asker", "helper")
        with pytest.raises(OSError):  # the connection ends, in one way or another
            submit(ops, "agentos", question)
        assert ops.process is not None
        ops.process.wait(SHORT)
        ops.env.pop("AGHD_FAILPOINT")
        with ops:
            assert submit(ops, "agentos", question)["repeated"] is (point == "send.committed")
            assert [item["message"] for item in messages(worker, "agentos", 1)] == [question]
            assert len(worker.get("/v1/messages?direction=in&kind=say")["messages"]) == 1
            assert len(ops.get("/v1/bridge/agentos/log")["rows"]) == 1
