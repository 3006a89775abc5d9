"""`aghctl bridge synadia serve` and `join`: clients and agents of Synadia's protocol, in a process of their own."""

from __future__ import annotations

from aghbus.cli.app.arguments import channel, lifetime, peer, positive, seconds
from aghbus.cli.app.errors import INTERRUPTED, YES
from aghbus.cli.app.options import METRICS
from aghbus.cli.context import Context
from aghbus.client.errors import UsageError
from aghbus.host.command_line import Argument, Command, nonempty
from aghbus.protocol.base.annotations import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Awaitable, Callable

    from aghbus.gateways.synadia.broker import Broker
    from aghbus.gateways.synadia.process import Bridge
    from aghbus.protocol.api.status import StatusResponse

SERVED_AT_ONCE = 16
"""Prompts of one agent that are carried out at a time."""


def run_serve(context: Context, values: dict[str, Any]) -> int:
    """Serve until a signal."""
    status = _checked(context)
    from aghbus.gateways.synadia.serve import Serving
    from aghbus.gateways.synadia.served_prompt import ServeOptions

    options = ServeOptions(
        peers=tuple(values["peer"]),
        capabilities=tuple(values["capability"]),
        owner=values["owner"],
        channel=values["channel"],
        concurrency=values["concurrency"],
        cancel_when_gone=values["on_caller_gone"] == "cancel",
        answer_within=values["answer_within"],
        keepalive=values["keepalive"],
        progress=values["progress"] or "response",
        signed_only=values["signed_only"],
    )
    return _run(context, values, _broker(context, values, status), lambda bridge: Serving(bridge, options).run())


def run_join(context: Context, values: dict[str, Any]) -> int:
    """Give works until a signal."""
    routes = _routes(values["agent"], values["as"])
    status = _checked(context)
    from aghbus.client.work.folders import open_folder
    from aghbus.client.work.journal import Journal
    from aghbus.gateways.base.left_works import SYNADIA
    from aghbus.gateways.synadia.join import Joining
    from aghbus.gateways.synadia.joined_job import JoinOptions

    options = JoinOptions(
        routes=routes,
        every_agent=not routes,
        concurrency=values["concurrency"],
        per_agent=values["per_agent"],
        others=values["others"],
        resend=values["resend"],
        time_limit=values["time_limit"],
        idle_timeout=values["idle_timeout"],
        answer_within=values["answer_within"],
        drain=values["drain"],
    )
    journal = Journal(open_folder(status.name, context.env, SYNADIA.kind))
    broker = _broker(context, values, status)
    return _run(context, values, broker, lambda bridge: Joining(bridge, options, journal).run())


def _routes(agents: list[Any], capability: str | None) -> dict[str, Any]:
    """The agents of each capability."""
    if capability is not None and len(agents) != 1:
        raise UsageError("--as goes with one --agent", "for other agents run a bridge of their own")
    return {capability or one.capability: one for one in agents}


def _selector(text: str) -> Any:
    from aghbus.protocol.formats.synadia.names import selector

    return selector(text)


def _capability(text: str) -> str:
    words = text.split(".")
    if len(words) < 2 or not all(
        word and word.replace("_", "").replace("-", "").isalnum() and word.isascii() for word in words
    ):
        raise ValueError("must be words of letters, digits, '_' and '-' with dots between them, such as code.review")
    return text


def _checked(context: Context) -> StatusResponse:
    """The status of the daemon. Raises UsageError when the libraries are missing."""
    import msgspec

    from aghbus.gateways.synadia import sdk
    from aghbus.protocol.api.status import StatusResponse

    sdk.check()
    return msgspec.convert(context.api.get("/v1/status"), StatusResponse)


def _broker(context: Context, values: dict[str, Any], status: StatusResponse) -> Broker:
    from aghbus.gateways.synadia import broker

    if values["nats"]:
        return broker.named(values["nats"], values["creds"], sign=values["sign"])
    return broker.of_daemon(status, context.env, context.places.broker_dir, values["creds"], sign=values["sign"])


def _run(
    context: Context, values: dict[str, Any], broker: Broker, direction: Callable[[Bridge], Awaitable[None]]
) -> int:
    import signal

    from aghbus.cli.worker.reporter import Reporter
    from aghbus.gateways.synadia.process import Process

    process = Process(context.api.endpoint, broker, values["metrics"], direction)
    reporter = Reporter(context.output, process.stop)
    process.run(reporter.emit, context.timeout)
    if reporter.lost:
        raise BrokenPipeError
    return INTERRUPTED if process.signal == signal.SIGINT else YES


CONNECTION = (
    Argument("--nats", metavar="URL", type=nonempty, help="another NATS server (default: the broker of the daemon)"),
    Argument(
        "--creds", metavar="FILE", type=nonempty, help="credentials, or an nkey seed (default: those of the daemon)"
    ),
    Argument(
        "--sign", action="store_true", help="sign with the key of the credentials: the sender identity of the protocol"
    ),
    METRICS,
)

COMMANDS = {
    "bridge synadia serve": Command(
        run_serve,
        description=(
            "Let clients of Synadia's agent protocol find and prompt our peers, until a signal. Each peer or capability is one\n"
            "agent: a prompt opens a work, and its progress, questions, artifacts and end are the response. The work is in the\n"
            'store of the daemon, and goes on when the caller or this process ends. Needs: pip install "aghbus[synadia]".'
        ),
        examples=[
            "aghctl --name ops bridge synadia serve",
            "aghctl --name ops bridge synadia serve --capability test.run --on-caller-gone cancel",
            "aghctl --name ops bridge synadia serve --nats tls://nats.example.com --creds bridge.creds --sign",
        ],
        arguments=[
            Argument(
                "--peer", metavar="PEER", action="append", type=peer, help="serve this peer (default: all present)"
            ),
            Argument(
                "--capability",
                metavar="ID",
                action="append",
                type=nonempty,
                help="serve this capability: the daemon chooses a peer that has it",
            ),
            Argument("--owner", metavar="NAME", type=nonempty, help="whose agents they are (default: the workspace)"),
            Argument("--channel", type=channel, help="channel of the works (default: the daemon's first)"),
            Argument(
                "--concurrency",
                metavar="N",
                type=positive,
                default=SERVED_AT_ONCE,
                help=f"prompts of one agent at a time (default {SERVED_AT_ONCE})",
            ),
            Argument(
                "--on-caller-gone",
                choices=("keep", "cancel"),
                help="a work whose caller has gone away (default keep: it goes on)",
            ),
            Argument(
                "--answer-within",
                metavar="TIME",
                type=lifetime,
                default=600.0,
                help="how long a question waits for the caller (default 10m)",
            ),
            Argument(
                "--keepalive",
                metavar="TIME",
                type=lifetime,
                default=15.0,
                help="interval of signs of life, and of looks whether the caller is there (default 15s)",
            ),
            Argument(
                "--progress",
                choices=("response", "status"),
                help="kind of chunk for progress; libraries drop unknown status (default response)",
            ),
            Argument("--signed-only", action="store_true", help="refuse prompts without a verified signature"),
            *CONNECTION,
        ],
    ),
    "bridge synadia join": Command(
        run_join,
        description=(
            "Give works to agents of Synadia's agent protocol, until a signal. Those that are present are capabilities of the\n"
            "daemon, called synadia.AGENT: a work for one becomes a prompt, and the response its progress, questions, artifacts\n"
            "and end. A work is prompted once: if this process dies meanwhile, it fails, or with --resend the agent is prompted\n"
            'again. Needs: pip install "aghbus[synadia]".'
        ),
        examples=[
            "aghctl --name agents bridge synadia join",
            "aghctl --name agents bridge synadia join --agent claude-code/alice --as code.review",
            "aghctl --name agents bridge synadia join --agent codex --agent hermes/ops/nightly --resend",
        ],
        arguments=[
            Argument(
                "--agent",
                metavar="AGENT",
                action="append",
                type=_selector,
                help="AGENT, AGENT/OWNER or AGENT/OWNER/SESSION, as the capability synadia.AGENT… (default: every AGENT)",
            ),
            Argument("--as", metavar="ID", type=_capability, help="the capability of the only --agent"),
            Argument("--concurrency", metavar="N", type=positive, default=8, help="works at a time (default 8)"),
            Argument(
                "--per-agent", metavar="N", type=positive, default=1, help="works of one agent at a time (default 1)"
            ),
            Argument("--others", action="store_true", help="also take works of peers that were not admitted"),
            Argument("--resend", action="store_true", help="after a restart, prompt the agent of a work again"),
            Argument(
                "--time-limit",
                metavar="TIME",
                type=lifetime,
                default=1800.0,
                help="fail a work after this long, without the time of its questions (default 30m)",
            ),
            Argument(
                "--idle-timeout",
                metavar="TIME",
                type=lifetime,
                default=90.0,
                help="fail it when the agent sends nothing for this long (default 90s)",
            ),
            Argument(
                "--answer-within",
                metavar="TIME",
                type=lifetime,
                default=86400.0,
                help="how long a question waits for the initiator (default 1d)",
            ),
            Argument(
                "--drain",
                metavar="TIME",
                type=seconds,
                default=30.0,
                help="when stopping, wait this long for works that run (default 30s)",
            ),
            *CONNECTION,
        ],
    ),
}
