"""`aghctl mcp` starts its daemon when none runs."""

import time
from pathlib import Path

import pytest

from tests.support.daemons import Home, stop_daemon, wait_for
from tests.support.mcp_hosts import SECRET
from tests.support.mcp_relay import RelayProcess


def test_the_daemon_is_started_and_outlives_the_session(home: Home) -> None:
    with RelayProcess(home, "ops", env={"CLAUDE_CODE_MESSAGING_TOKEN": SECRET}) as relay:
        relay.open("claude-code")
        assert relay.call(1, "peers")["peers"][0]["peer_id"] == "ops"
    try:
        status = home.ctl_json("--name", "ops", "status")
        assert SECRET not in Path(f"/proc/{status['pid']}/environ").read_text()
        log = home.root / "state/aghbus/instances/ops/started-by-mcp.log"
        assert log.stat().st_mode & 0o777 == 0o600
        with RelayProcess(home, "ops") as again:
            again.open("claude-code")
        assert home.ctl_json("--name", "ops", "status")["pid"] == status["pid"]
    finally:
        stop_daemon(home, "ops")


def test_two_sessions_that_start_at_once_have_one_daemon(home: Home) -> None:
    with RelayProcess(home, "ops") as one, RelayProcess(home, "ops") as two:
        one.open("claude-code")
        two.open("codex-mcp-client")
    stop_daemon(home, "ops")


def test_a_host_hears_within_20_seconds_that_there_is_no_daemon(home: Home) -> None:
    """Claude Code gives a server 30 seconds to answer."""
    with RelayProcess(home, "ops", options=("--no-start",)) as relay:
        begin = time.monotonic()
        relay.request(1, "initialize")
        assert "start it: aghd run --name ops" in relay.receive()["error"]["message"]
        assert time.monotonic() - begin < 20


def test_a_daemon_that_cannot_start_is_reported_with_its_log(home: Home) -> None:
    (home.root / "config/aghbus").mkdir(parents=True)
    (home.root / "config/aghbus/ops.toml").write_text("nonsense = 1\n")
    with RelayProcess(home, "ops", "--timeout", "3s") as relay:
        relay.request(1, "initialize")
        message = relay.receive()["error"]["message"]
    assert "the daemon ops was started, and is not there" in message
    log = Path(message.partition("its log is ")[2].rstrip(")"))
    wait_for(lambda: "nonsense" in log.read_text(), 30, "the reason")  # a slow start takes longer than the relay waits


@pytest.mark.parametrize(("unit", "code"), [("aghd@.service", 0), ("aghd@ops.service", 0), ("aghd@.service", 1)])
def test_the_users_unit_is_started_where_it_is_installed(home: Home, tmp_path: Path, unit: str, code: int) -> None:
    """Where that fails, the relay starts the daemon itself."""
    folder, calls = home.root / "config/systemd/user", tmp_path / "calls"
    folder.mkdir(parents=True)
    (folder / unit).touch()
    program = tmp_path / "bin" / "systemctl"
    program.parent.mkdir()
    program.write_text(f'#!/bin/sh\necho "$@" >> {calls}\nexit {code}\n')
    program.chmod(0o755)
    path = {"PATH": f"{program.parent}:{home.env['PATH']}"}
    with RelayProcess(home, "ops", "--timeout", "1s" if code == 0 else "15s", env=path) as relay:
        relay.request(1, "server/discover")
        answer = relay.receive()
    assert calls.read_text() == "--user start aghd@ops\n"
    if code:
        assert "result" in answer
        stop_daemon(home, "ops")
    else:
        assert "systemctl --user status aghd@ops" in answer["error"]["message"]
