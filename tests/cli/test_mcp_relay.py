"""`aghctl mcp` between a host and real daemons."""

import json
import os
from pathlib import Path
from typing import Any

from aghbus.cli.mcp.relay import MAX_IN_FLIGHT
from tests.support.daemons import Daemon, Home, wait_for
from tests.support.mcp_relay import RelayProcess


def test_both_eras_pass_and_a_legacy_session_outlives_the_daemon(home: Home) -> None:
    with Daemon(home, "ops") as daemon, RelayProcess(home, "ops") as relay:
        relay.request(1, "server/discover")
        assert "2026-07-28" in relay.receive()["result"]["supportedVersions"]
        legacy = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
        relay.send({"jsonrpc": "2.0", "id": 2, "method": "initialize", "params": legacy})
        assert relay.receive()["result"]["protocolVersion"] == "2025-06-18"
        relay.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        daemon.kill()
        relay.send({"jsonrpc": "2.0", "id": 3, "method": "tools/list"})  # waits for the daemon
        daemon.start()
        answer = relay.receive()
        assert (answer["id"], len(answer["result"]["tools"]) > 0) == (3, True)


def test_a_pipe_of_requests_is_answered_before_the_relay_ends(home: Home) -> None:
    legacy = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": {"name": "test", "version": "1"}}
    calls: list[tuple[str, dict[str, Any]]] = [("initialize", legacy), ("tools/list", {}), ("tools/list", {})]
    lines = [
        json.dumps({"jsonrpc": "2.0", "id": at, "method": name, "params": given})
        for at, (name, given) in enumerate(calls)
    ]
    with Daemon(home, "ops"):
        done = home.ctl("--name", "ops", "mcp", stdin="\n".join(lines).encode())
    assert {answer["id"]: "result" in answer for answer in map(json.loads, done.stdout.splitlines())} == {
        0: True,
        1: True,
        2: True,
    }


def test_a_cancelled_request_gets_no_answer_and_ends(home: Home) -> None:
    with Daemon(home, "ops") as daemon, RelayProcess(home, "ops") as relay:
        work_id = daemon.post("/v1/works", to="nobody", text="x")["work_id"]
        relay.request(1, "tools/call", name="work", arguments={"work_id": work_id, "wait": 50})
        relay.request(2, "tools/call", name="peers", arguments={})
        assert relay.receive()["id"] == 2
        relay.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 1}})
        relay.request(3, "tools/call", name="peers", arguments={})
        assert relay.receive()["id"] == 3  # the relay has read the cancellation
        daemon.post(f"/v1/works/{work_id}/cancel")  # would answer the first one
        wait_for(lambda: daemon.state_of(work_id) == "canceled", 20, "the end of the work")
        relay.request(4, "tools/call", name="peers", arguments={})
        assert relay.receive()["id"] == 4


def test_a_call_that_may_have_been_done_is_not_repeated(home: Home) -> None:
    """The work is opened once; the relay does not know, and says so."""
    with Daemon(home, "ops") as daemon, RelayProcess(home, "ops") as relay:
        relay.request(1, "tools/call", name="open_work", arguments={"to": "nobody", "task": "x", "wait": 50})
        wait_for(lambda: daemon.get("/v1/works")["works"], 20, "the work")
        daemon.kill()
        daemon.start()
        assert "look whether it was done" in relay.receive()["error"]["message"]
        assert len(daemon.get("/v1/works")["works"]) == 1


def test_a_host_is_told_when_there_is_no_daemon(tmp_path: Path) -> None:
    with RelayProcess(Home(tmp_path), "ops", "--timeout", "0.2s", options=("--no-start",)) as relay:
        relay.request(1, "server/discover")
        assert "aghd run" in relay.receive()["error"]["message"]
        relay.send(b"not json")
        assert relay.receive()["error"]["code"] == -32700


def test_a_relay_takes_at_most_150_ms_of_processor_time_and_15_mb(tmp_path: Path) -> None:
    """The best of several: other processes disturb both figures."""
    home, figures = Home(tmp_path), []
    with Daemon(home, "ops"):
        for _ in range(3):
            with RelayProcess(home, "ops") as relay:
                relay.open("test")
                process = Path(f"/proc/{relay.process.pid}")
                ticks = process.joinpath("stat").read_text().rpartition(")")[2].split()[11:13]
                seconds = sum(map(int, ticks)) / os.sysconf("SC_CLK_TCK")
                relay.call(1, "peers")  # the threads that wake run from here on
                peak = process.joinpath("status").read_text().split("VmHWM:")[1].split()[0]
                figures.append((seconds, int(peak) / 1024))
    assert min(seconds for seconds, _ in figures) <= 0.15, figures
    assert min(megabytes for _, megabytes in figures) <= 15, figures


def test_waiting_calls_keep_nothing_else_from_passing(home: Home) -> None:
    """Every slot is in use: the next request waits, but not what ends one of them."""
    with Daemon(home, "ops") as daemon, RelayProcess(home, "ops") as relay:
        work_id = daemon.post("/v1/works", to="nobody", text="x")["work_id"]
        for number in range(MAX_IN_FLIGHT):
            relay.request(number, "tools/call", name="work", arguments={"work_id": work_id, "wait": 50})
        relay.request(100, "tools/list")
        relay.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": 0}})
        assert relay.receive(20)["id"] == 100


def test_messages_of_any_shape_are_answered_with_their_id(home: Home) -> None:
    with Daemon(home, "ops"), RelayProcess(home, "ops") as relay:
        relay.send({"jsonrpc": "2.0", "method": "notifications/cancelled", "params": {"requestId": {"a": []}}})
        relay.send({"jsonrpc": "2.0", "id": 1, "method": {"a": 1}})
        assert (answer := relay.receive())["error"]["code"] == -32600
        assert answer["id"] == 1
        relay.request(2, "tools/call", name="x" * 1_000_000, arguments={})  # too long for a header
        assert (answer := relay.receive())["error"]["code"] == -32603
        assert answer["id"] == 2
