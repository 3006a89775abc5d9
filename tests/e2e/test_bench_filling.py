"""Stores that the benchmark fills are as a daemon leaves them."""

import json
import sqlite3
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest

from bench.figures import FIGURES, agents, messages
from bench.harness.filling import fill
from bench.harness.load import receive_rate
from bench.harness.processes import broker
from bench.harness.scale import SCALES
from bench.peers import missing
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


def test_filled_inbox_equals_an_inbox_filled_by_a_daemon(home: Home) -> None:
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


ROOT = Path(__file__).parent.parent.parent
AS_AGENTS_GET_THEM = (
    "works, 16 at a time, AsyncClient and Worker, processor time of both daemons",
    "works, 16 at a time, AsyncClient and Worker, processor time of both clients",
    "a work at rest, p50, AsyncClient and Worker",
    "a work at rest, AsyncClient and Worker, written by both daemons",
    "`aghctl serve -- true`",
    "`aghctl mcp`",
    "says from agent to agent, leased and acked, 16 at a time",
    "leased and acked, written by both daemons",
    "leased and acked, processor time of both daemons",
    "leased and acked, processor time of both clients",
    "of a thread of its own",
    "memory after 1,000 messages",
    "whois over two daemons",
)
"""Parts of rows."""
HANG = 540  # seconds; it takes half a minute on two cores at rest


@pytest.mark.timeout(HANG + 60)
def test_the_smoke_run_prints_a_table_and_writes_samples_and_plots(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "--smoke", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "bench.json").read_text())["results"]
    assert list(results) == [figure.title for figure in FIGURES]
    measured = [row["what"] for result in results.values() for row in result["rows"]]
    assert [part for part in AS_AGENTS_GET_THEM if not any(part in what for what in measured)] == []
    beside = {row["floor"] for result in results.values() for row in result["rows"]}
    assert missing() or beside >= {*agents.SDK.values(), *messages.OTHERS.values()}
    for title, result in results.items():
        assert not result["failed"], (title, result["skipped"])
        assert f"**{title}**" in done.stdout
        assert result["rows"] or title.startswith("Verified"), (title, result)
        for row in result["rows"]:
            assert row["values"] and min(row["values"]) >= 0, row
            assert len(row["floors"]) in (0, len(row["values"])), row
        for name, samples in result["latencies"].items():
            assert samples and min(samples) > 0, (title, name)
    for name in ("throughput.svg", "latency.svg", "growth.svg"):
        assert "<svg " in (tmp_path / name).read_text()


def test_hops_counts_calls_and_files_of_a_message() -> None:
    command = [sys.executable, "-m", "bench.micro.hops", "-o", "json", "--warm-up", "2", "--rounds", "3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(done.stdout)
    for case in ("receive", "send", "work", "step"):
        counts, after = rows.pop(case), rows.pop(f"{case}, after")
        assert counts["files"] < counts["calls"] < counts["all_calls"], case
        assert any(path.startswith("store/") for path in counts["calls_by_file"]), case
        assert after["calls"] < counts["calls"], case
    assert not rows


def test_shares_of_a_run_name_figures() -> None:
    assert {name for scale in SCALES.values() for name in scale.shares} <= {figure.name for figure in FIGURES}
