"""The audit log of real daemons: what a message and a work leave in it, and what `aghctl audit` makes of it."""

import contextlib
import json
import re
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aghbus.store.engine.commit.ledger import entry_hash
from aghbus.store.engine.sql import checksum_of
from tests.support.daemons import Daemon, Home, wait_for

ROOT = Path(__file__).parents[2]
SECRET = "the text that nobody else may read"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Home, Daemon, Daemon]]:
    home = Home(tmp_path)
    # A second try, after a second's stall, would be a row of its own.
    bob, ops = Daemon(home, "bob", "--retry-first", "30s"), Daemon(home, "ops", "--retry-first", "30s")
    with bob, ops:
        wait_for(lambda: ops.knows("bob"), 30, "ops to know bob")
        wait_for(lambda: bob.knows("ops"), 30, "bob to know ops")
        yield home, bob, ops


def log_of(home: Home, name: str, *args: str) -> list[dict[str, Any]]:
    """The exported log."""
    done = home.ctl("--name", name, "audit", "export", *args)
    assert done.returncode == 0, done.stderr
    assert SECRET.encode() not in done.stdout
    return [json.loads(line) for line in done.stdout.splitlines()]


def story(log: list[dict[str, Any]]) -> list[tuple[str, str]]:
    return [(row["event"], row["outcome"]) for row in log]


def test_a_message_from_sending_to_the_agent_that_read_it(pair: tuple[Home, Daemon, Daemon]) -> None:
    home, _, _ = pair
    sent = home.ctl_json("--name", "ops", "say", "--to", "bob", SECRET)
    taken = home.ctl_json("--name", "bob", "inbox", "next", "--wait", "25")
    home.ctl_json("--name", "bob", "inbox", "nack", str(taken["item"]["seq"]), "--delay", "0")
    home.ctl_json("--name", "bob", "inbox", "next", "--wait", "25", "--ack")

    of_ops, of_bob = log_of(home, "ops"), log_of(home, "bob")
    began = [("policy", "created"), ("policy", "started")]
    assert sorted(story(of_ops)) == [*began, ("policy", "trust.addressed"), ("send", "kept")]
    assert story(of_bob) == [
        *began,
        ("receive", "kept"),
        ("deliver", "leased"),
        ("deliver", "returned"),
        ("deliver", "acked"),
    ]
    about = [row for row in (*of_ops, *of_bob) if row["event"] != "policy"]
    assert {(row["msg_id"], row["sender"], row["recipient"], row["kind"]) for row in about} == {
        (sent["id"], "ops", "bob", "say")
    }
    assert len({row["digest"] for row in about}) == 1  # the same bytes on both sides, up to the agent
    later = [row for row in of_bob if row["n"] > of_bob[3]["n"]]
    assert later
    assert log_of(home, "bob", "--after", str(of_bob[3]["n"])) == later


def test_refused_bytes_are_a_row(pair: tuple[Home, Daemon, Daemon]) -> None:
    home, bob, _ = pair
    bob.stop()
    with Daemon(home, "bob", "--trust-mode", "require") as strict:
        home.ctl_json("--name", "ops", "say", "--to", "bob", SECRET)
        wait_for(lambda: len(log_of(home, "bob")) > 3, 30, "bob to refuse it")
        refused = log_of(home, "bob")[-1]
        wait_for(lambda: strict.get("/v1/quarantine")["quarantined"], 30, "the quarantine")
    assert (refused["event"], refused["reason"], refused["sender"]) == ("reject", "verification_failed", "ops")
    assert log_of(home, "bob")[2]["reason"] == "trust.mode=require, no key"
    bob.start()  # for the fixture to stop


def test_verify_while_the_daemon_runs_and_after_somebody_wrote_in_its_log(pair: tuple[Home, Daemon, Daemon]) -> None:
    home, _, ops = pair
    for number in range(5):
        home.ctl_json("--name", "ops", "say", "--to", "bob", f"{SECRET} {number}")
    assert home.ctl_json("--name", "ops", "audit", "verify")["whole"]
    head = home.ctl("--name", "ops", "audit", "head").stdout.decode().strip()
    assert home.ctl("--name", "ops", "audit", "verify", "--head", head).returncode == 0
    ops.stop()

    before = bytes(32)
    db = sqlite3.connect(ops.store_path)
    with db:  # a whole new history of the same messages
        entries = db.execute("SELECT n, at_ms, last_seq, content, events FROM ledger ORDER BY n").fetchall()
        for n, at_ms, last_seq, content, events in entries:
            forged = None if events is None else events.replace(b"trust.mode", b"other.mode")
            before = entry_hash(before, n, at_ms, last_seq, content, forged)
            db.execute("UPDATE ledger SET events = ?, hash = ? WHERE n = ?", (forged, before, n))
    db.close()
    done = home.ctl("--name", "ops", "audit", "verify")
    assert done.returncode == 1
    assert b"NOT WHOLE" in done.stdout
    ops.store_path.with_name("store.db.mark").unlink()
    assert home.ctl("--name", "ops", "audit", "verify").returncode == 0  # it is whole, and it is not what happened
    done = home.ctl("--name", "ops", "audit", "verify", "--head", head)
    assert done.returncode == 1
    assert b"the hash that you kept" in done.stdout
    ops.start()


def test_a_new_store_is_swept_at_its_start_and_keeps_its_first_entries(tmp_path: Path) -> None:
    with Daemon(Home(tmp_path), "ops") as ops:
        wait_for(lambda: ops.get("/v1/status")["counters"].get("retention.sweeps"), 15, "the first sweep")
    with contextlib.closing(sqlite3.connect(ops.store_path)) as db:
        entries = db.execute("SELECT n, at_ms > 0 FROM ledger ORDER BY n").fetchall()
    assert entries == [(n, 1) for n in range(1, len(entries) + 1)]


def test_a_changed_message_is_found(pair: tuple[Home, Daemon, Daemon]) -> None:
    home, _, ops = pair
    home.ctl_json("--name", "ops", "say", "--to", "bob", SECRET)
    ops.stop()
    with contextlib.closing(sqlite3.connect(ops.store_path)) as db, db:
        db.create_function("checksum_of", 1, checksum_of)
        forged = "CAST(replace(raw, 'nobody', 'anyone') AS BLOB)"
        db.execute(f"UPDATE log SET raw = {forged}, checksum = checksum_of({forged})")
    found = home.ctl("-o", "json", "--name", "ops", "audit", "verify")
    assert found.returncode == 1
    (finding,) = json.loads(found.stdout)["findings"]
    assert finding.startswith("envelope 1 of entry ")
    ops.start()


def test_a_killed_daemon_leaves_a_whole_log(pair: tuple[Home, Daemon, Daemon]) -> None:
    home, bob, _ = pair
    for number in range(5):
        home.ctl_json("--name", "ops", "say", "--to", "bob", f"{SECRET} {number}")
    wait_for(lambda: len(log_of(home, "bob")) == 7, 30, "bob to have all")
    bob.kill()
    verified = home.ctl_json("--name", "bob", "audit", "verify")
    assert verified == {
        "v": 1,
        "whole": True,
        "commits": verified["commits"],
        "envelopes": 5,
        "head": home.ctl_json("--name", "bob", "audit", "head")["head"],
        "pruned_through": 0,
        "found": 0,
        "findings": [],
        "lost": [],
        "notes": [],
    }
    bob.start()
    assert story(log_of(home, "bob"))[-1] == ("policy", "started")
    assert home.ctl_json("--name", "bob", "audit", "verify")["whole"]


def test_the_recipe_of_the_page_verifies_an_export(pair: tuple[Home, Daemon, Daemon], tmp_path: Path) -> None:
    home, _, _ = pair
    for number in range(5):
        home.ctl_json("--name", "ops", "say", "--to", "bob", f"{SECRET} {number}")
    home.ctl_json("--name", "bob", "inbox", "next", "--wait", "25", "--ack")
    export = home.ctl("--name", "bob", "audit", "export", "--entries").stdout
    recipe = tmp_path / "verify_export.py"
    (source,) = re.findall(r"```python\n(.*?)```", (ROOT / "docs" / "audit.md").read_text(), re.DOTALL)
    recipe.write_text(source)

    def verify(lines: bytes) -> subprocess.CompletedProcess[bytes]:
        return subprocess.run([sys.executable, recipe], input=lines, capture_output=True, check=False, timeout=60)

    good = verify(export)
    assert (good.returncode, good.stderr) == (0, b"")
    last = json.loads(export.splitlines()[-1])
    assert good.stdout.split()[-1].decode() == f"{last['n']}:{last['hash']}"
    digest = re.findall(rb'"([0-9a-f]{64})"\]', export)[0]
    assert verify(export.replace(digest, digest[::-1])).returncode == 1
    assert verify(export.replace(b"acked", b"moved")).returncode == 1
    assert verify(b"".join(export.splitlines(keepends=True)[1:])).returncode == 1


def test_a_store_that_is_not_there(tmp_path: Path) -> None:
    home = Home(tmp_path)
    missing = home.ctl("audit", "verify", "--store", str(tmp_path / "none.db"))
    assert missing.returncode == 4
    assert b"--store or --name" in missing.stderr
    assert home.ctl("audit", "verify", "--head", "12").returncode == 2
