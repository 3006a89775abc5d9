"""Stores that the benchmark fills are as a daemon leaves them."""

import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.harness.filling import fill
from bench.harness.load import receive_rate
from bench.harness.processes import broker
from tests.support.daemons import Daemon, Home

COUNT = 60


def checks(daemon: Daemon) -> dict[str, str]:
    """The state of each check of `aghd check-store`."""
    command = [sys.executable, "-m", "aghbus.daemon", "check-store", "--name", daemon.name, "-o", "json"]
    done = subprocess.run(command, env=daemon.env, capture_output=True, timeout=60, check=False)
    return {one["check"]: one["state"] for one in json.loads(done.stdout)["checks"]}


def envelopes(daemon: Daemon) -> list[tuple[Any, ...]]:
    """What was decided about the stored envelopes, with the length of their bytes."""
    sql = "SELECT direction, kind, trust, event, outcome, length(raw) FROM envelopes ORDER BY seq"
    db = sqlite3.connect(daemon.store_path)
    try:
        return db.execute(sql).fetchall()
    finally:
        db.close()


@pytest.fixture
def home(tmp_path: Path) -> Home:
    return Home(tmp_path)


def test_a_filled_inbox_is_as_a_daemon_leaves_it_that_received_as_many_messages(home: Home) -> None:
    with broker() as server:
        real, filled = (Daemon(home, name, "--nats", server.url) for name in ("real", "filled"))
        with real:
            receive_rate(server, real, COUNT)
        assert fill(filled.store_path, "inbox", COUNT, filled.name, lambda _: True)
        assert checks(filled) == checks(real) and set(checks(filled).values()) == {"ok"}
        assert envelopes(filled) == envelopes(real)
        with filled:
            assert filled.get("/v1/status")["inbox"] == {"ready": COUNT, "leased": 0, "dead": 0}


@pytest.mark.parametrize("what", ["dedup", "random", "stored", "works"])
def test_a_daemon_goes_on_with_a_filled_store(home: Home, what: str) -> None:
    with broker() as server:
        daemon = Daemon(home, "filled", "--nats", server.url)
        assert fill(daemon.store_path, what, COUNT, daemon.name, lambda _: True)
        assert set(checks(daemon).values()) == {"ok"}
        with daemon:
            status = daemon.get("/v1/status")
            assert status["store"]["last_seq"] == COUNT and status["problems"] == []
            receive_rate(server, daemon, 5)
        assert set(checks(daemon).values()) == {"ok"}


def test_a_store_for_which_there_is_no_time_is_removed(home: Home) -> None:
    path = home.root / "given-up" / "store.db"
    assert not fill(path, "stored", COUNT, "nobody", lambda _: False)
    assert not path.exists()
