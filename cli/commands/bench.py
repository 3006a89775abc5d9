"""`aghctl bench`."""

from __future__ import annotations

import contextlib
import os
import secrets
import sys
import time

from aghbus.cli.app.errors import YES, AnswerIsNo
from aghbus.cli.app.text import fields
from aghbus.cli.context import Context
from aghbus.cli.sandbox.bench import messages, whois, works
from aghbus.cli.sandbox.sandbox import START_SECONDS, Sandbox, eventually
from aghbus.client.api import Api
from aghbus.client.errors import ClientError
from aghbus.host.command_line import Argument, Command
from aghbus.protocol.base.annotations import Any

ASKER, WORKER = "bench-ops", "bench-worker"
BROKER_SECONDS = 5.0
"""Seconds for a given broker to accept a daemon, after the first failed attempt: a wrong address must not take half a minute."""
_FLAGS = {"nats": "--nats", "nats_creds": "--nats-creds", "durability": "--durability"}


def run(context: Context, values: dict[str, Any]) -> int:
    """Measure between two temporary daemons on a broker. Always cleans up."""
    with Sandbox(os.environ) as sandbox:
        try:
            answer = _measure(sandbox, values)
        finally:
            _draw("")
    context.output.answer(answer, _human)
    return YES


def _measure(sandbox: Sandbox, values: dict[str, Any]) -> dict[str, Any]:
    flags = [word for name, flag in _FLAGS.items() if values[name] for word in (flag, str(values[name]))]
    # Its own workspace: no other peer of the broker receives these messages.
    flags += ["--workspace", f"bench_{secrets.token_hex(4)}", "--trust-admit", "all"]
    flags += ["--inbox-capacity", "1000000", "--inbox-max-bytes", "1GiB", "--store-retention-size", "2GiB"]
    worker, ops = (sandbox.start(name, *flags) for name in (WORKER, ASKER))
    _draw("starting two daemons")
    if values["nats"]:
        _until_connected(ops)
    for api in (worker, ops):
        sandbox.until_ready(api)
    calls, count = int(values["calls"]), int(values["messages"])
    found: dict[str, Any] = {"broker": _broker(ops)}
    found["whois"] = whois(ops, WORKER, calls, _progress("1/3 whois"))
    found["works"] = works(ops, worker, WORKER, calls, _progress("2/3 works"))
    found["messages"] = messages(ops, worker, WORKER, count, _progress("3/3 messages"))
    return found


def _until_connected(api: Api) -> None:
    """Wait until the daemon reports its connection to the measured broker. Raises AnswerIsNo with the connection's error
    if that persists; `until_ready` reports a daemon that does not start at all."""
    failed_at = 0.0
    why = ""

    def settled() -> bool:
        nonlocal failed_at, why
        try:
            broker = api.get("/v1/status")["broker"]
        except ClientError:
            return False
        why = broker["last_error"] or ""
        failed_at = failed_at or (time.monotonic() if why else 0.0)
        return broker["state"] == "up" or bool(failed_at and time.monotonic() - failed_at > BROKER_SECONDS)

    if eventually(settled, START_SECONDS) and why and api.get("/v1/status")["broker"]["state"] != "up":
        hint = "see --nats and --nats-creds; without --nats the daemons bring their own broker"
        raise AnswerIsNo(f"the broker cannot be used: {why}", hint, code="broker_unreachable")


def _broker(ops: Api) -> dict[str, Any]:
    broker = ops.get("/v1/status")["broker"]
    return {name: broker[name] for name in ("url", "server", "embedded", "rtt_ms")}


def _progress(title: str) -> Any:
    def step(number: int, count: int) -> None:
        if number % max(1, count // 100) == 0:
            _draw(f"{title}: {100 * number // count} %")

    return step


def _draw(text: str) -> None:
    """One line on standard error that the next one replaces; nothing if standard error is not a terminal."""
    if sys.stderr.isatty():
        with contextlib.suppress(OSError):  # the terminal was closed
            sys.stderr.write(f"\r\033[K{text}")
            sys.stderr.flush()


def _human(found: dict[str, Any]) -> str:
    def span(part: dict[str, Any]) -> str:
        return f"p50 {part['p50_ms']:.2f} ms, p99 {part['p99_ms']:.2f} ms ({part['count']})"

    broker, rate = found["broker"], found["messages"]
    whose = "a temporary broker" if broker["embedded"] else f"{broker['url']}, {broker['server']}"
    return fields(
        [
            ("broker", whose),
            ("whois", span(found["whois"])),
            ("work, opened to completed", f"{span(found['works'])}, {found['works']['per_second']:.0f} a second"),
            ("messages, request to delivered", f"{rate['per_second']:.0f} a second ({rate['count']})"),
        ]
    )


def _count(text: str) -> int:
    """ValueError names the rule."""
    if not text.isascii() or not text.isdigit() or not 1 <= int(text) <= 1_000_000:
        raise ValueError("must be a whole number from 1 to 1000000")
    return int(text)


COMMANDS = {
    "bench": Command(
        run,
        description=(
            "Measure two temporary daemons on your broker (without --nats: on one of their own), in a workspace of\n"
            "their own: whois, works from opened to completed, and messages from request to delivered, all of them durable.\n"
            "docs/performance.md has figures beside their floors."
        ),
        arguments=[
            Argument("--nats", metavar="URL", help="measure on this NATS server"),
            Argument("--nats-creds", metavar="FILE", help="credentials file for it"),
            Argument("--durability", choices=("core", "jetstream"), help="as `aghd run --durability`"),
            Argument("--calls", metavar="N", type=_count, default=100, help="sequential whois calls, and works (100)"),
            Argument("--messages", metavar="N", type=_count, default=2000, help="messages, 16 at a time (2000)"),
        ],
        examples=["aghctl bench", "aghctl bench --nats nats://127.0.0.1:4222 -o json"],
    )
}
