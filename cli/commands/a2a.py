"""`aghctl a2a serve`: A2A clients reach peers of the bus."""

from __future__ import annotations

from aghbus.cli.app.arguments import host_port, peer, positive
from aghbus.cli.app.errors import INTERRUPTED, YES
from aghbus.cli.app.text import safe
from aghbus.cli.context import Context
from aghbus.client.errors import UsageError
from aghbus.host.command_line import Argument, Command
from aghbus.protocol.base.annotations import Any

TYPE_CHECKING = False
if TYPE_CHECKING:
    from aghbus.gateways.a2a.base.bus import Agent

INSTALL = "install the extra `a2a` of aghbus, or `a2a-grpc` for --grpc (docs/adapters/a2a.md)"


def run(context: Context, values: dict[str, Any]) -> int:
    """Serve until a signal."""
    import signal

    _check(values)
    try:
        if values["grpc"]:
            import aghbus.gateways.a2a.serve.rpc  # noqa: F401 - its library is an extra of its own
        from aghbus.gateways.a2a.base.options import Options
        from aghbus.gateways.a2a.serve.server import run as run_server
        from aghbus.gateways.base.left_works import A2A_SERVE
    except ImportError as error:
        raise UsageError(f"a2a serve needs libraries that are not installed: {error.name}", INSTALL) from None
    from aghbus.client.work.clients import AsyncClient
    from aghbus.client.work.folders import open_folder

    host, port = values["listen"]
    status = context.api.get("/v1/status")
    options = Options(
        host=host,
        port=port,
        agents=_agents(values["peer"], values["capability"]),
        state=open_folder(str(status["name"]), context.env, A2A_SERVE),
        url=values["url"],
        max_body=values["max_body"],
        input_modes=tuple(values["input_mode"]),
        grpc=values["grpc"],
        grpc_url=values["grpc_url"],
        tls_cert=values["tls_cert"],
        tls_key=values["tls_key"],
        client_ca=values["client_ca"],
        callers=values["callers"],
        open_to_all=values["allow_anonymous"],
        oidc=(values["oidc_issuer"], values["oidc_audience"]) if values["oidc_issuer"] else None,
        caller_requests=values["caller_requests"],
        caller_tasks=values["caller_tasks"],
        push_allow=tuple(values["push_allow"]),
    )
    client = AsyncClient(context.api.endpoint, timeout=context.timeout)
    number = run_server(options, client, lambda event: context.output.event(event, _human))
    return INTERRUPTED if number == signal.SIGINT else YES


def _check(values: dict[str, Any]) -> None:
    """Raise UsageError for options that do not fit together."""
    from aghbus.protocol.base.addresses import is_loopback

    pairs = (("tls_cert", "tls_key"), ("tls_key", "tls_cert"), ("client_ca", "tls_cert"), ("grpc_url", "grpc"))
    for name, needed in (*pairs, ("oidc_issuer", "oidc_audience"), ("oidc_audience", "oidc_issuer")):
        if values[name] and not values[needed]:
            raise UsageError(f"{_flag(name)} needs {_flag(needed)}")
    asks = any(values[name] for name in ("callers", "client_ca", "oidc_issuer"))
    if asks and values["allow_anonymous"]:
        raise UsageError("--allow-anonymous excludes --callers, --client-ca and --oidc-issuer")
    hosts = [values["listen"][0], *([values["grpc"][0]] if values["grpc"] else [])]
    if all(map(is_loopback, hosts)):
        return
    if not asks and not values["allow_anonymous"]:
        hint = "--callers FILE, --client-ca FILE or --oidc-issuer URL say who may call; --allow-anonymous lets everybody in"
        raise UsageError("--listen: only a loopback address may be open to everybody", hint)
    if asks and not values["tls_cert"] and not (values["url"] or "").startswith("https://"):
        hint = "--tls-cert FILE --tls-key FILE, or --url https://… of the proxy that ends TLS in front of this gateway"
        raise UsageError("credentials of callers would travel in clear", hint)


def _flag(name: str) -> str:
    return "--" + name.replace("_", "-")


def _agents(peers: list[str], capabilities: list[str]) -> tuple[Agent, ...]:
    """What is served. Raises UsageError."""
    import re

    from aghbus.gateways.a2a.base.bus import Agent

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


def url(text: str) -> str:
    """The URL under which clients reach the gateway. ValueError names the rule."""
    if not text.startswith(("http://", "https://")) or not text.partition("://")[2] or any(c in text for c in " ?#{}"):
        raise ValueError("must be a URL such as https://agents.example.com")
    return text.rstrip("/")


def push_host(text: str) -> str:
    """HOST, HOST:PORT, HOST:* or `*`. ValueError names the rule."""
    host, colon, port = text.rpartition(":")
    named = host if colon and (port.isdigit() or port == "*") else text
    if text != "*" and (
        not named or any(char in named for char in "/@?#* ") or (":" in named and not named.startswith("["))
    ):
        raise ValueError("must be HOST, HOST:PORT, HOST:*, or * for every public host")
    return text.lower()


def media_type(text: str) -> str:
    """A media type. ValueError names the rule."""
    kind, slash, rest = text.partition("/")
    if not kind or not slash or not rest or any(char in text for char in " ;,*"):
        raise ValueError("must be a media type such as image/gif")
    return text.lower()


def body_bytes(text: str) -> int:
    """A number of bytes. ValueError names the rule."""
    number = positive(text)
    if not 65_536 <= number <= 1 << 30:
        raise ValueError("must be 65536 to 1073741824 bytes")
    return number


LISTENING = "where to listen"
CALLERS = "who may call"
NOTIFYING = "push notifications"

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
            "aghctl a2a serve --listen 0.0.0.0:8443 --tls-cert tls.crt --tls-key tls.key --callers callers --peer writer",
        ],
        arguments=[
            Argument("--peer", metavar="PEER", action="append", type=peer, help="a peer to serve"),
            Argument(
                "--capability", metavar="ID", action="append", help="a capability to serve: the daemon chooses a peer"
            ),
            Argument(
                "--input-mode", metavar="TYPE", action="append", type=media_type, help="a further media type to take"
            ),
            Argument(
                "--max-body",
                metavar="BYTES",
                type=body_bytes,
                default=8 << 20,
                help="longest request (default 8388608)",
            ),
            Argument(
                "--listen",
                metavar="HOST:PORT",
                type=host_port,
                required=True,
                group=LISTENING,
                help="JSON-RPC and HTTP+JSON",
            ),
            Argument("--grpc", metavar="HOST:PORT", type=host_port, group=LISTENING, help="gRPC, too"),
            Argument("--url", type=url, group=LISTENING, help="URL under which clients reach --listen (default: that)"),
            Argument(
                "--grpc-url", metavar="HOST:PORT", group=LISTENING, help="address under which clients reach --grpc"
            ),
            Argument("--tls-cert", metavar="FILE", group=LISTENING, help="certificate of the listeners (PEM)"),
            Argument("--tls-key", metavar="FILE", group=LISTENING, help="its private key (PEM)"),
            Argument("--callers", metavar="FILE", group=CALLERS, help="file with a line NAME TOKEN for each caller"),
            Argument("--client-ca", metavar="FILE", group=CALLERS, help="authorities of client certificates (PEM)"),
            Argument("--oidc-issuer", metavar="URL", group=CALLERS, help="OpenID provider whose JWTs name callers"),
            Argument("--oidc-audience", metavar="TEXT", group=CALLERS, help="audience that these JWTs must have"),
            Argument(
                "--caller-requests",
                metavar="N",
                type=positive,
                default=64,
                group=CALLERS,
                help="requests and streams of one caller at a time (default 64)",
            ),
            Argument(
                "--caller-tasks",
                metavar="N",
                type=positive,
                default=600,
                group=CALLERS,
                help="new tasks of one caller a minute (default 600)",
            ),
            Argument("--allow-anonymous", action="store_true", group=CALLERS, help="let everybody in on any address"),
            Argument(
                "--push-allow",
                metavar="HOST",
                action="append",
                type=push_host,
                group=NOTIFYING,
                help="HOST, HOST:PORT or HOST:* of webhooks; * for all with a public address (default: no notifications)",
            ),
        ],
    )
}
