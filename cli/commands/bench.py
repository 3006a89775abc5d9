"""`aghctl bench`."""

from __future__ import annotations

import contextlib
import secrets
import sys

from aghbus.cli.app.errors import YES, AnswerIsNo
from aghbus.cli.app.text import fields
from aghbus.cli.context import Context
from aghbus.cli.sandbox.bench import messages, whois, works
from aghbus.cli.sandbox.interruptible import interruptible_sandbox
from aghbus.client.api import Api
from aghbus.client.errors import Unexpected
from aghbus.host.command_line import Argument, Command
from aghbus.protocol.base.annotations import Any
from aghbus.testing.sandbox import Sandbox

TYPE_CHECKING = False
if TYPE_CHECKING:
    from aghbus.testing.peer import Peer

ASKER, WORKER = "bench-ops", "bench-worker"
TIMEOUT = 30.0
"""Seconds for each step of a request."""
_FLAGS = {"nats": "--nats", "nats_creds": "--nats-creds", "durability": "--durability"}


def run(context: Context, values: dict[str, Any]) -> int:
    """Measure between two temporary daemons on a broker. Always cleans up."""
    with interruptible_sandbox() as sandbox:
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
    _draw("starting two daemons")
    worker, ops = (Api(peer.endpoint, TIMEOUT) for peer in _started(sandbox, flags))
    calls, count = int(values["calls"]), int(values["messages"])
    found: dict[str, Any] = {"broker": _broker(ops)}
    found["whois"] = whois(ops, WORKER, calls, _progress("1/3 whois"))
    found["works"] = works(ops, worker, WORKER, calls, _progress("2/3 works"))
    found["messages"] = messages(ops, worker, WORKER, count, _progress("3/3 messages"))
    return found


def _started(sandbox: Sandbox, flags: list[str]) -> tuple[Peer, ...]:
    try:
        return sandbox.peers(WORKER, ASKER, options=flags)
    except Unexpected as error:
        if error.code != "broker_unreachable":
            raise
        hint = "see --nats and --nats-creds; without --nats the daemons bring their own broker"
        raise AnswerIsNo(error.message, hint, code=error.code) from None


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
