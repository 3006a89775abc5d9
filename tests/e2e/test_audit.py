"""The audit log of real daemons: what a message and a work leave in it, and what `aghctl audit` makes of it."""

import hashlib
import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemons import Daemon, Home, wait_for

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
    assert story(of_ops) == [("policy", "started"), ("send", "kept")]
    assert story(of_bob) == [
        ("policy", "started"),
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
    assert log_of(home, "bob", "--after", "3") == of_bob[3:]


def test_refused_bytes_are_a_row(pair: tuple[Home, Daemon, Daemon]) -> None:
    home, bob, _ = pair
    bob.stop()
    with Daemon(home, "bob", "--trust-mode", "require") as strict:
        home.ctl_json("--name", "ops", "say", "--to", "bob", SECRET)
        wait_for(lambda: len(log_of(home, "bob")) > 2, 30, "bob to refuse it")
        refused = log_of(home, "bob")[-1]
        wait_for(lambda: strict.get("/v1/quarantine")["quarantined"], 30, "the quarantine")
    assert (refused["event"], refused["reason"], refused["sender"]) == ("reject", "verification_failed", "ops")
    assert log_of(home, "bob")[1]["reason"] == "trust.mode=require, no key"
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
    with db:  # a whole new history of the same messages, to another peer
        for n, line in db.execute("SELECT n, line FROM audit ORDER BY n").fetchall():
            forged = line.replace(b'"bob"', b'"eve"')
            before = hashlib.sha256(before + forged).digest()
            db.execute("UPDATE audit SET line = ?, hash = ? WHERE n = ?", (forged, before, n))
        db.execute("UPDATE meta SET value = ? WHERE key = 'audit_head'", (f"{n}:{before.hex()}",))
    db.close()
    done = home.ctl("--name", "ops", "audit", "verify")
    assert done.returncode == 1
    assert b"NOT WHOLE" in done.stdout
    ops.store_path.with_name("store.db.audit").unlink()
    assert home.ctl("--name", "ops", "audit", "verify").returncode == 0  # it is whole, and it is not what happened
    done = home.ctl("--name", "ops", "audit", "verify", "--head", head)
    assert done.returncode == 1
    assert b"the hash that you kept" in done.stdout
    ops.start()


def test_a_killed_daemon_leaves_a_whole_log(pair: tuple[Home, Daemon, Daemon]) -> None:
    home, bob, _ = pair
    for number in range(5):
        home.ctl_json("--name", "ops", "say", "--to", "bob", f"{SECRET} {number}")
    wait_for(lambda: len(log_of(home, "bob")) == 6, 30, "bob to have all")
    bob.kill()
    assert home.ctl_json("--name", "bob", "audit", "verify") == {
        "whole": True,
        "rows": 6,
        "head": home.ctl_json("--name", "bob", "audit", "head")["head"],
        "pruned_through": 0,
        "found": 0,
        "findings": [],
        "notes": [],
    }
    bob.start()
    assert story(log_of(home, "bob"))[-1] == ("policy", "started")
    assert home.ctl_json("--name", "bob", "audit", "verify")["whole"]


def test_a_daemon_without_the_log_and_a_store_that_is_not_there(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with Daemon(home, "ops", "--no-audit-enabled"):
        home.ctl_json("--name", "ops", "say", "--thread", "new", SECRET)
        assert log_of(home, "ops") == []
        assert home.ctl_json("--name", "ops", "audit", "verify")["rows"] == 0
    missing = home.ctl("audit", "verify", "--store", str(tmp_path / "none.db"))
    assert missing.returncode == 1
    assert b"--store or --name" in missing.stderr
    assert home.ctl("audit", "verify", "--head", "12").returncode == 2
