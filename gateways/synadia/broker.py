"""The bridge's own connection to NATS: by default to the broker of the daemon, with the daemon's credentials."""

from __future__ import annotations

import asyncio
import json
import ssl
import subprocess
import sys
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client as NatsClient
from synadia_ai.agents import NatsAgentError, NkeySigner, resolve_nats_connection_bundle

from aghbus.client.errors import Unreachable, UsageError
from aghbus.protocol.api.status import StatusResponse

INBOX_PREFIX = b"_INBOX.agents"
"""Where answers to us arrive: the prefix that the protocol's libraries use for all of theirs."""
CONNECT_SECONDS = 10.0
CONFIG_SECONDS = 30.0
NAME_THEM = "name the server with --nats URL, and its credentials with --creds FILE"

ASKED = ("agents.", "$SRV.", "$SYS.REQ.USER.INFO")
ANSWERED = ("_INBOX", "_R_.")
"""Beginnings of the subjects to which the bridge publishes; `_R_.` is how a server shows the inbox of another account."""

_TLS = ("nats.tls_ca", "nats.tls_cert", "nats.tls_key")


class Broker:
    """The options for a connection, and who signs with its key, if anybody shall."""

    def __init__(self, options: dict[str, Any], signer: NkeySigner | None) -> None:
        self.options = options
        self.signer = signer

    @property
    def servers(self) -> str:
        """The URLs, without credentials."""
        return ", ".join(map(str, self.options["servers"]))


class _Client(NatsClient):
    """Publishes to nothing else than agents and inboxes: others name the subjects at which they want to be asked and answered,
    and the bridge often has the rights of the daemon."""

    async def publish(
        self, subject: str, payload: bytes = b"", reply: str = "", headers: dict[str, str] | None = None
    ) -> None:
        """Publish a message. Raises BadSubjectError."""
        if not subject.startswith(ASKED + ANSWERED):
            raise nats.errors.BadSubjectError
        await super().publish(subject, payload, reply, headers)


def named(url: str, creds: str | None, *, sign: bool) -> Broker:
    """The broker of --nats and --creds. Raises UsageError."""
    return _resolved({"url": url, **_by_form(creds)}, sign=sign)


def of_daemon(
    status: StatusResponse, env: Mapping[str, str], broker_folder: str, creds: str | None, *, sign: bool
) -> Broker:
    """The broker of the daemon: the embedded one with its token, else with what the daemon's configuration says.

    Raises UsageError, also for credentials that were given on the daemon's command line, and Unreachable while it has no broker.
    """
    link = status.broker
    if link.url is None:
        raise Unreachable("the daemon is not connected to a broker", "see `aghctl doctor`")
    found = _settings(status.name, env)
    if link.embedded:
        folder = found.get("broker.directory") or broker_folder
        return _with_login(_resolved({"url": link.url}, sign=sign), {"token": _line(f"{folder}/token")})
    if creds is not None:
        broker = _resolved({"url": link.url, **_by_form(creds)}, sign=sign)
    elif found.get("nats.context"):
        broker = _resolved({"context": found["nats.context"]}, sign=sign)
    else:
        broker = _resolved({"url": link.url, **_key_files(found)}, sign=sign)
        broker = _with_login(broker, _login(found))
    if any(found.get(key) for key in _TLS) or link.url.startswith("tls:"):
        broker.options["tls"] = _tls(found)
    return broker


async def connect(broker: Broker, note: Callable[[str], object]) -> NatsClient:
    """A connection, which reconnects without end. `note` gets what happens to it. Raises Unreachable."""
    client = _Client()
    first: asyncio.Future[BaseException | None] = asyncio.get_running_loop().create_future()

    async def lost() -> None:
        if not client.is_closed:
            note("the broker is away")

    async def back() -> None:
        note("the broker is back")

    async def failed(error: Exception) -> None:
        if not first.done():
            first.set_result(error)
        elif not isinstance(error, OSError | nats.errors.StaleConnectionError | nats.errors.UnexpectedEOF):
            note(f"NATS: {error}")

    connecting = asyncio.ensure_future(
        client.connect(
            **broker.options,
            name="aghctl bridge synadia",
            inbox_prefix=INBOX_PREFIX,
            max_reconnect_attempts=-1,
            disconnected_cb=lost,
            reconnected_cb=back,
            error_cb=failed,
        )
    )
    connecting.add_done_callback(lambda done: None if first.done() else first.set_result(done.exception()))
    try:
        async with asyncio.timeout(CONNECT_SECONDS):
            error: BaseException | None = await first
    except TimeoutError:
        error = TimeoutError("no answer")
    if error is not None:
        connecting.cancel()
        await asyncio.gather(connecting, client.close(), return_exceptions=True)
        raise Unreachable(f"the broker {broker.servers} does not let us in: {error}", NAME_THEM)
    return client


def _resolved(source: dict[str, Any], *, sign: bool) -> Broker:
    given = {name: value for name, value in source.items() if value is not None}
    try:
        bundle = resolve_nats_connection_bundle(**given, identity="signed" if sign else "off")
    except (NatsAgentError, OSError, ValueError) as error:
        raise UsageError(f"the connection to NATS: {error}", NAME_THEM) from None
    return Broker(dict(bundle.connection_options), bundle.signer)


def _settings(name: str, env: Mapping[str, str]) -> dict[str, Any]:
    """The daemon's settings that have a value, as files and environment give them; none if they cannot be read."""
    command = [sys.executable, "-m", "aghbus.daemon", "config", "show", "--name", name, "-o", "json"]
    try:
        done = subprocess.run(  # noqa: S603 - our own daemon's command; the name is one argument
            command, env=dict(env), capture_output=True, timeout=CONFIG_SECONDS, check=False, stdin=subprocess.DEVNULL
        )
        rows = json.loads(done.stdout)["settings"]
    except (OSError, ValueError, LookupError, subprocess.SubprocessError):
        return {}
    return {row["key"]: row["value"] for row in rows if row["value"] not in (None, "", [])}


def _by_form(creds: str | None) -> dict[str, Any]:
    """A file with credentials (JWT and seed), or with an nkey seed only."""
    if creds is None:
        return {}
    return {"nkey" if _line(creds).startswith("SU") else "creds": creds}


def _key_files(found: Mapping[str, Any]) -> dict[str, Any]:
    return {word: found[f"nats.{word}"] for word in ("creds", "nkey") if f"nats.{word}" in found}


def _login(found: Mapping[str, Any]) -> dict[str, str]:
    """Token, or user and password, from the files that the configuration names. Raises UsageError for values in it, which are
    not shown."""
    if token := found.get("nats.token_file"):
        return {"token": _line(token)}
    if password := found.get("nats.password_file"):
        return {"user": found["nats.user"], "password": _line(password)}
    if "nats.token" in found or "nats.password" in found:
        raise UsageError("the daemon's token or password is not in a file of its own", NAME_THEM)
    return {}


def _with_login(broker: Broker, login: dict[str, str]) -> Broker:
    return Broker({**broker.options, **login}, broker.signer)


def _line(path: str) -> str:
    try:
        return Path(path).read_text("ascii").strip()
    except (OSError, ValueError) as error:
        why = getattr(error, "strerror", None) or "it is not text"
        raise UsageError(f"{path} cannot be read: {why}", NAME_THEM) from None


def _tls(found: Mapping[str, Any]) -> ssl.SSLContext:
    authority, certificate, key = (found.get(name) for name in _TLS)
    try:
        context = ssl.create_default_context(cafile=authority)
        if certificate:
            context.load_cert_chain(certificate, key)
    except (OSError, ssl.SSLError) as error:
        raise UsageError(f"the TLS files of the daemon: {error}", NAME_THEM) from None
    return context
