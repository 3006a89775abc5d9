"""`aghctl bridge` between two real daemons: lines in and out, a command for each work, logs."""

import asyncio
import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aghbus.store.engine import meta
from aghbus.store.engine.database import Store
from tests.support.daemons import Daemon, Home, ops_and_worker, wait_for

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="bridging to a command needs Linux")

WAIT = 30.0
RESPONSE = {"thought": "adding", "status": "success", "data": {"sum": 10}, "message": "It is ten."}
OUTPUT = {"success": True, "summary": "spec written", "artifacts": [], "recommendation": "proceed", "notes": ["n"]}
INPUT = {
    "context": {"feature_id": "005-auth", "workflow": "specify", "iteration": 1},
    "paths": {"feature_root": "specs/005-auth/"},
    "task": {"action": "write_spec", "params": {"depth": 2}},
}


class Bus:
    """`ops`, who asks, and `worker`, whose agent speaks a foreign format."""

    def __init__(self, home: Home, ops: Daemon, worker: Daemon) -> None:
        self.home, self.ops, self.worker = home, ops, worker

    def open(self, text: str) -> str:
        work_id: str = self.ops.post("/v1/works", to="worker", text=text)["work_id"]
        return work_id

    def end_of(self, work_id: str) -> dict[str, Any]:
        """The body of the trace that ended a work, as `ops` has it."""
        wait_for(lambda: self.ops.state_of(work_id) in ("completed", "failed", "canceled"), WAIT, "the work to end")
        messages = self.ops.get(f"/v1/messages?work={work_id}&direction=in&kind=trace")["messages"]
        body: dict[str, Any] = messages[-1]["envelope"]["body"]
        return body


@pytest.fixture
def bus(tmp_path: Path) -> Iterator[Bus]:
    home = Home(tmp_path)
    with ops_and_worker(home) as (ops, worker):
        yield Bus(home, ops, worker)


class Bridge:
    """One `aghctl bridge`; its lines and its words are collected as they come."""

    def __init__(self, home: Home, name: str, *words: str) -> None:
        self.process = subprocess.Popen(
            [sys.executable, "-m", "aghbus.cli", "--name", name, "bridge", *words],
            env=home.env,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self.lines: list[Any] = []
        self.words: list[str] = []
        self._readers = [
            threading.Thread(
                target=self._read, args=(self.process.stdout, lambda line: self.lines.append(json.loads(line)))
            ),
            threading.Thread(
                target=self._read, args=(self.process.stderr, lambda line: self.words.append(line.decode()))
            ),
        ]
        for reader in self._readers:
            reader.start()

    def _read(self, stream: Any, keep: Any) -> None:
        for line in stream:
            keep(line)

    def write(self, *values: Any) -> None:
        assert self.process.stdin is not None
        for value in values:
            self.process.stdin.write(value if isinstance(value, bytes) else json.dumps(value).encode() + b"\n")
        self.process.stdin.flush()

    def wait_lines(self, count: int) -> list[Any]:
        wait_for(lambda: len(self.lines) >= count, WAIT, f"{count} lines, have {self.lines} {self.words}")
        return self.lines

    def wait_words(self, text: str) -> None:
        wait_for(lambda: any(text in line for line in self.words), WAIT, f"{text!r} in {self.words}")

    def end(self, number: signal.Signals = signal.SIGTERM) -> int:
        """The exit code after a signal (or without one, when it has ended by itself)."""
        if self.process.poll() is None:
            self.process.send_signal(number)
        return self.wait()

    def wait(self) -> int:
        code = self.process.wait(WAIT)
        for reader in self._readers:
            reader.join()
        for stream in (self.process.stdin, self.process.stdout, self.process.stderr):
            assert stream is not None
            with contextlib.suppress(BrokenPipeError):
                stream.close()
        return code


@contextlib.contextmanager
def bridging(home: Home, name: str, *words: str) -> Iterator[Bridge]:
    bridge = Bridge(home, name, *words)
    try:
        yield bridge
    finally:
        if bridge.process.poll() is None:
            bridge.process.kill()
        bridge.wait()


def send(bus: Bus, name: str, *words: str, lines: list[Any]) -> subprocess.CompletedProcess[bytes]:
    stdin = b"\n".join(line if isinstance(line, bytes) else json.dumps(line).encode() for line in lines)
    return bus.home.ctl("--name", name, "bridge", *words, "--send-only", stdin=stdin)


def test_an_agent_of_sacp_gets_text_and_its_response_ends_the_work(bus: Bus) -> None:
    work_id = bus.open("add 5 and 5\nthen stop")
    with bridging(bus.home, "worker", "sacp") as agent:
        assert agent.wait_lines(1) == ["add 5 and 5\nthen stop"]
        wait_for(lambda: bus.ops.state_of(work_id) == "working", WAIT, "the work to be accepted")
        agent.write(RESPONSE)
        assert bus.end_of(work_id) == {"state": "completed", "message": "It is ten.", "result": {"sum": 10}}
        assert agent.end() == 0
        assert agent.words == []
    rows = bus.home.ctl_json("--name", "worker", "bridge", "sacp", "log")["rows"]
    assert [(row["status"], row["thought"], row["work_id"]) for row in rows] == [
        (None, None, work_id),
        ("success", "adding", work_id),
    ]
    titles, asked, answered = bus.home.ctl("--name", "worker", "bridge", "sacp", "log").stdout.decode().splitlines()
    assert titles.split() == ["TIME", "DIRECTION", "PEER", "STATUS", "STAGE", "WORK", "THOUGHT", "MESSAGE"]
    assert "add 5 and 5" in asked
    assert re.match(r"[\d: -]*\d\d:\d\d:\d\d  sent +worker +success ", answered)
    assert re.search(r" adding +It is ten\.$", answered)


def test_both_envelopes_of_adr_007_are_delivered_as_submitted(bus: Bus) -> None:
    with (
        bridging(bus.home, "ops", "humaninloop", "--target", "worker") as workflow,
        bridging(bus.home, "worker", "humaninloop") as agent,
    ):
        workflow.write(INPUT)
        assert agent.wait_lines(1) == [INPUT]
        agent.write(OUTPUT)
        assert workflow.wait_lines(1) == [OUTPUT]
        assert (agent.end(), workflow.end(signal.SIGINT)) == (0, 130)


def test_a_refused_line_is_reported_and_the_others_are_sent(bus: Bus) -> None:
    bad = {**INPUT, "task": {"action": "\x1b[2Jgo", "params": {}, "more\u202e": 1}, "context": {}}
    done = send(bus, "ops", "humaninloop", "--target", "worker", lines=[bad, b"\xff", b"{", INPUT])
    told = done.stderr.decode()
    assert done.returncode == 1
    assert {line.split(":")[0] for line in told.splitlines()} == {"line 1", "line 2", "line 3"}
    assert not {char for char in told if not char.isprintable()} - {"\n"}
    assert "line 4: sent to worker" in done.stdout.decode()
    again = send(bus, "ops", "humaninloop", "--target", "worker", "-o", "json", lines=[INPUT])
    (answer,) = map(json.loads, again.stdout.splitlines())
    assert (answer["repeated"], answer["message"]) == (True, INPUT)
    with bridging(bus.home, "ops", "humaninloop") as workflow:
        workflow.write(b"no json\n")
        workflow.wait_words("line 1: error")
        assert workflow.end() == 1


def test_lines_with_meta_have_target_and_work_and_the_sender(bus: Bus) -> None:
    line = {"message": INPUT, "target": "worker", "key": "k1"}
    done = send(
        bus, "ops", "humaninloop", "--meta", "-o", "jsonl", lines=[line, {**line, "key": "k2"}, {"target": "x"}]
    )
    first, second = map(json.loads, done.stdout.splitlines())
    assert first["sent"][0]["work_id"] != second["sent"][0]["work_id"]
    assert b"line 3" not in done.stdout
    assert json.loads(done.stderr)["line"] == 3
    with bridging(bus.home, "worker", "humaninloop", "--meta") as agent:
        one, two = agent.wait_lines(2)
        assert (one["message"], one["sender"], one["native"], one["format"]) == (INPUT, "ops", False, "humaninloop")
        agent.write({"text": json.dumps(OUTPUT), "work_id": two["work_id"]})
        assert bus.end_of(two["work_id"])["state"] == "completed"
        wait_for(lambda: bus.ops.state_of(one["work_id"]) == "working", WAIT, "the other to be accepted only")
        assert agent.end() == 0


def test_a_line_with_meta_whose_meaning_depends_on_the_reader_is_refused(bus: Bus) -> None:
    lines = [
        b'{"text": "x", "target": "worker", "target": "third"}',
        b'{"message": {"deep": [{"k": 1, "k": 2}]}, "target": "worker"}',
        b'{"message": {"n": NaN}, "target": "worker"}',
    ]
    done = send(bus, "ops", "sacp", "--meta", "-o", "jsonl", lines=lines)
    assert (done.returncode, done.stdout) == (1, b"")
    told = [json.loads(line) for line in done.stderr.splitlines()]
    assert [(one["line"], one["rule"]) for one in told] == [
        (1, "duplicate_key"),
        (2, "duplicate_key"),
        (3, "not_finite"),
    ]


def test_printed_messages_are_acked_and_restart_loses_none(bus: Bus) -> None:
    bus.open("first")
    with bridging(bus.home, "worker", "sacp") as agent:
        agent.wait_lines(1)
        wait_for(lambda: not bus.worker.get("/v1/inbox")["items"], WAIT, "the message to be acknowledged")
        bus.worker.kill()
        bus.worker.start()
        bus.open("second")
        assert agent.wait_lines(2) == ["first", "second"]
        wait_for(lambda: not bus.worker.get("/v1/inbox")["items"], WAIT, "the message to be acknowledged")
        assert agent.end() == 0
    bus.open("third")
    with bridging(bus.home, "worker", "sacp") as agent:
        assert agent.wait_lines(1) == ["third"]
        assert agent.end() == 0


def test_messages_around_a_gap_are_printed_before_the_ack(bus: Bus) -> None:
    works = [bus.open(text) for text in ("one", "removed", "three")]
    wait_for(lambda: all(bus.worker.state_of(work) for work in works), WAIT, "the works")
    first, second, third = bus.worker.get("/v1/messages?direction=in&kind=say")["messages"]
    assert bus.worker.stop() == 0

    async def prune() -> None:
        store = await Store.open(bus.worker.store_path)
        await store.write(lambda tx: tx.db.execute("DELETE FROM log WHERE seq = ?", (second["seq"],)).rowcount)
        await store.write(lambda tx: meta.put(tx.db, "pruned_through", second["seq"]))
        await store.close()

    asyncio.run(prune())
    bus.worker.start()
    with bridging(bus.home, "worker", "sacp", "--meta") as agent:
        assert [line["seq"] for line in agent.wait_lines(2)] == [first["seq"], third["seq"]]
        assert [line["message"] for line in agent.lines] == ["one", "three"]
        assert agent.end() == 0


def test_an_unreachable_daemon_ends_the_bridge(bus: Bus) -> None:
    with bridging(bus.home, "worker", "sacp", "--timeout", "5s") as agent:
        bus.open("first")
        agent.wait_lines(1)
        bus.worker.stop()
        assert agent.wait() == 3
        assert any("aghctl: " in line for line in agent.words)
    bus.worker.start()


AGENT = """
import json, os, sys
words = sys.stdin.read()
print("progress of no interest", file=sys.stderr, flush=True)
assert words == open(os.environ["AGH_INPUT"]).read()
"""
SACP_AGENT = AGENT + f"print('Sure!', '```json', {json.dumps(RESPONSE)!r}, '```', sep='\\n'); assert words == 'add\\n'"
HUMAN_AGENT = AGENT + f"assert json.loads(words)['task']['action'] == 'write_spec'; print({json.dumps(OUTPUT)!r})"
SLOPPY_AGENT = AGENT + "print(json.dumps({'success': 'yes', 'summary': '', 'artifacts': [], 'recommendation': 'go'}))"
LARGE_AGENT = (
    AGENT
    + "print(json.dumps({'success': True, 'summary': 's', 'artifacts': [], 'recommendation': 'proceed', 'notes': ['x' * 300_000]}))"
)


def once(bus: Bus, format: str, script: str) -> tuple[int, list[dict[str, Any]], bytes]:
    """Exit code, events and errors of one work done by a Python script."""
    words = ["bridge", format, "--once", "--grace", "1s", "-o", "jsonl", "--", sys.executable, "-c", script]
    done = bus.home.ctl("--name", "worker", *words)
    return done.returncode, [json.loads(line) for line in done.stdout.splitlines()], done.stderr


def test_a_command_gets_the_text_of_a_work_and_its_output_is_submitted(bus: Bus) -> None:
    work_id = bus.open("add")
    code, events, errors = once(bus, "sacp", SACP_AGENT)
    assert (code, errors) == (0, b"")
    assert [event["event"] for event in events][-3:] == ["finished", "problem", "reported"]
    assert "surrounding_text" in events[-2]["message"]  # a warning that refuses nothing is not silent
    assert bus.end_of(work_id) == {"state": "completed", "message": "It is ten.", "result": {"sum": 10}}
    assert bus.worker.get("/v1/inbox")["items"] == []
    journal = bus.home.root / "state" / "aghbus" / "clients" / "worker" / "bridge-sacp"
    assert [path.name for path in journal.iterdir()] == ["lock"]


@pytest.mark.parametrize("script", [HUMAN_AGENT, LARGE_AGENT], ids=["small", "large"])
def test_a_command_answers_an_input_envelope_with_an_output_envelope(bus: Bus, script: str) -> None:
    assert send(bus, "ops", "humaninloop", "--target", "worker", lines=[INPUT]).returncode == 0
    code, _, errors = once(bus, "humaninloop", script)
    assert (code, errors) == (0, b"")
    with bridging(bus.home, "ops", "humaninloop") as workflow:
        (output,) = workflow.wait_lines(1)
        assert output["recommendation"] == "proceed"
        assert output == OUTPUT or output["notes"] == ["x" * 300_000]
        assert workflow.end() == 0


def test_output_violating_the_format_fails_work_with_findings(bus: Bus) -> None:
    assert send(bus, "ops", "humaninloop", "--target", "worker", lines=[INPUT]).returncode == 0
    work_id = bus.ops.get("/v1/works")["works"][0]["work_id"]
    code, _, _ = once(bus, "humaninloop", SLOPPY_AGENT)
    body = bus.end_of(work_id)
    assert (code, body["state"]) == (1, "failed")
    assert body["message"].startswith("the output was refused: /success ")
    assert {"/success", "/recommendation"} <= {finding["path"] for finding in body["result"]["findings"]}
    assert "'yes'" in body["result"]["output"] or '"yes"' in body["result"]["output"]


def test_a_failed_command_fails_its_work_as_in_serve(bus: Bus) -> None:
    work_id = bus.open("add")
    code, _, _ = once(bus, "sacp", "import sys; print('half'); sys.exit('no model there')")
    body = bus.end_of(work_id)
    assert (code, body["state"], body["message"]) == (1, "failed", "no model there")
    assert (body["result"]["exit_code"], body["result"]["stdout"]) == (1, "half\n")


def test_the_message_log_has_the_ten_fields(bus: Bus) -> None:
    query = {
        "id": "msg-0b9e8f6e-6f8a-4c3b-9d2e-1a2b3c4d5e6f",
        "timestamp": "2026-01-27T14:30:52Z",
        "version": "1.0.0",
        "from": {"agentId": "ops", "instanceId": ""},
        "to": {"agentId": "worker", "instanceId": ""},
        "type": "query",
        "payload": {"content": {"q": 1}, "format": "json", "language": "en", "encoding": "utf-8"},
        "context": {"sessionId": "s", "requestId": "r", "locale": "en-US", "timezone": "UTC"},
        "evidence": {"sources": [], "confidence": 0, "citations": [], "provenance": []},
        "priority": "normal",
        "ttl": 3600,
        "retryCount": 0,
    }
    done = send(bus, "ops", "agentos", lines=[query])
    assert done.returncode == 0, done.stderr
    (row,) = bus.home.ctl_json("--name", "ops", "bridge", "agentos", "log")["rows"]
    assert len(row) == 10
    assert (row["messageId"], row["type"], row["evidenceCount"]) == (query["id"], "query", 0)
    assert "query" in bus.home.ctl("--name", "ops", "bridge", "agentos", "log").stdout.decode()


def test_an_answer_printed_before_a_crash_is_submitted_by_the_next_worker(bus: Bus) -> None:
    work_id = bus.open("add")
    waits = (
        AGENT
        + f"""
import pathlib, time
while not pathlib.Path("go").exists():
    time.sleep(0.01)
with open("runs", "a") as runs:
    runs.write("ran ")
print({json.dumps(RESPONSE)!r})
"""
    )
    command = ["--cwd", str(bus.home.root), "-o", "jsonl", "--", sys.executable, "-c", waits]
    with bridging(bus.home, "worker", "sacp", *command) as first:
        wait_for(lambda: any(line["event"] == "started" for line in first.lines), WAIT, "the command to start")
        bus.worker.kill()
        (bus.home.root / "go").touch()
        wait_for(lambda: any(line["event"] == "finished" for line in first.lines), WAIT, "the command to end")
        first.process.kill()
    bus.worker.start()
    with bridging(bus.home, "worker", "sacp", *command) as second:
        assert bus.end_of(work_id)["result"] == {"sum": 10}
        wait_for(lambda: any(line["event"] == "reported" for line in second.lines), WAIT, "the report")
        assert second.end() == 0
    assert (bus.home.root / "runs").read_text() == "ran "


def test_files_come_from_the_works_own_envelopes_despite_equal_ids(bus: Bus, tmp_path: Path) -> None:
    def output(path: str, content: str) -> dict[str, Any]:
        return {**OUTPUT, "artifacts": [{"path": path, "operation": "create", "content": content}]}

    root = tmp_path / "root"
    root.mkdir()
    with Daemon(bus.home, "third") as third:
        wait_for(lambda: third.knows("ops") and bus.ops.knows("third"), WAIT, "the third to be known")
        (opening,) = bus.ops.post("/v1/bridge/humaninloop", message=INPUT, target="worker")["sent"]
        work_id = opening["work_id"]
        wait_for(lambda: bus.worker.state_of(work_id), WAIT, "the work")
        answer = output("specs/005-auth/spec.md", "its own")
        (ended,) = bus.worker.post("/v1/bridge/humaninloop", message=answer, work_id=work_id)["sent"]
        wait_for(lambda: bus.ops.state_of(work_id) == "completed", WAIT, "the end")
        other_input = {**INPUT, "paths": {"feature_root": "elsewhere/"}}
        for message_id, message in (
            (ended["id"], output("specs/005-auth/spec.md", "another's")),
            (opening["id"], other_input),
        ):
            said = {"id": message_id, "kind": "say", "to": "ops", "thread_id": "thread_other", "body": {"text": "hi"}}
            third.post("/v1/messages", **said, ext={"humaninloop.message": message})
        same = "/v1/messages?peer=third&kind=say"
        wait_for(lambda: len(bus.ops.get(same)["messages"]) == 2, WAIT, "the same ids from the third")
        made = bus.home.ctl_json(
            "--name", "ops", "bridge", "humaninloop", "apply", "--work", work_id, "--root", str(root)
        )
    assert [file["path"] for file in made["files"]] == ["spec.md"]
    assert (root / "spec.md").read_text() == "its own"


def test_an_answer_to_a_canceled_work_is_sent_to_no_other_work(bus: Bus) -> None:
    first = bus.open("question one")
    with bridging(bus.home, "worker", "sacp") as agent:
        agent.wait_lines(1)
        bus.ops.post(f"/v1/works/{first}/cancel")
        wait_for(lambda: bus.worker.state_of(first) == "canceled", WAIT, "the first to be called off")
        agent.write(RESPONSE)
        agent.wait_words("work_closed")
        second = bus.open("question two")
        assert agent.wait_lines(3)[2] == "question two"  # after the news that the first was called off
        agent.write({**RESPONSE, "message": "of the second"})
        assert bus.end_of(second)["message"] == "of the second"
        assert agent.end() == 1


def test_with_two_works_printed_an_answer_that_names_none_is_refused(bus: Bus) -> None:
    first, second = bus.open("question one"), ""
    with bridging(bus.home, "worker", "sacp") as agent:
        agent.wait_lines(1)
        second = bus.open("question two")
        agent.wait_lines(2)
        bus.ops.post(f"/v1/works/{first}/cancel")
        wait_for(lambda: bus.worker.state_of(first) == "canceled", WAIT, "the first to be called off")
        agent.write(RESPONSE)  # for which of them?
        agent.wait_words("line 1: error (whole) ambiguous_work: 2 works are unanswered")
        wait_for(lambda: bus.worker.state_of(second) == "working", WAIT, "the second to be accepted only")
        agent.write({**RESPONSE, "message": "of the second"})
        assert bus.end_of(second)["message"] == "of the second"
        assert agent.end() == 1


def test_works_printed_by_an_earlier_process_count_too(bus: Bus) -> None:
    first = bus.open("question one")
    with bridging(bus.home, "worker", "sacp") as agent:
        agent.wait_lines(1)
        wait_for(lambda: bus.worker.state_of(first) == "working", WAIT, "the first to be acknowledged")
        agent.end()
    with bridging(bus.home, "worker", "sacp") as agent:  # the agent lives on behind a pipe of its own
        second = bus.open("question two")
        agent.wait_lines(1)
        agent.write(RESPONSE)
        agent.wait_words("line 1: error (whole) ambiguous_work: 2 works are unanswered")
        assert {bus.worker.state_of(work) for work in (first, second)} <= {"submitted", "working"}
        assert agent.end() == 1


def test_an_answer_to_the_targets_question_is_for_the_same_work(bus: Bus) -> None:
    with bridging(bus.home, "worker", "humaninloop") as agent:
        opened = bus.ops.post("/v1/bridge/humaninloop", message=INPUT, target="worker")["sent"][0]["work_id"]
        agent.wait_lines(1)
        agent.write({**OUTPUT, "success": False, "recommendation": "escalate"})
        wait_for(lambda: bus.ops.state_of(opened) == "needs_input", WAIT, "the question back")
        again = {**INPUT, "prior_context": ["this one"]}
        bus.ops.post("/v1/bridge/humaninloop", message=again, work_id=opened)
        agent.wait_lines(2)
        agent.write({**INPUT, "task": {"action": "ask", "params": {}}})  # opens work: it has no target
        agent.wait_words("no_target")
        agent.write(OUTPUT)
        assert bus.end_of(opened)["state"] == "completed"
        assert agent.end() == 1
