"""NATS servers and authentication: settings, URL userinfo and `nats` contexts become one `NatsOptions`.

Nothing here connects. Files with secrets are checked for existence, form and mode; creds, nkey and TLS files are passed on by
path.
"""

from collections.abc import Mapping
from urllib.parse import unquote, urlsplit

import msgspec

from aghbus.daemon.config.settings import NatsSettings
from aghbus.daemon.nats.context import ContextFields, read_context
from aghbus.daemon.nats.credential_files import NatsFiles, NatsProblem
from aghbus.protocol.base.addresses import is_loopback

__all__ = ["NatsOptions", "NatsOptionsError", "NatsProblem", "resolve_nats_options"]

_DEFAULT_PORT = 4222  # the NATS client port, where a URL names none
_HIDDEN = "***"


class NatsOptions(msgspec.Struct, frozen=True, kw_only=True):
    """One way to reach NATS, ready to use. `servers` are `nats://` or `tls://` URLs with a port and without userinfo."""

    servers: tuple[str, ...]
    creds: str | None = None
    nkey: str | None = None
    token: str | None = None
    user: str | None = None
    password: str | None = None
    tls_ca: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    name: str | None = None
    warnings: tuple[str, ...] = ()

    @property
    def loopback(self) -> bool:
        """Whether every server is on this machine."""
        return all(is_loopback(urlsplit(url).hostname or "") for url in self.servers)

    @property
    def tls(self) -> bool:
        """Whether the connection must be encrypted: asked for by a scheme or by a TLS file."""
        return any((self.tls_ca, self.tls_cert, *(url.startswith("tls:") for url in self.servers)))

    def redacted(self) -> dict[str, object]:
        """The options that are set, for `config show`; token and password as `***`."""
        shown = {name: getattr(self, name) for name in self.__struct_fields__}
        return {
            name: _HIDDEN if name in {"token", "password"} else list(value) if isinstance(value, tuple) else value
            for name, value in shown.items()
            if value not in (None, ())
        }

    def __repr__(self) -> str:
        return f"NatsOptions({', '.join(f'{name}={value!r}' for name, value in self.redacted().items())})"


class NatsOptionsError(Exception):
    """The settings name no usable connection; `problems` has all of their problems, without secrets."""

    def __init__(self, problems: tuple[NatsProblem, ...]) -> None:
        super().__init__("; ".join(map(str, problems)))
        self.problems = problems


def resolve_nats_options(settings: NatsSettings, env: Mapping[str, str]) -> NatsOptions | None:
    """The options from `settings`, None when they name no server (for the embedded broker).

    `env` gives XDG_CONFIG_HOME and HOME. Settings override the context, field by field; a way to authenticate in the settings
    replaces the context's. Raises NatsOptionsError with every problem found.
    """
    files = NatsFiles(env)
    context = read_context(settings.context, env, files) if settings.context else ContextFields()
    if context is None:
        raise NatsOptionsError(tuple(files.problems))
    named = settings.servers or ((context.url,) if context.url else ())
    urls = [part.strip() for text in named for part in text.split(",") if part.strip()]
    parsed = [_server(url, files) for url in urls]
    if not urls:
        if settings.context:
            files.problem("nats.context", "the context names no url", "name one with nats.servers")
        elif ways := _named_auth(settings):
            files.problem(f"nats.{ways[0]}", "credentials without a server", "name one with nats.servers")
    auth = _auth(settings, context, [userinfo for _, userinfo in parsed if userinfo], files)
    tls = _tls(settings, context, files)
    if files.problems:
        raise NatsOptionsError(tuple(files.problems))
    if not urls:
        return None
    servers = tuple(dict.fromkeys(url for url, _ in parsed))
    return NatsOptions(servers=servers, warnings=tuple(files.warnings), **auth, **tls)


def _server(text: str, files: NatsFiles) -> tuple[str, dict[str, str]]:
    """One URL in its full form, and its userinfo. A problem never repeats the text, which may contain a password."""
    key = "nats.servers"
    if not text.isprintable() or " " in text:
        files.problem(key, "a URL contains no white space or control characters")
        return "", {}
    try:
        url = urlsplit(text if "://" in text else f"nats://{text}")
        host, port = url.hostname, url.port
    except ValueError:
        files.problem(key, "not a URL", "write nats://HOST:PORT")
        return "", {}
    if url.scheme not in {"nats", "tls"}:
        files.problem(key, f"scheme {url.scheme!r} is not supported", "write nats://HOST:PORT or tls://HOST:PORT")
    elif not host or port == 0 or url.path.strip("/") or url.query or url.fragment:
        files.problem(key, "a server is a host and a port, nothing else", "write nats://HOST:PORT")
    netloc = f"[{host}]" if host and ":" in host else host
    userinfo: dict[str, str] = {}
    if url.password is not None:
        userinfo = {"user": unquote(url.username or ""), "password": unquote(url.password)}
    elif url.username:
        userinfo = {"token": unquote(url.username)}
    return f"{url.scheme}://{netloc}:{port or _DEFAULT_PORT}", userinfo


def _named_auth(settings: NatsSettings) -> list[str]:
    """The ways to authenticate that the settings name themselves; user and password are one way."""
    ways = [way for way in ("creds", "nkey") if getattr(settings, way)]
    if settings.token or settings.token_file:
        ways.append("token")
    if settings.user or settings.password or settings.password_file:
        ways.append("user")
    return ways


def _auth(
    settings: NatsSettings, context: ContextFields, userinfos: list[dict[str, str]], files: NatsFiles
) -> dict[str, str | None]:
    """Exactly one way to authenticate, or none; secrets in files are read."""
    ways = _named_auth(settings)
    if any(userinfo != userinfos[0] for userinfo in userinfos):
        files.problem(
            "nats.servers", "the URLs hold different credentials", "one connection has one way to authenticate"
        )
    if userinfos:
        ways.append("credentials in a URL")
    if len(ways) > 1:
        files.problem("nats", f"more than one way to authenticate: {', '.join(ways)}", "leave one of them")
    if userinfos:
        return dict(userinfos[0])
    if not ways:
        return _checked_auth(context.creds, context.nkey, context.token, context.user, context.password, files)
    for name in ("token", "password"):
        if getattr(settings, name) and getattr(settings, f"{name}_file"):
            files.problem(f"nats.{name}_file", f"nats.{name} is set too", "leave one of them")
    token = settings.token or files.secret_line("nats.token_file", settings.token_file)
    password = settings.password or files.secret_line("nats.password_file", settings.password_file)
    if settings.password_file and password is None:
        password = "unread"  # noqa: S105 - its problem is noted; the pair must not be reported as half missing as well
    return _checked_auth(settings.creds, settings.nkey, token, settings.user, password, files)


def _checked_auth(
    creds: str | None, nkey: str | None, token: str | None, user: str | None, password: str | None, files: NatsFiles
) -> dict[str, str | None]:
    if bool(user) != bool(password):
        missing, given = ("password", "user") if user else ("user", "password")
        files.problem(f"nats.{missing}", f"nats.{given} is set without it")
    return {
        "creds": files.containing("nats.creds", creds, "BEGIN NATS USER JWT", "BEGIN USER NKEY SEED"),
        "nkey": files.containing("nats.nkey", nkey, "SU"),
        "token": token or None,
        "user": user or None,
        "password": password or None,
    }


def _tls(settings: NatsSettings, context: ContextFields, files: NatsFiles) -> dict[str, str | None]:
    """CA and client certificate; PEM files, the certificate only together with its key."""
    cert, key = settings.tls_cert or context.cert, settings.tls_key or context.key
    if bool(cert) != bool(key):
        missing, given = ("tls_key", "tls_cert") if cert else ("tls_cert", "tls_key")
        files.problem(f"nats.{missing}", f"nats.{given} is set without it", "certificate and key go together")
    return {
        "tls_ca": files.containing("nats.tls_ca", settings.tls_ca or context.ca, "BEGIN CERTIFICATE", secret=False),
        "tls_cert": files.containing("nats.tls_cert", cert, "BEGIN CERTIFICATE", secret=False),
        "tls_key": files.containing("nats.tls_key", key, "PRIVATE KEY"),
    }
