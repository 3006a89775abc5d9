"""The checks of `aghctl doctor` on the daemon's own answers."""

from __future__ import annotations

import time

from aghbus.cli.app.text import ago, counted
from aghbus.cli.context import Context
from aghbus.client.errors import ClientError
from aghbus.client.http import quote
from aghbus.protocol.base.annotations import Any

REPLAY_AGE = 300
"""Seconds, specification, section 5 step 3: envelopes of a peer whose clock is off by more are refused."""
SUSPICIOUS_SKEW = 60
"""Seconds between two clocks that are worth a warning; well below the replay age."""
TASK_WRITE = "task.write"
"""The capability that other implementations accept in signed cards only (docs/interop.md)."""
OPEN_STATES = ["submitted", "working", "needs_input"]
"""States of works that have not ended (specification, section 6)."""
RECENT_MESSAGES = 50
"""Messages whose times are compared."""
SENT_MESSAGES = 500
"""Latest own messages of which those without an answer are named."""
UNANSWERED_SECONDS = 30
"""Age of a message that should have been answered."""
NAMED = 5
"""Peers or works that one check names at most."""
OPEN_WORKS = 100
"""Open works, latest change first, among which those that do not move are looked for."""
EXAMINED = 20
"""Works, longest without a change first, of which the daemon is asked why they do not move."""
OLDEST_NOW = 1_735_689_600
"""Unix seconds of 2025-01-01, before this program was written: a clock that shows less was never set."""


def check_row(check: str, state: str, detail: str, hint: str = "") -> dict[str, str]:
    """One check, as the JSON output shows it: `state` is ok, warn or fail; `hint` is the next step if it is not ok."""
    return {"check": check, "state": state, "detail": detail, "hint": hint}


def check_daemon(context: Context) -> list[dict[str, str]]:
    """The checks that need the daemon; only one, which fails, if it does not answer."""
    own_clock = _own_clock()
    try:
        status = context.api.get("/v1/status")
        received = context.api.get("/v1/messages", [("last", True), ("limit", RECENT_MESSAGES), ("direction", ["in"])])
        sent = context.api.get("/v1/messages", [("last", True), ("limit", SENT_MESSAGES), ("direction", ["out"])])
        known = context.api.get("/v1/peers", [("all", True)])["peers"]
        open_works = context.api.get("/v1/works", [("state", OPEN_STATES), ("limit", OPEN_WORKS)])["works"]
    except ClientError as error:
        hint = "see its log, or raise --timeout" if "`aghctl doctor`" in error.hint else error.hint
        return [own_clock, check_row("daemon", "fail", error.message, hint)]
    return [
        own_clock,
        check_row("daemon", "ok", f"{status['name']}, pid {status['pid']}, aghd {status['version']}"),
        _broker(status["broker"]),
        _store(status["store"]),
        _peers(known),
        *_own_card(known),
        _unanswered(sent["messages"], known),
        *_works(context, open_works),
        _clocks(received["messages"]),
        _requests(status["requests"]),
        _problems(status),
    ]


def _own_clock() -> dict[str, str]:
    now = int(time.time())
    if now < OLDEST_NOW:
        return check_row(
            "own clock", "fail", f"it says {time.ctime(now)}", "set the clock: every peer would refuse our messages"
        )
    return check_row("own clock", "ok", time.strftime("%Y-%m-%d %H:%M:%S %Z"))


def _broker(broker: dict[str, Any]) -> dict[str, str]:
    if broker["state"] != "up":
        why = broker["last_error"] or "no reason given"
        return check_row(
            "broker link", "fail", f"{broker['state']}: {why}", "the daemon keeps trying; is the server up?"
        )
    where = f"{broker['url']}{', embedded' if broker['embedded'] else ''}"
    if broker["slow_consumer_events"]:
        detail = f"{where}; the server has closed {broker['slow_consumer_events']} connections that this daemon read too slowly"
        return check_row(
            "broker link", "warn", detail, "is the machine overloaded, or the daemon being stopped at times?"
        )
    return check_row("broker link", "ok", where)


def _store(store: dict[str, Any]) -> dict[str, str]:
    if not store["writable"]:
        detail = f"{store['path']} cannot be written: {store['last_error']}"
        return check_row("store", "fail", detail, "is the disk full, or the folder read-only?")
    return check_row("store", "ok", f"{store['path']}, synchronous {store['synchronous']}")


def _peers(known: list[dict[str, Any]]) -> dict[str, str]:
    active = sum(peer["presence"] == "active" for peer in known)
    gone = [peer for peer in known if peer["presence"] == "inactive"]
    names = ", ".join(f"{peer['peer_id']} ({ago(peer['last_seen_ms'])})" for peer in gone[:NAMED])
    more = f" and {len(gone) - NAMED} more" if len(gone) > NAMED else ""
    detail = f"; not seen for a while: {names}{more}" if gone else ""
    if active:
        return check_row("peers", "ok", f"{active} active{detail}")
    hint = "start another daemon on the same broker, workspace and channel; then `aghctl whois`"
    return check_row("peers", "warn", f"no other peer is active{detail}", hint)


def _unanswered(messages: list[dict[str, Any]], known: list[dict[str, Any]]) -> dict[str, str]:
    """Messages to peers that are not there, and messages in works that a present peer has not answered; but for openings."""
    presence = {peer["peer_id"]: peer["presence"] for peer in known}
    before_ms = (time.time() - UNANSWERED_SECONDS) * 1000
    waiting: dict[str, int] = {}
    for message in messages:
        to = message["to"]
        if _is_pending(message, before_ms) and (message["work_id"] or presence.get(to) != "active"):
            waiting[to] = waiting.get(to, 0) + 1
    if not waiting:
        return check_row("unanswered messages", "ok", "none of the latest messages")
    shown = [f"{counted(number, 'message')} to {to} ({_seen(presence.get(to))})" for to, number in waiting.items()]
    more = f" and to {len(shown) - NAMED} more peers" if len(shown) > NAMED else ""
    hint = "compare the names with `aghctl peers --all`; a message is tried until it expires, `messages show` says until when"
    return check_row("unanswered messages", "warn", ", ".join(shown[:NAMED]) + more, hint)


def _works(context: Context, works: list[dict[str, Any]]) -> list[dict[str, str]]:
    """A warning for each of the works that do not move, those first that have not for the longest time."""
    before_ms = (time.time() - UNANSWERED_SECONDS) * 1000
    still = [work for work in reversed(works) if work["updated_ms"] < before_ms and work["role"] != "observer"]
    found = [(work, why) for work in still[:EXAMINED] if (why := _reason(context, work))]
    rows = [
        check_row(f"work {work['work_id']}", "warn", f"{_with(work)}: {_sentence(why)}", why["hint"])
        for work, why in found[:NAMED]
    ]
    unnamed = len(found) - len(rows) + len(still[EXAMINED:])
    if unnamed:
        hint = "`aghctl work list --state submitted` lists works, and `work show` says why one does not move"
        rows.append(check_row("works", "warn", f"{unnamed} more have not changed for {UNANSWERED_SECONDS} s", hint))
    return rows or [check_row("works", "ok", f"{counted(len(works), 'open work')}, none needs attention")]


def _sentence(why: dict[str, Any]) -> str:
    return f"{why['text']}: “{why['said']}”" if why["said"] else str(why["text"])


def _with(work: dict[str, Any]) -> str:
    return f"for {work['target']}" if work["role"] == "initiator" else f"from {work['initiator']}"


def _reason(context: Context, work: dict[str, Any]) -> dict[str, Any] | None:
    """Why a work does not move; None if somebody has it, or it has ended meanwhile."""
    from aghbus.protocol.api.wait_reason import MOVING

    query = [("channel", work["channel"]), ("before", "1")]
    why: dict[str, Any] | None = context.api.get(f"/v1/works/{quote(work['work_id'])}", query)["why"]
    return None if why is None or why["code"] in MOVING else why


def _is_pending(message: dict[str, Any], before_ms: float) -> bool:
    answerable = message["to"] is not None and message["kind"] in ("say", "capability", "trace")
    answerable = answerable and message["outcome"] != "opened"  # `_works` says why nobody has taken it
    return answerable and message["delivery"] in ("queued", "published") and message["received_ms"] < before_ms


def _seen(presence: str | None) -> str:
    return (
        "present" if presence == "active" else "no such peer is known" if presence is None else "not seen for a while"
    )


def _own_card(peers: list[dict[str, Any]]) -> list[dict[str, str]]:
    """A warning if other implementations refuse our greets for a capability in them; also for one of `aghd run --capability`."""
    unsigned = (peer for peer in peers if peer["presence"] == "local" and peer["trust"] != "verified")
    if not any(TASK_WRITE in peer["card"]["capabilities"] for peer in unsigned):
        return []
    detail = f"capability {TASK_WRITE} is announced without a signature: other implementations refuse every greet"
    return [check_row("own card", "warn", detail, "remove it, or create a key with `aghctl key generate`")]


def _clocks(messages: list[dict[str, Any]]) -> dict[str, str]:
    """Compare each message's own time with its arrival: the smallest difference of a sender bounds the error of its clock."""
    nearest: dict[str, float] = {}
    for message in messages:
        if message.get("damaged"):
            continue
        difference = message["received_ms"] / 1000 - message["envelope"]["ts"]
        before = nearest.get(message["sender"])
        if before is None or abs(difference) < abs(before):
            nearest[message["sender"]] = difference
    if not nearest:
        return check_row("peers' clocks", "ok", "nothing received yet to compare")
    sender, difference = max(nearest.items(), key=lambda pair: abs(pair[1]))
    if abs(difference) < SUSPICIOUS_SKEW:
        return check_row("peers' clocks", "ok", f"within {SUSPICIOUS_SKEW} s of ours")
    side = "behind ours, or its messages arrive late" if difference > 0 else "ahead of ours"
    hint = f"synchronize both clocks: beyond {REPLAY_AGE} s envelopes are refused"
    return check_row("peers' clocks", "warn", f"{sender} is {abs(difference):.0f} s {side}", hint)


def _requests(waiting: int) -> dict[str, str]:
    if waiting:
        hint = "see `aghctl requests`, then `aghctl trust admit` or `refuse`"
        return check_row("requests", "warn", f"{counted(waiting, 'peer')} to admit", hint)
    return check_row("requests", "ok", "no peer waits for admission")


def _problems(status: dict[str, Any]) -> dict[str, str]:
    if status["problems"]:
        return check_row("daemon's own view", "warn", "; ".join(status["problems"]), "see `aghctl status`")
    return check_row("daemon's own view", "ok", "no problem reported")
