"""The daemon keeps what relays report of their sessions, in memory and within a bound."""

import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemons import Daemon, Home, HttpError, wait_for
from tests.support.mcp_client import McpClient


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    root: Path = tmp_path_factory.mktemp("sessions")
    with Daemon(Home(root), "ops") as found:
        yield found


@pytest.fixture(scope="module")
def peer(daemon: Daemon) -> Iterator[Daemon]:
    with Daemon(daemon.home, "peer") as found:
        wait_for(lambda: daemon.knows("peer") and found.knows("ops"), 30, "presence")
        yield found


def report(daemon: Daemon, session_id: str, **changes: Any) -> Any:
    body: dict[str, Any] = {
        "host": "x",
        "host_version": "",
        "host_pid": 1,
        "open": True,
        "called_ms": None,
        "wakes_by": [],
        "held_back": [],
        "notice": None,
        "expires_in": 60.0,
    }
    return daemon.request("PUT", f"/v1/mcp/sessions/{session_id}", {**body, **changes})


def ids(daemon: Daemon) -> list[str]:
    return [session["id"] for session in daemon.get("/v1/mcp/sessions")["sessions"]]


def test_report_replaces_previous_and_zero_expiry_removes_session(daemon: Daemon) -> None:
    first = report(daemon, "a")
    notice = {"state": "noticed", "how": "stop-hook", "messages": 1, "through": 1, "attempts": 1, "changed_ms": 1}
    second = report(daemon, "a", wakes_by=["stop-hook"], notice=notice)
    assert second["started_ms"] == first["started_ms"]
    assert daemon.get("/v1/mcp/sessions")["sessions"] == [second]
    report(daemon, "a", expires_in=0)
    assert ids(daemon) == []


def test_a_session_that_is_not_reported_again_expires(daemon: Daemon) -> None:
    report(daemon, "brief", expires_in=0.2)
    wait_for(lambda: ids(daemon) == [], 10, "the end of the session")


def fetch(daemon: Daemon, peer: Daemon, session: str) -> dict[str, Any]:
    """A message, which the session fetches."""
    before = daemon.get("/v1/inbox")["counts"]["ready"]
    peer.post("/v1/messages", kind="say", body={"text": "x"}, to="ops", thread_id=f"thread_{session}")
    wait_for(lambda: daemon.get("/v1/inbox")["counts"]["ready"] > before, 20, "the message")
    client = McpClient(daemon.socket_path, relay=session)
    (found,) = client.tool("inbox", limit=1)["messages"]
    assert isinstance(found, dict)
    return found


def item(daemon: Daemon, seq: int) -> dict[str, Any]:
    (found,) = [each for each in daemon.get("/v1/inbox")["items"] if each["seq"] == seq]
    assert isinstance(found, dict)
    return found


def test_leases_of_a_session_are_renewed_by_its_reports_and_go_back_at_its_end(daemon: Daemon, peer: Daemon) -> None:
    message, other = fetch(daemon, peer, "first"), fetch(daemon, peer, "second")
    report(daemon, "first", expires_in=3600.0)
    assert item(daemon, message["seq"])["lease_until_ms"] > (time.time() + 3000) * 1000
    report(daemon, "first", expires_in=0)
    wait_for(lambda: item(daemon, message["seq"])["state"] == "ready", 10, "the message")
    assert item(daemon, message["seq"])["attempts"] == 0
    assert item(daemon, other["seq"])["state"] == "leased"
    report(daemon, "second", expires_in=0)


def test_leases_of_a_closed_session_go_back_once_its_thread_has_come_to_rest(daemon: Daemon, peer: Daemon) -> None:
    message, now_ms = fetch(daemon, peer, "closed"), int(time.time() * 1000)
    report(daemon, "closed", open=False, called_ms=now_ms)
    assert item(daemon, message["seq"])["state"] == "leased"
    report(daemon, "closed", open=False, called_ms=now_ms - 200_000)
    wait_for(lambda: item(daemon, message["seq"])["state"] == "ready", 10, "the message")


def test_a_lease_of_more_than_an_hour_is_not_renewed(daemon: Daemon, peer: Daemon) -> None:
    message, long_ago = fetch(daemon, peer, "forgetful"), int(time.time() * 1000) - 3_700_000
    report(daemon, "forgetful", expires_in=0)
    wait_for(lambda: item(daemon, message["seq"])["state"] == "ready", 10, "the message")
    lease = f"lease_forgetful_{long_ago:x}_{'0' * 16}"
    taken = daemon.post(f"/v1/inbox/{message['seq']}/lease", lease=lease, visibility=60)
    report(daemon, "forgetful")
    assert item(daemon, message["seq"])["lease_until_ms"] == taken["lease_until_ms"]


def test_a_session_id_that_is_none_is_refused(daemon: Daemon) -> None:
    refused = McpClient(daemon.socket_path, relay="a_b").request("tools/list")
    assert "Aghbus-Session" in refused.error["message"]


def test_beyond_the_bound_the_oldest_report_is_dropped(daemon: Daemon) -> None:
    for number in range(256):
        report(daemon, f"s{number}")
    report(daemon, "s0")
    report(daemon, "new")
    found = ids(daemon)
    assert (len(found), "s0" in found, "s1" in found, "new" in found) == (256, True, False, True)


@pytest.mark.parametrize(
    "changes", [{"wakes_by": ["shouting"]}, {"host": "x" * 129}, {"expires_in": 3601}, {"text": "x"}]
)
def test_a_report_that_is_not_one_is_refused(daemon: Daemon, changes: dict[str, Any]) -> None:
    with pytest.raises(HttpError) as refused:
        report(daemon, "bad", **changes)
    assert refused.value.status == 400
