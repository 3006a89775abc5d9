"""A nats-server with TLS and a user for each peer, made from deploy/nats/ and `aghctl nats permissions`."""

import asyncio
import base64
import contextlib
import json
import re
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import nkeys  # type: ignore[import-untyped] # the package has no types

from aghbus.daemon.nats.events import LinkEvent, PermissionDenied
from aghbus.daemon.nats.link import Link
from aghbus.daemon.nats.options import NatsOptions
from tests.support.cluster import free_ports
from tests.support.daemons import Daemon, Home
from tests.support.jetstream import Operator
from tests.support.links import always, up
from tests.support.natsutil import NatsServer, wait_until
from tests.support.tools import require_tool

EXAMPLES = Path(__file__).parent.parent.parent / "deploy" / "nats"
OPS_PASSWORD = "a password of ops"
# The bcrypt hash of a public test vector (Openwall crypt_blowfish, wrapper.c), and its password.
OPERATOR_HASH, OPERATOR_PASSWORD = "$2a$05$CCCCCCCCCCCCCCCCCCCCC.E5YPO9kmyuRGyh0XouQYb4YMJKvyOeW", "U*U"


def certificates(folder: Path) -> tuple[Path, Path, Path]:
    """An authority's certificate, and certificate and key of a server on 127.0.0.1."""
    curve: list[str | Path] = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
    ca, ca_key, request, server, key = (folder / name for name in ("ca.pem", "ca.key", "s.csr", "s.pem", "s.key"))

    def openssl(*arguments: str | Path) -> None:
        subprocess.run([require_tool("openssl"), *map(str, arguments)], check=True, capture_output=True)

    usage: list[str | Path] = ["-addext", "keyUsage=critical,keyCertSign"]
    openssl("req", "-x509", *curve, "-keyout", ca_key, "-out", ca, "-subj", "/CN=ca", "-days", "1", *usage)
    names: list[str | Path] = ["-addext", "subjectAltName=IP:127.0.0.1"]
    openssl("req", *curve, "-keyout", key, "-out", request, "-subj", "/CN=server", *names)
    signing: list[str | Path] = ["-CA", ca, "-CAkey", ca_key, "-copy_extensions", "copy", "-days", "1"]
    openssl("x509", "-req", "-in", request, "-out", server, *signing)
    return ca, server, key


def _nkey(path: Path, number: int) -> tuple[Path, str]:
    """A user's seed in a file, and its public half."""
    seed = nkeys.encode_seed(bytes(range(number, number + 32)), nkeys.PREFIX_BYTE_USER)
    path.write_bytes(seed)
    path.chmod(0o600)
    return path, nkeys.from_seed(bytearray(seed)).public_key.decode()


class GuardedBroker:
    """The example's server for the peers ops (a password) and patch-worker (an nkey), and an operator."""

    def __init__(self, home: Home, *options: str, peers: tuple[str, str] = ("ops", "patch-worker")) -> None:
        """`options` are those of `aghctl nats permissions`, for the two peers: `peers` are their ids, or handles."""
        self.home = home
        self._options = ["--peer", peers[0], "--peer", peers[1], *options]
        folder = home.root / "broker"
        folder.mkdir()
        self.ca, certificate, key = certificates(folder)
        self._nkey, worker = _nkey(folder / "worker.nk", 0)
        self._office, office = _nkey(folder / "office.nk", 1)
        (self._leaf_port,) = free_ports(1)
        self._replaced = {
            "/data": str(folder / "js"),
            "0.0.0.0:7422": f"127.0.0.1:{self._leaf_port}",
            "/etc/nats/server.pem": str(certificate),
            "/etc/nats/server.key": str(key),
            "/etc/nats/ca.pem": str(self.ca),
            "$2a$11$REPLACE_WITH_THE_HASH_OF_A_LONG_PASSWORD_OF_OPS": OPS_PASSWORD,
            "UREPLACE_WITH_THE_PUBLIC_NKEY_OF_PATCH_WORKER": worker,
            "UREPLACE_WITH_THE_PUBLIC_NKEY_OF_THE_OFFICE": office,
            "$2a$11$REPLACE_WITH_THE_HASH_OF_THE_OPERATORS_PASSWORD": OPERATOR_HASH,
        }
        self.permissions = home.ctl("nats", "permissions", *self._options, "--format", "server-conf").stdout.decode()
        self.permissions += home.ctl("nats", "permissions", "--peer", "laptop", "--leaf", "office").stdout.decode()
        self.server = NatsServer(config=self._example("server.conf"))
        for name in ("tls.conf", "accounts.conf"):
            (self.server.folder / name).write_text(self._example(name))
        self.write(self.permissions)

    def _example(self, name: str) -> str:
        text = (EXAMPLES / name).read_text()
        for old, new in self._replaced.items():
            text = text.replace(old, new)
        return text

    def leaf(self) -> NatsServer:
        """The leaf node of deploy/nats/leaf.conf, for this server."""
        text = self._example("leaf.conf")
        urls = re.findall(r"urls: (\[.*\])", text)
        assert len(urls) == 1
        found = NatsServer(config=text.replace(urls[0], f'["tls://127.0.0.1:{self._leaf_port}"]'))
        (found.folder / "office.conf").write_text(f"nkey: {self._office.read_text()}\n")
        return found

    def write(self, permissions: str) -> None:
        """What the server reads at its next start."""
        (self.server.folder / "permissions.conf").write_text(permissions)

    @property
    def url(self) -> str:
        return f"tls://127.0.0.1:{self.server.port}"

    def options(self, who: str) -> NatsOptions:
        """The credentials of ops, patch-worker or operator."""
        nkey = str(self._nkey) if who == "patch-worker" else None
        password = {"ops": OPS_PASSWORD, "operator": OPERATOR_PASSWORD}.get(who)
        return NatsOptions(
            servers=(self.url,), tls_ca=str(self.ca), nkey=nkey, user=who if password else None, password=password
        )

    def daemon(self, name: str, *args: str) -> Daemon:
        """A daemon with its own credentials."""
        nats = ["--nats", self.url, "--nats-tls-ca", str(self.ca)]
        if name == "patch-worker":
            return Daemon(self.home, name, *nats, "--nats-nkey", str(self._nkey), *args)
        environment = {"AGHD_NATS_USER": name, "AGHD_NATS_PASSWORD": OPS_PASSWORD}
        return Daemon(self.home, name, *nats, *args, env=environment)

    async def set_up(self) -> None:
        """The operator's requests, as the command prints them."""
        async with connected(self.options("operator")) as client:
            api = Operator(client.link)
            for step in self.home.ctl_json("nats", "permissions", *self._options, "--format", "json")["setup"]:
                await api.call(step["subject"].removeprefix("$JS.API."), step["payload"])


class Client:
    """A link and what the server has refused it."""

    def __init__(self, options: NatsOptions) -> None:
        self.denied: list[str] = []
        self.link = Link(always(options), name="client", no_echo=False, on_error=self._noted)

    def _noted(self, event: LinkEvent) -> None:
        assert isinstance(event, PermissionDenied), event
        self.denied.append(event.detail)

    async def refused(self, action: str, subject: str) -> None:
        """The server's refusal of `subject` must come, by name (the client library lowers its case)."""
        await self.link.flush(20)
        expected = f'permissions violation for {action} to "{subject}"'.lower()
        await wait_until(lambda: any(expected in one for one in self.denied), 20, f"{expected!r} in {self.denied}")


@contextlib.asynccontextmanager
async def connected(options: NatsOptions) -> AsyncIterator[Client]:
    """A client that is up, with these credentials."""
    client = Client(options)
    async with up(client.link):
        yield client


def jwt(claims: dict[str, Any], signer: nkeys.KeyPair) -> str:
    """A NATS JWT: the usual three parts, signed with an nkey."""

    def part(value: bytes) -> str:
        return base64.urlsafe_b64encode(value).decode().rstrip("=")

    head = part(json.dumps({"typ": "JWT", "alg": "ed25519-nkey"}).encode())
    body = part(json.dumps({"jti": "x", "iat": 1, "iss": signer.public_key.decode(), **claims}).encode())
    return f"{head}.{body}.{part(signer.sign(f'{head}.{body}'.encode()))}"


class Decentralized:
    """An operator, an account and users as JWTs, whose permissions are those of `aghctl nats permissions --format json`."""

    def __init__(self, folder: Path, document: dict[str, Any]) -> None:
        operator, account = self._pair(1, nkeys.PREFIX_BYTE_OPERATOR)[1], self._pair(2, nkeys.PREFIX_BYTE_ACCOUNT)[1]
        unlimited = {"subs": -1, "data": -1, "payload": -1}
        operator_id, account_id = operator.public_key.decode(), account.public_key.decode()
        limits = {**unlimited, "conn": -1, "leaf": -1, "imports": -1, "exports": -1, "wildcards": True}
        granted = jwt({"sub": account_id, "nats": {"type": "account", "version": 2, "limits": limits}}, operator)
        (folder / "operator.jwt").write_text(
            jwt({"sub": operator_id, "nats": {"type": "operator", "version": 2}}, operator)
        )
        self.config = (
            f'operator: "{folder / "operator.jwt"}"\nresolver: MEMORY\n'
            f'resolver_preload: {{ {account_id}: "{granted}" }}'
        )
        self._creds: dict[str, Path] = {}
        for number, peer in enumerate(document["peers"], 3):
            seed, user = self._pair(number, nkeys.PREFIX_BYTE_USER)
            claims = {"type": "user", "version": 2, **unlimited, "pub": peer["pub"], "sub": peer["sub"]}
            token = jwt({"sub": user.public_key.decode(), "name": peer["peer_id"], "nats": claims}, account)
            creds = self._creds[peer["peer_id"]] = folder / f"{peer['peer_id']}.creds"
            creds.write_text(
                f"-----BEGIN NATS USER JWT-----\n{token}\n------END NATS USER JWT------\n\n"
                f"-----BEGIN USER NKEY SEED-----\n{seed.decode()}\n------END USER NKEY SEED------\n"
            )
            creds.chmod(0o600)

    def creds(self, peer: str) -> str:
        """The path of a peer's credentials file."""
        return str(self._creds[peer])

    @staticmethod
    def _pair(number: int, kind: int) -> tuple[bytes, nkeys.KeyPair]:
        seed = nkeys.encode_seed(bytes([number]) * 32, kind)
        return seed, nkeys.from_seed(bytearray(seed))


async def threaded(work: Any, *arguments: Any) -> Any:
    """A blocking call of a test while its own links go on."""
    return await asyncio.to_thread(work, *arguments)
