"""`aghctl a2a join`: an A2A agent becomes a peer, through a daemon of its own."""

from __future__ import annotations

import os

from aghbus.cli.app.arguments import positive
from aghbus.cli.app.errors import INTERRUPTED, YES
from aghbus.cli.app.options import METRICS
from aghbus.cli.context import Context
from aghbus.client.errors import UsageError
from aghbus.client.work.folders import open_folder
from aghbus.host.command_line import Argument, Command
from aghbus.protocol.base.annotations import Any

BINDINGS = ("jsonrpc", "http-json", "grpc")


def run(context: Context, values: dict[str, Any]) -> int:
    """Join until a signal."""
    import asyncio
    import signal

    try:
        from aghbus.gateways.a2a.join.agent import Access
        from aghbus.gateways.a2a.join.joiner import Joiner, JoinOptions
        from aghbus.gateways.base.left_works import A2A
    except ImportError as error:
        raise UsageError(
            f"a2a needs a library that is not installed: {error.name}", "pip install 'aghbus[a2a]'"
        ) from None
    from aghbus.cli.worker.reporter import Reporter

    _check(values)
    api = context.api
    name = str(api.get("/v1/status")["name"])
    folder = open_folder(name, context.env, A2A.kind)
    access = Access(
        bearer_file=_readable(values, "bearer_file"),
        header_file=_readable(values, "header_file"),
        client_cert=_readable(values, "client_cert"),
        client_key=_readable(values, "client_key"),
        ca=_readable(values, "ca"),
        allow_http=values["allow_http"],
        hosts=tuple(values["allow_host"]),
    )
    options = JoinOptions(
        url=values["url"],
        access=access,
        capabilities=tuple(values["capability"]),
        concurrency=values["concurrency"],
        others=values["accept_others"],
        binding=values["binding"],
        card_key=values["card_key"],
        accept_card=values["accept_card"],
        resend=values["resend"],
        metrics=values["metrics"],
    )
    reporter = Reporter(context.output, lambda: joiner.stop(None))
    joiner = Joiner(options, api.endpoint, api.timeout, folder, reporter.emit, context.command)
    asyncio.run(joiner.run())
    if reporter.lost:
        raise BrokenPipeError
    return INTERRUPTED if joiner.signal == signal.SIGINT else YES


def _check(values: dict[str, Any]) -> None:
    url = values["url"]
    if not url.startswith(("https://", "http://")):
        raise UsageError(
            f"URL: {url} must begin with https:// (or http://)", "give the base URL of the agent, or of its card"
        )
    if "@" in url.split("/")[2]:
        raise UsageError("URL: must not have a user or password: others see the command line", "use --header-file")
    if values["client_key"] and not values["client_cert"]:
        raise UsageError("--client-key needs --client-cert")


def _readable(values: dict[str, Any], name: str) -> str | None:
    """The path of an option, which must be a file that we can read. Raises UsageError."""
    path: str | None = values[name]
    if path is not None and not os.access(path, os.R_OK):
        raise UsageError(
            f"--{name.replace('_', '-')}: {path} cannot be read", "is it there, and readable for this user?"
        )
    return path


COMMANDS = {
    "a2a join": Command(
        run,
        description=(
            "Make an A2A agent a peer: each work for this daemon becomes one task of the agent; its progress, questions,\n"
            "result and artifacts come back. The skills of its card become capabilities of the daemon. Give the agent a\n"
            "daemon of its own. What is in a work leaves for the agent. See docs/adapters/a2a.md."
        ),
        examples=[
            "aghctl --name reviewer a2a join https://agent.example.com --bearer-file token",
            "aghctl --name reviewer a2a join https://agent.example.com --capability text.review --card-key agent.pem",
        ],
        arguments=[
            Argument("url", help="base URL of the agent, or URL of its card (.json)"),
            Argument(
                "--capability",
                metavar="ID",
                action="append",
                help="serve this skill only, or the whole agent under this id",
            ),
            Argument("--concurrency", metavar="N", type=positive, default=4, help="tasks at a time (default 4)"),
            Argument("--accept-others", action="store_true", help="also work of peers that were not admitted"),
            Argument("--bearer-file", metavar="FILE", help="a bearer token for the agent"),
            Argument("--header-file", metavar="FILE", help="headers for the agent, one `Name: value` a line"),
            Argument("--client-cert", metavar="FILE", help="our certificate for the agent (PEM)"),
            Argument("--client-key", metavar="FILE", help="its private key, unless that is in the same file"),
            Argument("--ca", metavar="FILE", help="certificates of authorities, in place of the system's (PEM)"),
            Argument("--allow-http", action="store_true", help="allow an agent on another host without TLS"),
            Argument(
                "--allow-host",
                metavar="HOST",
                action="append",
                help="another host that the card may name for its interfaces",
            ),
            Argument("--binding", choices=BINDINGS, help="of the card's interfaces, use this one (default: its first)"),
            Argument(
                "--card-key",
                metavar="FILE",
                help="public keys that must have signed the card: PEM, JWK (set), or an https URL",
            ),
            Argument("--accept-card", action="store_true", help="accept the card as it is now, although it changed"),
            METRICS,
            Argument(
                "--resend",
                action="store_true",
                help="send a work again when it is not known whether the agent has got it: for agents that drop repetitions",
            ),
        ],
    )
}
