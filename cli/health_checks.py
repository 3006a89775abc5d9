"""What `aghctl doctor` can tell from the daemon's own answers."""

from __future__ import annotations

import time

from aghbus.client.errors import ClientError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from aghbus.cli.context import Context

REPLAY_AGE = 300
"""Seconds, specification, section 5 step 3: envelopes of a peer whose clock is off by more are refused."""
SUSPICIOUS_SKEW = 60
"""Seconds between two clocks from which on somebody should look; well inside the replay age."""
RECENT_MESSAGES = 50
"""Messages whose times are compared."""
OLDEST_NOW = 1_735_689_600
"""Unix seconds of 2025-01-01, before this program was written: an earlier clock was never set."""


class Finding:
    """One check: `state` is ok, warn or fail; `hint` says what to do when it is not ok."""

    __slots__ = ("check", "detail", "hint", "state")

    def __init__(self, check: str, state: str, detail: str, hint: str = "") -> None:
        self.check = check
        self.state = state
        self.detail = detail
        self.hint = hint

    def row(self) -> dict[str, str]:
        """As the JSON output shows it."""
        return {"check": self.check, "state": self.state, "detail": self.detail, "hint": self.hint}


def daemon_findings(context: Context) -> list[Finding]:
    """Everything that needs the daemon; one failed check alone when it does not answer."""
    own_clock = _own_clock()
    try:
        status = context.api.get("/v1/status")
        received = context.api.get("/v1/messages", [("last", True), ("limit", RECENT_MESSAGES), ("direction", ["in"])])
    except ClientError as error:
        hint = "see its log, or raise --timeout" if "`aghctl doctor`" in error.hint else error.hint
        return [own_clock, Finding("daemon", "fail", error.message, hint)]
    return [
        own_clock,
        Finding("daemon", "ok", f"{status['name']}, pid {status['pid']}, aghd {status['version']}"),
        _broker(status["broker"]),
        _store(status["store"]),
        _peers(status["peers"]),
        _clocks(received["messages"]),
        _problems(status),
    ]


def _own_clock() -> Finding:
    now = int(time.time())
    if now < OLDEST_NOW:
        return Finding("own clock", "fail", f"it says {time.ctime(now)}", "set the clock: every peer would refuse us")
    return Finding("own clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S %Z"))


def _broker(broker: dict[str, Any]) -> Finding:
    if broker["state"] != "up":
        why = broker["last_error"] or "no reason given"
        return Finding("broker link", "fail", f"{broker['state']}: {why}", "the daemon keeps trying; is the server up?")
    where = f"{broker['url']}{', embedded' if broker['embedded'] else ''}"
    if broker["slow_consumer_events"]:
        detail = f"{where}; the server has ended {broker['slow_consumer_events']} connections that we read too slowly"
        return Finding(
            "broker link", "warn", detail, "is the machine overloaded, or the daemon being stopped at times?"
        )
    return Finding("broker link", "ok", where)


def _store(store: dict[str, Any]) -> Finding:
    if not store["writable"]:
        detail = f"{store['path']} cannot be written: {store['last_error']}"
        return Finding("store", "fail", detail, "is the disk full, or the folder read-only?")
    return Finding("store", "ok", f"{store['path']}, synchronous {store['synchronous']}")


def _peers(peers: dict[str, int]) -> Finding:
    if peers.get("active"):
        return Finding("peers", "ok", f"{peers['active']} active")
    hint = "start another daemon on the same broker, workspace and channel; then `aghctl whois`"
    return Finding("peers", "warn", "no other peer is active", hint)


def _clocks(messages: list[dict[str, Any]]) -> Finding:
    """Compare each message's own time with its arrival: the smallest difference of a sender bounds its clock's error."""
    nearest: dict[str, float] = {}
    for message in messages:
        difference = message["received_ms"] / 1000 - message["envelope"]["ts"]
        before = nearest.get(message["sender"])
        if before is None or abs(difference) < abs(before):
            nearest[message["sender"]] = difference
    if not nearest:
        return Finding("peers' clocks", "ok", "nothing received yet to compare")
    sender, difference = max(nearest.items(), key=lambda pair: abs(pair[1]))
    if abs(difference) < SUSPICIOUS_SKEW:
        return Finding("peers' clocks", "ok", f"within {SUSPICIOUS_SKEW} s of ours")
    side = "behind ours, or its messages come late" if difference > 0 else "ahead of ours"
    hint = f"synchronize both clocks: beyond {REPLAY_AGE} s envelopes are refused"
    return Finding("peers' clocks", "warn", f"{sender} is {abs(difference):.0f} s {side}", hint)


def _problems(status: dict[str, Any]) -> Finding:
    if status["problems"]:
        return Finding("daemon's own view", "warn", "; ".join(status["problems"]), "see `aghctl status`")
    return Finding("daemon's own view", "ok", "no problem reported")
