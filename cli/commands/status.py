"""`aghctl status`."""

from __future__ import annotations

from functools import partial

from aghbus.cli.app.errors import NO, YES
from aghbus.cli.app.text import State, counted, fields, local_times, painted, safe, size, span, wrapped
from aghbus.cli.context import Context
from aghbus.cli.watch import WATCH, watch
from aghbus.host.command_line import Command
from aghbus.protocol.base.annotations import Any

VOLATILE = ("uptime_s", "now_ms", "counters", "broker", "store", "queues")
"""Members that change without an event."""


def run(context: Context, values: dict[str, Any]) -> int:
    """Show the state of the daemon; 1 when it is not ready."""
    human = partial(_human, context.command("requests"))
    if values["watch"]:
        watch(context, lambda: context.api.get("/v1/status"), human, lambda status: {"": status}, volatile=VOLATILE)
    status = context.api.get("/v1/status")
    context.output.answer(status, human)
    return YES if status["ready"] else NO


def _human(requests: str, status: dict[str, Any]) -> str:
    pairs = [
        ("name", status["name"]),
        ("state", State("ready" if status["ready"] else "not ready")),
        ("peer", f"{status['peer_id']} in {status['workspace_id']}: {', '.join(status['channels'])}"),
        *(("former peer", _former(one)) for one in status.get("former", [])),
        ("process", f"pid {status['pid']}, aghd {status['version']}, up {span(status['uptime_s'])}"),
        ("broker", _broker(status["broker"])),
        ("jetstream", _jetstream(status["broker"].get("jetstream"))),
        ("store", _store(status["store"])),
        ("peers", _counts(status["peers"])),
        ("works", _counts(status["works"])),
        ("inbox", _counts(status["inbox"])),
        (
            "requests",
            f"{counted(status['requests'], 'peer')} to admit: {requests}" if status["requests"] else None,
        ),
        ("inbox use", _inbox_use(status["inbox_use"])),
        ("outbox", _counts(status["outbox"])),
        ("queues", _counts(status["queues"])),
        ("quarantined", status["quarantined"]),
        ("observing", "yes" if status["observe"] else None),
    ]
    problems = [wrapped(f"{painted('problem')}: ", local_times(safe(problem))) for problem in status["problems"]]
    return "\n".join([fields(pairs), *counter_lines(status["counters"]), *problems])


def counter_lines(counters: dict[str, int]) -> list[str]:
    """The counters that are not zero, a line for each part of the daemon."""
    parts: dict[str, dict[str, int]] = {}
    for name, count in sorted(counters.items()):
        part, _, event = name.partition(".")
        if count:
            parts.setdefault(part, {})[event or part] = count
    if not parts:
        return []
    return ["counters", fields((f"  {part}", _counts(events)) for part, events in parts.items())]


def _former(one: dict[str, Any]) -> str:
    """An earlier identity of ours that still has open works."""
    works = f"{counted(one['open_works'], 'open work')}, {counted(one['unsent'], 'message')} not answered"
    return f"{one['peer_id']}: {works}{', NOT USABLE' if one['problem'] else ''}"


def _broker(broker: dict[str, Any]) -> str:
    parts = [f"{broker['state']}{' (embedded)' if broker['embedded'] else ''}", broker["url"]]
    if broker["rtt_ms"] is not None:
        parts.append(f"round trip {broker['rtt_ms']:.1f} ms")
    if broker["reconnects"]:
        parts.append(f"{broker['reconnects']} reconnects")
    if broker["slow_consumer_events"]:
        parts.append(f"SLOW CONSUMER: {broker['slow_consumer_events']} times disconnected by the server")
    if broker["last_error"]:
        parts.append(f"last error: {broker['last_error']}")
    return ", ".join(str(part) for part in parts if part)


def _jetstream(profile: dict[str, Any] | None) -> str | None:
    """Stream and consumers, in that profile only."""
    if profile is None:
        return None
    parts = [f"{'attached to' if profile['attached'] else 'NOT attached to'} {profile['stream']}"]
    if profile["messages"] is not None:
        parts.append(f"{profile['messages']} messages, {size(profile['bytes'])} of {size(profile['max_bytes'])}")
    parts += [
        f"{consumer['channel']}: {consumer['pending'] or 0} pending, {consumer['ack_pending'] or 0} unacknowledged"
        for consumer in profile["consumers"]
    ]
    return ", ".join(parts)


def _store(store: dict[str, Any]) -> str:
    state = "" if store["writable"] else f", NOT WRITABLE: {store['last_error']}"
    return f"{store['path']}, {size(store['bytes'])}, up to #{store['last_seq']}{state}"


def _inbox_use(use: dict[str, Any]) -> str | None:
    if not use["messages"]:
        return None
    most = ", ".join(f"{one['sender']} {one['messages']}" for one in use["senders"])
    held = f"{use['messages']} of {use['capacity']} messages, {size(use['bytes'])} of {size(use['max_bytes'])}"
    return f"{held}; without a key: {use['unverified_messages']}; most from {most}"


def _counts(counts: dict[str, Any]) -> str:
    return ", ".join(f"{name} {count}" for name, count in counts.items()) or "none"


COMMANDS = {
    "status": Command(
        run,
        description=(
            "Show the daemon: its identity, its broker connection, its store, its queues and its problems.\n"
            "Exits 1 if it is not ready: no broker, no live subscription, or a store that cannot be written."
        ),
        examples=["aghctl status", "aghctl --name ops status -o json", "aghctl status --watch"],
        arguments=[WATCH],
    )
}
