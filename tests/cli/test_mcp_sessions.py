"""Several sessions of hosts: competing consumers of one daemon, or peers of their own."""

import sys
from pathlib import Path

import pytest

from tests.support.daemons import Daemon, Home, wait_for
from tests.support.mcp_hosts import MessagingSocket
from tests.support.mcp_relay import RelayProcess

OPTIONS = ("--peer-per-session",)


def test_sessions_of_one_daemon_compete_for_messages(tmp_path: Path) -> None:
    home = Home(tmp_path)
    with (
        Daemon(home, "ops") as ops,
        Daemon(home, "worker") as peer,
        MessagingSocket(tmp_path / "first.sock") as first,
        MessagingSocket(tmp_path / "second.sock") as second,
        RelayProcess(home, "ops", env=first.env) as one,
        RelayProcess(home, "ops", env=second.env) as two,
    ):
        wait_for(lambda: ops.knows("worker") and peer.knows("ops"), 30, "each other")
        one.open("claude-code")
        two.open("claude-code")
        peer.post("/v1/messages", kind="say", body={"text": "x"}, to="ops")
        assert first.receive() == second.receive() == "aghbus: 1 message waits. Call the inbox tool."
        assert len(one.call(1, "inbox")["messages"]) == 1
        assert two.call(1, "inbox")["messages"] == []
        assert len(ops.get("/v1/mcp/sessions")["sessions"]) == 2


def test_a_session_can_be_a_peer_of_its_own_that_ends_with_it_and_comes_back(tmp_path: Path) -> None:
    home, name = Home(tmp_path), "ops-0199a213"
    env = {"CLAUDE_CODE_SESSION_ID": "0199A213-81c0-7800"}
    with Daemon(home, "worker") as peer:
        with (
            RelayProcess(home, "ops", env=env, options=OPTIONS) as known,
            RelayProcess(home, "ops", options=OPTIONS) as other,
        ):
            known.open("claude-code")
            other.open("gemini-cli")
            wait_for(lambda: peer.knows(name), 30, "the session's peer")
            own = {each["peer_id"] for each in other.call(1, "peers")["peers"]}
            assert any(each.startswith("ops-") and each != name for each in own)
            assert known.call(2, "open_work", to="worker", task="x")["works"]
        assert home.ctl("--name", name, "status").returncode == 3  # it ended
        with RelayProcess(home, "ops", env=env, options=OPTIONS) as again:
            again.open("claude-code")
            assert len(again.call(1, "work")["works"]) == 1


@pytest.mark.skipif(sys.platform != "linux", reason="prctl(2) is of Linux")
def test_the_daemon_of_a_session_ends_when_its_relay_is_killed(tmp_path: Path) -> None:
    home = Home(tmp_path)
    relay = RelayProcess(home, "ops", env={"CLAUDE_CODE_SESSION_ID": "0199a213"}, options=OPTIONS)
    relay.open("claude-code")
    assert home.ctl("--name", "ops-0199a213", "status").returncode in (0, 1)
    with relay.process:
        relay.process.kill()
    wait_for(lambda: home.ctl("--name", "ops-0199a213", "status").returncode == 3, 30, "the end of the daemon")


def test_a_daemon_of_its_own_and_the_address_of_another_exclude_each_other(tmp_path: Path) -> None:
    done = Home(tmp_path).ctl("--socket", "/tmp/x.sock", "mcp", "--peer-per-session")
    assert (done.returncode, b"leave out --socket" in done.stderr) == (2, True)
