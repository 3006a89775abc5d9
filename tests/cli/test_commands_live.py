"""Commands against real daemons on a real embedded broker."""

import contextlib
import json
import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from datetime import datetime
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemons import Daemon, Home, ops_and_worker, wait_for
from tests.support.leftovers import processes_with

Bus = tuple[Home, Daemon, Daemon]


@pytest.fixture(scope="module")
def bus(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    """A home with `ops` and `worker`, which have discovered each other; each test opens its own works."""
    home = Home(tmp_path_factory.mktemp("bus"))
    once = ("--retry-first", "30s")  # a retry after a stall would be an event of its own
    with Daemon(home, "worker", *once, "--capability", "test.run") as worker, Daemon(home, "ops", *once) as ops:
        wait_for(lambda: ops.knows("worker") and worker.knows("ops"), 20, "the two to know each other")
        yield home, ops, worker


def opened(home: Home, *args: str) -> str:
    sent = home.ctl_json("--name", "ops", "work", "open", "--to", "worker", "--text", "do it", *args)
    work_id: str = sent["work_id"]
    home.ctl_json("--name", "worker", "inbox", "next", "--wait", "30s", "--ack", "--work", work_id)
    return work_id


@contextlib.contextmanager
def streaming(home: Home, *args: str) -> Iterator[subprocess.Popen[bytes]]:
    """A command that streams, with its output on a pipe; killed at the end of the test."""
    command = [sys.executable, "-m", "aghbus.cli", *args]
    with subprocess.Popen(command, env=home.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as process:
        try:
            yield process
        finally:
            process.kill()


def next_event(process: subprocess.Popen[bytes]) -> dict[str, Any]:
    assert process.stdout is not None
    event: dict[str, Any] = json.loads(process.stdout.readline())
    return event


def test_work_open_prints_the_id_alone(bus: Bus) -> None:
    home, _, _ = bus
    done = home.ctl("--name", "ops", "work", "open", "--to", "worker", "--text", "x", "--direct")
    work_id = done.stdout.decode().removesuffix("\n")
    assert home.ctl_json("--name", "ops", "work", "show", work_id)["work"]["surface"] == "direct"
    home.ctl_json("--name", "worker", "inbox", "next", "--wait", "30s", "--ack", "--work", work_id)


def test_the_same_id_is_sent_once(bus: Bus) -> None:
    home, _, _ = bus
    send = ["--name", "ops", "say", "once", "--to", "worker", "--id", "msg_once"]
    first, second = home.ctl_json(*send), home.ctl_json(*send)
    assert (first["id"], first["seq"]) == (second["id"], second["seq"]) == ("msg_once", first["seq"])
    assert home.ctl_json("--name", "ops", "messages", "show", "msg_once")["envelope"]["body"] == {"text": "once"}


@pytest.mark.parametrize(
    ("ends", "code"),
    [(["complete", "--result", '{"n":1}'], 0), (["fail"], 1), (["cancel"], 7), (["reject", "--reason", "busy"], 7)],
)
def test_watch_ends_with_the_work(bus: Bus, ends: list[str], code: int) -> None:
    home, _, _ = bus
    work_id = opened(home)
    with streaming(home, "--name", "ops", "work", "watch", work_id, "-o", "jsonl") as watcher:
        assert next_event(watcher)["work"]["after"] == "submitted"
        if ends[0] != "reject":
            home.ctl_json("--name", "worker", "work", "accept", work_id)
            assert next_event(watcher)["message"]["envelope"]["body"]["status"] == "accepted"
        home.ctl_json("--name", "worker", "work", ends[0], work_id, *ends[1:])
        rest, errors = watcher.communicate(timeout=30)
    assert len(rest.splitlines()) == 1
    assert watcher.returncode == code, errors
    again = home.ctl("--name", "ops", "work", "watch", work_id, "-o", "jsonl")
    assert again.returncode == code
    assert json.loads(again.stdout.splitlines()[-1]) == json.loads(rest)


def test_works_are_listed_by_peer_text_and_time(bus: Bus) -> None:
    home, ops, _ = bus
    listed = ["--name", "ops", "work", "list"]
    old = ops.post("/v1/works", to="nobody", text="find me: THIS")["work_id"]

    def found(*options: str) -> list[str]:
        return [work["work_id"] for work in home.ctl_json(*listed, *options)["works"]]

    assert found("--text", "me: this") == found("--peer", "nobody", "--since", "1h", "--text", "find") == [old]
    assert found("--peer", "worker", "--text", "me: this") == found("--text", "me: this", "--since", "0s") == []
    after = int(time.time() * 1000) + 1
    wait_for(lambda: time.time() * 1000 > after, 10, "the clock to pass")
    new = ops.post("/v1/works", to="nobody", text="find me too")["work_id"]
    started = datetime.fromtimestamp(after / 1000).isoformat()
    assert found("--text", "find me", "--since", started) == [new]


def test_refusals_of_the_daemon_keep_their_code(bus: Bus) -> None:
    home, _, _ = bus
    done = home.ctl("--name", "ops", "work", "show", "work_nowhere", "-o", "json")
    assert done.returncode == 4
    assert json.loads(done.stderr)["code"] == "not_found"
    work_id = opened(home)
    home.ctl_json("--name", "worker", "work", "fail", work_id)
    closed = home.ctl("--name", "worker", "work", "complete", work_id, "-o", "json")
    assert (closed.returncode, json.loads(closed.stderr)["code"]) == (4, "work_closed")


def test_an_empty_inbox_exits_1(bus: Bus) -> None:
    home, _, _ = bus
    done = home.ctl("--name", "ops", "inbox", "next", "--work", "work_nowhere", "-o", "json")
    assert done.returncode == 1
    assert json.loads(done.stdout) == {"v": 1, "item": None}
    assert json.loads(done.stderr)["code"] == "empty"


def test_a_leased_message_can_be_returned_and_acknowledged(bus: Bus) -> None:
    home, _, _ = bus
    work_id = home.ctl_json("--name", "ops", "work", "open", "--to", "worker", "--text", "x")["work_id"]
    take = ["--name", "worker", "inbox", "next", "--work", work_id]
    item = home.ctl_json(*take, "--wait", "30s")["item"]
    assert home.ctl(*take).returncode == 1
    nacked = home.ctl_json("--name", "worker", "inbox", "nack", str(item["seq"]), "--delay", "0", "--error", "again")
    assert (nacked["state"], nacked["last_error"]) == ("ready", "again")
    second = home.ctl_json(*take, "--wait", "30s")["item"]
    assert (second["seq"], second["attempts"]) == (item["seq"], 2)
    ack = ["--name", "worker", "inbox", "ack", str(item["seq"]), "--lease"]
    assert home.ctl(*ack, item["lease"]).returncode == 4
    assert home.ctl_json(*ack, second["lease"])["state"] == "acked"


def test_next_steps_reach_the_same_daemon(bus: Bus) -> None:
    home, _, _ = bus
    done = home.ctl("--name", "ops", "work", "open", "--to", "worker", "--text", "next steps")
    work_id = done.stdout.decode().strip()
    assert f"aghctl --name ops work watch {work_id}" in done.stderr.decode()
    took = home.ctl("--name", "worker", "inbox", "next", "--wait", "30s", "--work", work_id)
    steps = [line.removeprefix("next: aghctl ") for line in took.stderr.decode().splitlines()]
    assert steps[0] == f"--name worker work accept {work_id}"
    accepted = home.ctl(*steps[0].split())
    assert accepted.returncode == 0
    assert f"aghctl --name worker work complete {work_id}" in accepted.stderr.decode()
    assert home.ctl(*steps[1].split()).returncode == 0


def test_own_undelivered_message_is_not_shown_as_work(bus: Bus) -> None:
    home, _, _ = bus
    opened = home.ctl_json(
        "--name", "ops", "work", "open", "--to", "nobody.there", "--text", "anybody?", "--expires-in", "1s"
    )
    mine = ["--work", opened["work_id"]]
    wait_for(
        lambda: home.ctl_json("--name", "ops", "work", "show", opened["work_id"])["work"]["state"] == "canceled",
        30,
        "the end",
    )
    listed = home.ctl("--name", "ops", "inbox", "list").stdout.decode()
    assert "NOT DELIVERED (expired: no answer before it expired): say “anybody?”" in listed
    took = home.ctl("--name", "ops", "inbox", "next", "--wait", "10s", *mine)
    assert "not delivered  expired: no answer before it expired" in took.stdout.decode()
    assert "nobody.there" in took.stdout.decode()
    assert "work accept" not in took.stderr.decode()


def test_a_message_that_is_ready_immediately_has_no_due_time(bus: Bus) -> None:
    home, _, _ = bus
    work_id = home.ctl_json("--name", "ops", "work", "open", "--to", "worker", "--text", "twice")["work_id"]
    item = home.ctl_json("--name", "worker", "inbox", "next", "--wait", "30s", "--ack", "--work", work_id)["item"]
    requeued = home.ctl("--name", "worker", "inbox", "requeue", str(item["seq"])).stdout.decode()
    assert requeued.endswith(" is ready\n")
    home.ctl_json("--name", "worker", "inbox", "next", "--wait", "30s", "--work", work_id)
    later = home.ctl("--name", "worker", "inbox", "nack", str(item["seq"]), "--delay", "5m").stdout.decode()
    assert " is ready, again at " in later
    assert home.ctl("--name", "worker", "inbox", "ack", str(item["seq"])).returncode == 0


def test_status_shows_no_subjects_in_the_human_form(bus: Bus) -> None:
    home, _, _ = bus
    (queues,) = [
        line for line in home.ctl("--name", "ops", "status").stdout.decode().splitlines() if line.startswith("queues")
    ]
    assert queues.split() == ["queues", "receive", "0"]


def test_a_list_of_runs_shows_whether_any_run_exists(bus: Bus) -> None:
    home, _, _ = bus
    assert home.ctl("--name", "ops", "chain", "list").stderr == b"no run yet\n"
    assert home.ctl("--name", "ops", "chain", "list", "--state", "failed").stderr == b"no such run\n"


def test_a_bound_and_the_value_that_exceeds_it_are_whole_numbers(bus: Bus) -> None:
    home, _, _ = bus
    refused = home.ctl("--name", "ops", "say", "x", "--to", "worker", "--expires-in", "30d")
    assert b"must be 1 to 604800 seconds" in refused.stderr


def test_hostile_text_reaches_no_terminal(bus: Bus) -> None:
    home, _, _ = bus
    hostile = "\x1b[2J\u202eoops\nforged line\x07"
    work_id = home.ctl_json("--name", "ops", "work", "open", "--to", "worker", "--text", hostile)["work_id"]
    shown = [
        home.ctl("--name", "worker", "inbox", "next", "--wait", "30s", "--work", work_id),
        home.ctl("--name", "worker", "inbox", "list"),
        home.ctl("--name", "worker", "work", "show", work_id),
        home.ctl("--name", "worker", "work", "list"),
        home.ctl("--name", "worker", "messages", "list"),
    ]
    for done in shown:
        assert done.returncode == 0
        text = (done.stdout + done.stderr).decode()
        assert "oops" in text
        assert not {"\x1b", "\u202e", "\x07"} & set(text)
        assert not any(line.startswith("forged") for line in text.splitlines())


@pytest.mark.parametrize(
    "args",
    [
        ["status"],
        ["peers", "--all"],
        ["whois"],
        ["work", "list", "--state", "failed", "--limit", "5"],
        ["inbox", "list", "--state", "acked"],
        ["messages", "list", "--kind", "say", "--direction", "out"],
        ["threads", "--limit", "3"],
        ["directs"],
        ["capability", "list"],
        ["quarantine"],
        ["doctor"],
        ["version"],
    ],
)
def test_every_reading_command_has_all_forms(bus: Bus, args: list[str]) -> None:
    home, _, _ = bus
    assert home.ctl("--name", "ops", *args).returncode == 0
    assert isinstance(home.ctl_json("--name", "ops", *args), dict)
    lines = home.ctl("--name", "ops", *args, "-o", "jsonl")
    assert all(json.loads(line) for line in lines.stdout.splitlines())


def next_step(stream: subprocess.Popen[bytes]) -> dict[str, Any]:
    """The next event but a question of ops whether the store of worker, which is as new as the work, knows it."""
    event = next_event(stream)
    return next_step(stream) if event["message"]["envelope"]["body"].get("status") == "duplicate" else event


def test_trace_stream_has_no_gaps_or_duplicates_after_daemon_kill(home: Home) -> None:
    with ops_and_worker(home) as (_ops, worker):
        work_id = opened(home)
        home.ctl_json("--name", "worker", "work", "accept", work_id)
        traces = ["--name", "worker", "traces", "--since", "0", "-o", "jsonl", "--timeout", "60s"]
        with streaming(home, *traces) as stream:
            got = [next_step(stream)]
            for round_ in range(3):
                home.ctl_json("--name", "worker", "work", "update", work_id, "--message", f"{round_}")
                got.append(next_step(stream))
                worker.kill()
                worker.start()
            home.ctl_json("--name", "worker", "work", "complete", work_id)
            got.append(next_step(stream))
            stream.send_signal(signal.SIGINT)
            _, errors = stream.communicate(timeout=30)
        assert stream.returncode == 130, errors
        sequences = [event["seq"] for event in got]
        assert sequences == sorted(set(sequences))
        assert [event["message"]["envelope"]["body"].get("message") for event in got] == [None, "0", "1", "2", None]


def test_a_missing_daemon_is_exit_code_3(home: Home) -> None:
    done = home.ctl("--name", "nobody", "status")
    assert done.returncode == 3
    assert b"nobody" in done.stderr
    assert home.ctl("status", "-o", "json").returncode == 3


def test_the_only_daemon_needs_no_name_and_two_do(home: Home) -> None:
    with Daemon(home, "solo-1"):
        assert home.ctl_json("status")["name"] == "solo-1"
        with Daemon(home, "solo-2"):
            several = home.ctl("status")
            assert several.returncode == 2
            assert b"solo-1, solo-2" in several.stderr
            assert home.ctl_json("status", "--name", "solo-2")["name"] == "solo-2"


def demo(tmp_path: Path, *args: str, command: str = "demo") -> subprocess.Popen[bytes]:
    env = {"PATH": os.environ.get("PATH", ""), "HOME": str(tmp_path), "TMPDIR": str(tmp_path)}
    words = [sys.executable, "-m", "aghbus.cli", command, *args]
    return subprocess.Popen(words, env=env, stdout=subprocess.PIPE, stderr=subprocess.PIPE, start_new_session=True)


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks at processes through /proc")
def test_the_demo_passes_and_cleans_up(short_tmp: Path) -> None:
    with demo(short_tmp, "-o", "json") as process:
        output, errors = process.communicate(timeout=90)
    assert process.returncode == 0, (output, errors)
    transcript = json.loads(output)
    assert transcript["ok"] is True
    assert len(transcript["steps"]) == 7
    assert all(step["ok"] for step in transcript["steps"])
    assert list(short_tmp.iterdir()) == []
    assert processes_with(str(short_tmp)) == []


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks at processes through /proc")
@pytest.mark.parametrize("number", [signal.SIGINT, signal.SIGTERM, signal.SIGHUP, signal.SIGKILL])
def test_an_interrupted_demo_cleans_up(short_tmp: Path, number: signal.Signals) -> None:
    with demo(short_tmp, "-o", "jsonl") as process:
        assert process.stdout is not None
        assert json.loads(process.stdout.readline())["ok"] is True  # both daemons are running now
        process.send_signal(number)  # at once: the whole demo takes a second
        process.communicate(timeout=90)
    assert process.returncode == (-number if number == signal.SIGKILL else 130)
    if number == signal.SIGKILL:  # another process cleans up
        wait_for(lambda: not list(short_tmp.iterdir()) and not processes_with(str(short_tmp)), 30, "the clean-up")
    assert list(short_tmp.iterdir()) == []
    assert processes_with(str(short_tmp)) == []


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks at processes through /proc")
def test_a_bench_whose_terminal_is_closed_cleans_up(short_tmp: Path) -> None:
    with demo(short_tmp, "--calls", "1000000", command="bench") as process:
        wait_for(lambda: len(processes_with(str(short_tmp))) > 3, 60, "the daemons and their broker")
        process.send_signal(signal.SIGHUP)
        process.communicate(timeout=90)
    assert process.returncode == 130
    assert list(short_tmp.iterdir()) == []
    assert processes_with(str(short_tmp)) == []


@pytest.mark.skipif(not Path("/proc").exists(), reason="looks at processes through /proc")
@pytest.mark.parametrize("lost", ["stdout", "stderr", "both"])
def test_a_demo_without_a_reader_cleans_up(short_tmp: Path, lost: str) -> None:
    reader, writer = os.pipe()
    os.close(reader)
    out, err = (writer if lost in (name, "both") else subprocess.DEVNULL for name in ("stdout", "stderr"))
    env = {"PATH": os.environ.get("PATH", ""), "HOME": str(short_tmp), "TMPDIR": str(short_tmp)}
    command = [sys.executable, "-m", "aghbus.cli", "demo"]
    done = subprocess.run(command, env=env, stdout=out, stderr=err, timeout=90, check=False, start_new_session=True)
    os.close(writer)
    assert done.returncode == (0 if lost == "stderr" else 141)
    assert list(short_tmp.iterdir()) == []
    assert processes_with(str(short_tmp)) == []


@pytest.fixture
def short_tmp(tmp_path: Path) -> Iterator[Path]:
    """An empty folder with a short path: the demo's sockets must fit below it, or it takes /tmp."""
    import tempfile

    with tempfile.TemporaryDirectory(prefix="ad-", dir="/tmp") as folder:
        yield Path(folder)


def test_the_human_form_warns_that_direct_rooms_are_not_encrypted(bus: Bus) -> None:
    home, _, _ = bus
    said = home.ctl("--name", "ops", "say", "between us", "--direct", "worker")
    listed = home.ctl("--name", "ops", "directs")
    for done in (said, listed):
        assert done.returncode == 0
        assert b"not encrypted" in done.stderr
        assert b"not encrypted" not in done.stdout
    in_a_thread = home.ctl("--name", "ops", "say", "to all", "--to", "worker")
    for_machines = home.ctl("--name", "ops", "directs", "-o", "json")
    assert in_a_thread.stderr == for_machines.stderr == b""


def test_the_hint_of_a_refusal_can_be_pasted(bus: Bus) -> None:
    home, _, _ = bus
    refused = home.ctl("--name", "ops", "work", "open", "--to-capability", "x.y", "--text", "x")
    (command,) = re.findall(r"`aghctl ([^`]*wait --capability[^`]*)`", refused.stderr.decode())
    pasted = home.ctl(*command.split(), "--timeout", "3s")
    assert (refused.returncode, pasted.returncode) == (4, 1), pasted.stderr
