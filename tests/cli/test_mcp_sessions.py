"""Several sessions of hosts at one daemon: who is told, who holds what, and what happens when one ends or is closed."""

import signal
import sys
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aghbus.cli.mcp.notices import TURN_SECONDS
from tests.support.daemons import Daemon, Home, wait_for
from tests.support.mcp_hosts import SECRET, CodexProgram, CodexServer, MessagingSocket
from tests.support.mcp_relay import RelayProcess

ONE = "aghbus: 1 message waits. Call the inbox tool."


@pytest.fixture
def hosts(tmp_path: Path) -> Iterator[tuple[MessagingSocket, MessagingSocket]]:
    with MessagingSocket(tmp_path / "first.sock") as first, MessagingSocket(tmp_path / "second.sock") as second:
        yield first, second


def tell(peer: Daemon) -> None:
    peer.post("/v1/messages", kind="say", body={"text": "x"}, to="ops")


def sessions(daemon: Daemon) -> list[dict[str, Any]]:
    found: list[dict[str, Any]] = daemon.get("/v1/mcp/sessions")["sessions"]
    return found


def until_state(daemon: Daemon, state: str) -> None:
    """Until the notice of the only session is in this state."""
    wait_for(lambda: [(each["notice"] or {}).get("state") for each in sessions(daemon)] == [state], 20, state)


def environment_of(process: int) -> str:
    return Path(f"/proc/{process}/environ").read_text()


def ready(daemon: Daemon) -> int:
    return int(daemon.get("/v1/inbox")["counts"]["ready"])


def test_the_session_that_called_a_tool_last_is_told_and_names_of_holders_are_shown(
    home: Home, ops: Daemon, peer: Daemon, hosts: tuple[MessagingSocket, MessagingSocket]
) -> None:
    first, second = hosts
    with RelayProcess(home, "ops", env=first.env) as one, RelayProcess(home, "ops", env=second.env) as two:
        one.open("claude-code")
        two.open("claude-code")
        two.call(1, "peers")
        one.call(1, "peers")
        wait_for(lambda: len([each for each in sessions(ops) if each["called_ms"]]) == 2, 20, "both reports")
        tell(peer)
        assert first.receive() == ONE
        assert len(one.call(2, "inbox")["messages"]) == 1
        found = two.call(2, "inbox")
        (holder,) = [each["id"] for each in sessions(ops) if each["id"].startswith(f"{one.process.pid}-")]
        assert found["messages"] == []
        assert found["note"].startswith(f"1 held by session {holder} since 20")
        shown = home.ctl("--name", "ops", "mcp", "sessions").stdout.decode()
        assert "LAST CALL" in shown and shown.count("ago") >= 4
    assert second.more() == 0


@pytest.mark.timeout(120)
def test_another_session_is_told_when_the_first_one_does_not_fetch(
    home: Home, ops: Daemon, peer: Daemon, hosts: tuple[MessagingSocket, MessagingSocket]
) -> None:
    first, second = hosts
    with RelayProcess(home, "ops", env=first.env) as one, RelayProcess(home, "ops", env=second.env) as two:
        two.open("claude-code")
        one.open("claude-code")
        one.call(1, "peers")
        wait_for(lambda: len(sessions(ops)) == 2 and any(each["called_ms"] for each in sessions(ops)), 20, "reports")
        tell(peer)
        assert first.receive() == ONE
        assert second.more() == 0
        assert second.receive(TURN_SECONDS + 20) == ONE


@pytest.mark.parametrize("end", ["stdin", "SIGTERM"])
def test_what_a_session_fetched_goes_back_at_once_when_it_ends(
    home: Home, ops: Daemon, peer: Daemon, hosts: tuple[MessagingSocket, MessagingSocket], end: str
) -> None:
    """A host closes the relay's input when it ends in any way, also by a kill."""
    with RelayProcess(home, "ops") as one:
        one.open("claude-code")
        tell(peer)
        wait_for(lambda: ready(ops), 20, "the message")
        assert len(one.call(1, "inbox")["messages"]) == 1
        if end == "SIGTERM":
            one.process.send_signal(signal.SIGTERM)
    assert sessions(ops) == []
    with RelayProcess(home, "ops", env=hosts[0].env) as two:
        two.open("claude-code")
        assert hosts[0].receive(20) == ONE
        (again,) = two.call(1, "inbox")["messages"]
        assert again["seq"]
    assert ops.get("/v1/inbox")["items"][0]["attempts"] == 0


@pytest.mark.long
@pytest.mark.timeout(300)
def test_a_lease_outlasts_its_time_while_its_relay_lives_and_ends_after_a_kill(
    home: Home, ops: Daemon, peer: Daemon, hosts: tuple[MessagingSocket, MessagingSocket]
) -> None:
    one = RelayProcess(home, "ops", env=hosts[0].env)
    one.open("claude-code")
    tell(peer)
    assert hosts[0].receive() == ONE
    (message,) = one.call(1, "inbox")["messages"]
    first = ops.get("/v1/inbox")["items"][0]["lease_until_ms"]
    wait_for(lambda: time.time() * 1000 > first + 5_000, 120, "more than the first lease")
    assert ops.get("/v1/inbox")["items"][0]["lease"] == message["lease"]
    with one.process, RelayProcess(home, "ops", env=hosts[1].env) as two:
        one.process.kill()
        two.open("claude-code")
        assert hosts[1].receive(110) == ONE
        assert len(two.call(1, "inbox")["messages"]) == 1


def test_a_session_that_is_there_is_told_of_what_another_one_gave_back(
    home: Home, ops: Daemon, peer: Daemon, hosts: tuple[MessagingSocket, MessagingSocket]
) -> None:
    first, second = hosts
    with RelayProcess(home, "ops", env=second.env) as two:
        two.open("claude-code")
        with RelayProcess(home, "ops", env=first.env) as one:
            one.open("claude-code")
            one.call(1, "peers")
            wait_for(lambda: any(each["called_ms"] for each in sessions(ops)), 20, "the report")
            tell(peer)
            assert first.receive() == ONE
            assert len(one.call(2, "inbox")["messages"]) == 1
        assert second.receive(15) == ONE
        assert len(two.call(1, "inbox")["messages"]) == 1


def test_a_closed_session_is_not_woken_before_its_terminal_is_open_again(
    home: Home, ops: Daemon, peer: Daemon, tmp_path: Path
) -> None:
    """Codex's background server keeps the relay when the terminal is closed."""
    server, codex = CodexServer(tmp_path / "codex"), CodexProgram(tmp_path / "bin", home.env["PATH"])
    with RelayProcess(home, "ops", env={**server.env, **codex.env}, parent=server.parent) as relay:
        server.open_terminal()
        relay.open("codex-mcp-client")
        relay.call(1, "peers", {"x-codex-turn-metadata": {"thread_id": "0199a213-81c0-7800"}})
        wait_for(lambda: [each["open"] for each in sessions(ops)] == [True], 20, "the session")
        server.close_terminal()
        tell(peer)
        until_state(ops, "stored")
        assert [each["open"] for each in sessions(ops)] == [False]
        assert b"none: its terminal is closed" in home.ctl("--name", "ops", "mcp", "sessions").stdout
        assert codex.calls() == []
        server.open_terminal()
        wait_for(codex.calls, 60, "the notice")
        until_state(ops, "noticed")
        server.close_terminal()


OPTIONS = ("--peer-per-session",)


def test_per_session_peer_ends_with_its_session_and_is_restored(tmp_path: Path) -> None:
    home, name = Home(tmp_path), "ops-0199a213"
    env = {"CLAUDE_CODE_SESSION_ID": "0199A213-81c0-7800", "CLAUDE_CODE_MESSAGING_TOKEN": SECRET}
    with Daemon(home, "worker") as peer:
        with (
            RelayProcess(home, "ops", env=env, options=OPTIONS) as known,
            RelayProcess(home, "ops", options=OPTIONS) as other,
        ):
            known.open("claude-code")
            other.open("gemini-cli")
            wait_for(lambda: peer.knows(name), 30, "the session's peer")
            assert SECRET not in environment_of(home.ctl_json("--name", name, "status")["pid"])
            own = {each["peer_id"] for each in other.call(1, "peers")["peers"]}
            assert any(each.startswith("ops-") and each != name for each in own)
            assert known.call(2, "open_work", to="worker", task="x")["works"]
        assert home.ctl("--name", name, "status").returncode == 3  # it ended
        with RelayProcess(home, "ops", env=env, options=OPTIONS) as again:
            again.open("claude-code")
            assert len(again.call(1, "work")["works"]) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="prctl(2) is of Linux")
def test_the_daemon_of_a_session_ends_when_its_relay_is_killed(home: Home) -> None:
    relay = RelayProcess(home, "ops", env={"CLAUDE_CODE_SESSION_ID": "0199a213"}, options=OPTIONS)
    relay.open("claude-code")
    assert home.ctl("--name", "ops-0199a213", "status").returncode in (0, 1)
    with relay.process:
        relay.process.kill()
    wait_for(lambda: home.ctl("--name", "ops-0199a213", "status").returncode == 3, 30, "the end of the daemon")


def test_peer_per_session_excludes_the_socket_option(tmp_path: Path) -> None:
    done = Home(tmp_path).ctl("--socket", "/tmp/x.sock", "mcp", "--peer-per-session")
    assert (done.returncode, b"leave out --socket" in done.stderr) == (2, True)
