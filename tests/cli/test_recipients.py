"""Messages to peers that are not there, to a nickname, to a capability and to oneself."""

import json
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aghbus.cli import health_checks
from aghbus.cli.app.registry import PROGRAM
from aghbus.cli.context import Context
from tests.support.daemons import Daemon, Home, wait_for


@pytest.fixture(scope="module")
def home(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Home]:
    """A home in which `ops`, `worker` and a peer with the key of `k1` run."""
    home = Home(tmp_path_factory.mktemp("recipients"))
    assert home.ctl("--name", "k1", "key", "generate").returncode == 0
    with Daemon(home, "worker", "--capability", "test.run"), Daemon(home, "k1"), Daemon(home, "ops") as ops:
        wait_for(lambda: len(ops.get("/v1/peers")["peers"]) == 3, 30, "presence")
        yield home


@pytest.fixture(scope="module")
def handle(home: Home) -> str:
    found: str = home.ctl_json("--name", "k1", "status")["peer_id"]
    assert found.startswith("k1@")
    return found


@pytest.mark.parametrize("command", [["say", "hello"], ["work", "open", "--text", "do it"]])
def test_a_message_to_nobody_is_noted(home: Home, command: list[str]) -> None:
    done = home.ctl("--name", "ops", *command, "--to", "workr")
    assert done.returncode == 0
    assert b"no peer called workr is known" in done.stderr and b"did you mean worker?" in done.stderr
    assert b"is known" not in home.ctl("--name", "ops", *command, "--to", "worker").stderr


def test_a_bridged_message_to_nobody_is_noted_once(home: Home) -> None:
    said = b"one\ntwo\n"
    done = home.ctl("--name", "ops", "bridge", "sacp", "--send-only", "--target", "workr", stdin=said)
    assert done.returncode == 0, done.stderr
    assert done.stderr.count(b"no peer called workr is known") == 1
    assert b"did you mean worker?" in done.stderr
    done = home.ctl("--name", "ops", "bridge", "sacp", "--send-only", "--target", "worker", stdin=said)
    assert b"is known" not in done.stderr


def test_a_handle_with_another_fingerprint_gets_the_known_one_suggested(home: Home, handle: str) -> None:
    done = home.ctl("--name", "ops", "say", "hello", "--to", f"k1@{'0' * 32}")
    assert f"did you mean {handle}?".encode() in done.stderr


@pytest.mark.parametrize(("to", "recipient"), [("worker", "present"), ("nobody", "unknown")])
def test_response_reports_whether_the_recipient_is_present(home: Home, to: str, recipient: str) -> None:
    assert home.ctl_json("--name", "ops", "say", "hello", "--to", to)["recipient"] == recipient
    assert home.ctl_json("--name", "ops", "work", "open", "--text", "t", "--to", to)["recipient"] == recipient


def test_a_broadcast_has_no_recipient(home: Home) -> None:
    assert home.ctl_json("--name", "ops", "say", "hello", "--thread", "new")["recipient"] is None


@pytest.mark.parametrize("options", [[], ["--direct"]])
def test_a_nickname_addresses_its_only_handle(home: Home, handle: str, options: list[str]) -> None:
    sent = home.ctl_json("--name", "ops", "work", "open", "--text", "t", "--to", "k1", *options)
    assert (sent["to"], sent["recipient"]) == (handle, "present")
    got = home.ctl_json("--name", "k1", "inbox", "next", "--wait", "30s", "--ack", "--work", sent["work_id"])
    assert got["item"]["message"]["to"] == handle
    assert home.ctl_json("--name", "ops", "say", "hello", "--to", "k1")["to"] == handle


def test_wait_finds_a_handle_by_its_nickname(home: Home, handle: str) -> None:
    assert home.ctl_json("--name", "ops", "wait", "--peer", "k1", "--timeout", "20s")["peer"]["peer_id"] == handle


def test_whois_with_wait_returns_when_a_handle_of_the_nickname_answers(home: Home, handle: str) -> None:
    started = time.monotonic()
    found = home.ctl_json("--name", "ops", "whois", "k1", "--wait", "50s")
    assert [peer["peer_id"] for peer in found["peers"]] == [handle]
    assert time.monotonic() - started < 40


@pytest.mark.parametrize("command", [["whois", "k1"], ["whois", "--to", "k1"]])
def test_whois_finds_handles_by_their_nickname(home: Home, handle: str, command: list[str]) -> None:
    assert [peer["peer_id"] for peer in home.ctl_json("--name", "ops", *command)["peers"]] == [handle]


def test_a_capability_picks_a_present_peer(home: Home) -> None:
    for command in (["say", "hello"], ["work", "open", "--text", "t"]):
        assert home.ctl_json("--name", "ops", *command, "--to-capability", "test.run")["to"] == "worker"
    nobody = home.ctl("--name", "ops", "say", "hello", "--to-capability", "code.patch", "-o", "json")
    assert (nobody.returncode, json.loads(nobody.stderr)["code"]) == (1, "no_peer")
    both = home.ctl("--name", "ops", "say", "hello", "--to-capability", "test.run", "--to", "worker")
    assert (both.returncode, b"exclude each other" in both.stderr) == (2, True)
    # Our own capability does not count: a work is for another peer.
    assert home.ctl("--name", "worker", "say", "hello", "--to-capability", "test.run").returncode == 1


@pytest.mark.parametrize("command", [["say", "hello", "--to"], ["say", "hello", "--direct"]])
def test_a_message_to_oneself_is_refused(home: Home, command: list[str]) -> None:
    done = home.ctl("--name", "ops", *command, "ops")
    assert done.returncode == 4
    assert b"to: " in done.stderr


def test_doctor_names_unanswered_messages_and_peers_that_nobody_knows(
    home: Home, monkeypatch: pytest.MonkeyPatch, tmp_path: Path
) -> None:
    own = Home(tmp_path)
    context = Context(PROGRAM.parse(["doctor", "--socket", str(tmp_path / "run" / "aghbus" / "ops.sock")])[1])
    with Daemon(own, "ops", "--discovery-interval", "2s") as ops:
        gone = Daemon(own, "gone", "--discovery-interval", "2s").start()
        wait_for(lambda: ops.knows("gone"), 30, "presence")
        gone.kill()
        work_id = ops.post("/v1/works", to="ghost", text="do it")["work_id"]
        ops.post("/v1/messages", kind="say", body={"text": "hello"}, to="ghost")
        wait_for(lambda: not ops.get("/v1/status")["peers"]["active"], 30, "the peer to be inactive")
        monkeypatch.setattr(health_checks, "UNANSWERED_SECONDS", 0)
        rows = {row["check"]: row for row in health_checks.check_daemon(context)}
    assert rows["unanswered messages"]["state"] == "warn"
    assert rows["unanswered messages"]["detail"] == "1 message to ghost (no such peer is known)"
    assert "no peer ghost was ever seen" in rows[f"work {work_id}"]["detail"]
    assert "not seen for a while: gone (" in rows["peers"]["detail"]
