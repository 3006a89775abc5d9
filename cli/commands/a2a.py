"""`aghctl a2a serve`: A2A clients reach peers of the bus."""

from __future__ import annotations

from aghbus.cli.app.arguments import peer
from aghbus.cli.app.errors import INTERRUPTED, YES
from aghbus.cli.app.text import safe
from aghbus.cli.context import Context
from aghbus.client.errors import UsageError
from aghbus.host.command_line import Argument, Command
from aghbus.protocol.base.annotations import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from aghbus.gateways.a2a.bus import Agent

INSTALL = 'pip install "aghbus[a2a]"'


def run(context: Context, values: dict[str, Any]) -> int:
    """Serve until a signal."""
    import signal

    try:
        from aghbus.gateways.a2a.options import Options
        from aghbus.gateways.a2a.server import run as run_server
    except ImportError as error:
        raise UsageError(f"a2a serve needs libraries that are not installed: {error.name}", INSTALL) from None
    from aghbus.client.work.clients import AsyncClient

    host, port = values["listen"]
    status = context.api.get("/v1/status")
    options = Options(
        host=host,
        port=port,
        agents=_agents(values["peer"], values["capability"]),
        state=_state_folder(context, str(status["name"])),
        url=values["url"],
    )
    client = AsyncClient(context.api.endpoint, timeout=context.timeout)
    number = run_server(options, client, lambda event: context.output.event(event, _human))
    return INTERRUPTED if number == signal.SIGINT else YES


def _state_folder(context: Context, name: str) -> str:
    from aghbus.client.locate import locations

    return f"{locations(name, context.env).state_dir}/a2a"


def _agents(peers: list[str], capabilities: list[str]) -> tuple[Agent, ...]:
    """What is served. Raises UsageError."""
    import re

    from aghbus.gateways.a2a.bus import Agent

    agents = [*(Agent(name, peer=name) for name in peers), *(Agent(name, capability=name) for name in capabilities)]
    names = [agent.name for agent in agents]
    if not agents:
        raise UsageError("--peer or --capability is needed", "say which peers or capabilities A2A clients may reach")
    for name in names:
        if not re.fullmatch("[A-Za-z0-9_][A-Za-z0-9._@-]{0,127}", name):
            raise UsageError(f"--capability: {name} must be 1 to 128 of A-Z, a-z, 0-9, '.', '_', '@' and '-'")
        if names.count(name) > 1:
            raise UsageError(f"{name} is given twice", "each agent has a URL of its own name")
    return tuple(agents)


def _human(event: dict[str, Any]) -> str:
    fields = {name: value for name, value in event.items() if name != "event"}
    said = " ".join(
        f"{name}={', '.join(value) if isinstance(value, list) else value}" for name, value in fields.items()
    )
    return safe(f"{event['event']} {said}".strip())


def listen(text: str) -> tuple[str, int]:
    """HOST:PORT. ValueError names the rule."""
    host, colon, port = text.rpartition(":")
    if not colon or not host or not port.isdigit() or int(port) > 65_535:
        raise ValueError("must be HOST:PORT such as 127.0.0.1:8080 (port 0: a free one)")
    return host.removeprefix("[").removesuffix("]"), int(port)


def url(text: str) -> str:
    """The URL under which clients reach the gateway. ValueError names the rule."""
    if not text.startswith(("http://", "https://")) or not text.partition("://")[2] or any(c in text for c in " ?#{}"):
        raise ValueError("must be a URL such as https://agents.example.com")
    return text.rstrip("/")


COMMANDS = {
    "a2a serve": Command(
        run,
        description=(
            "Let A2A clients give works to peers of the bus (docs/adapters/a2a.md). Each peer or capability is an A2A agent with\n"
            "a card of its own; a task is a work, which outlives this process, the client and the worker."
        ),
        examples=[
            "aghctl --name ops a2a serve --listen 127.0.0.1:8080 --peer writer",
            "aghctl a2a serve --listen 127.0.0.1:8080 --capability test.run --capability text.review",
        ],
        arguments=[
            Argument("--listen", metavar="HOST:PORT", type=listen, required=True, help="where to listen"),
            Argument("--peer", metavar="PEER", action="append", type=peer, help="a peer to serve"),
            Argument(
                "--capability", metavar="ID", action="append", help="a capability to serve: the daemon chooses a peer"
            ),
            Argument("--url", type=url, help="URL under which clients reach this gateway (default: that of --listen)"),
        ],
    )
}
