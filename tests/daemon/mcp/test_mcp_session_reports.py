"""The daemon keeps what relays report of their sessions, in memory and within a bound."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemons import Daemon, Home, HttpError, wait_for


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    root: Path = tmp_path_factory.mktemp("sessions")
    with Daemon(Home(root), "ops") as found:
        yield found


def report(daemon: Daemon, session_id: str, **changes: Any) -> Any:
    body: dict[str, Any] = {
        "host": "x",
        "host_version": "",
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
