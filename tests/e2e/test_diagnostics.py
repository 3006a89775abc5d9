"""A running daemon is looked into: stacks, a profile, and the signal that writes stacks to the log."""

import os
import signal
import threading
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemons import Daemon, Home, HttpError, wait_for


def test_tasks_and_threads_have_places_and_no_values(home: Home) -> None:
    with Daemon(home, "ops") as ops:
        found = home.ctl_json("--name", "ops", "debug", "tasks")
        frames = [frame for stack in found["tasks"] for frame in stack["frames"]]
        assert any("deadlines.py:" in frame for frame in frames)
        assert "MainThread" in {stack["name"] for stack in found["threads"]}
        assert found["queues"] == {"receive": 0}
        assert str(home.root) not in str(found)
        assert ops.get("/v1/status")["ready"]


def shows_the_store(found: dict[str, Any]) -> bool:
    frames = [frame for stack in found["stacks"] for frame in stack["frames"]]
    return found["samples"] > 10 and any("store/engine/" in frame for frame in frames)


def test_a_profile_shows_what_runs_and_does_not_stop_the_daemon(home: Home, tmp_path: Path) -> None:
    with Daemon(home, "ops") as ops:
        stop = threading.Event()

        def load() -> None:
            while not stop.is_set():
                ops.post("/v1/messages", kind="say", body={"text": "hello"})

        thread = threading.Thread(target=load)
        thread.start()
        try:
            wait_for(lambda: shows_the_store(ops.get("/v1/debug/profile?duration=1")), 30, "samples of the store")
            folded = home.ctl("--name", "ops", "debug", "profile", "300ms", "--folded").stdout.decode()
            shown = home.ctl("--name", "ops", "debug", "profile", "300ms").stdout.decode()
        finally:
            stop.set()
            thread.join()
        assert all(line.rpartition(" ")[2].isdigit() for line in folded.splitlines())
        assert shown.startswith("own") or "with callees" in shown.splitlines()[0].lower()
        with pytest.raises(HttpError, match="duration"):
            ops.get("/v1/debug/profile?duration=3600")


def test_the_signal_writes_stacks_to_the_log_and_ends_nothing(home: Home) -> None:
    with Daemon(home, "ops") as ops:
        assert ops.process is not None
        os.kill(ops.process.pid, signal.SIGUSR1)
        wait_for(lambda: "stack of a task" in ops.log.read_text(), 30, "the stacks")
        wait_for(lambda: "queues receive=0" in ops.log.read_text(), 30, "the queues")
        assert ops.get("/healthz") == {"alive": True}
