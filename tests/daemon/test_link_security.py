"""Credentials and TLS of the link: each way to authenticate works, each failure is named with a hint and without a secret."""

import asyncio
import contextlib
import logging
import subprocess
from collections.abc import AsyncIterator
from pathlib import Path

import msgspec
import nkeys  # type: ignore[import-untyped] # the package has no types
import pytest

from aghbus.daemon.base.logs import TextFormatter
from aghbus.daemon.nats.link import Link, LinkProblem
from aghbus.daemon.nats.options import NatsOptions
from tests.support.broker_users import jwt
from tests.support.links import always
from tests.support.natsutil import NatsServer, wait_until
from tests.support.tools import require_tool

SECRET = "s3cr3t-that-nobody-may-see"


def fixed(options: NatsOptions) -> Link:
    return Link(always(options), name="test")


async def connects(options: NatsOptions) -> bool:
    link = fixed(options)
    link.start()
    try:
        return await link.wait_up(10)
    finally:
        await link.close(1)


async def failure(options: NatsOptions) -> LinkProblem:
    link = fixed(options)
    link.start()
    try:
        await wait_until(lambda: link.last_error, 30, "the failure")
        assert link.state == "connecting"
        assert link.last_error is not None
        return link.last_error
    finally:
        await link.close(1)


@pytest.mark.parametrize(
    ("config", "right", "wrong", "hint"),
    [
        (f'token: "{SECRET}"', {"token": SECRET}, {"token": SECRET + "x"}, "nats.token"),
        (
            f'user: "u", password: "{SECRET}"',
            {"user": "u", "password": SECRET},
            {"user": "u", "password": SECRET + "x"},
            "nats.password",
        ),
        (f'token: "{SECRET}"', {"token": SECRET}, {}, "none are set"),
    ],
)
async def test_credentials(
    config: str, right: dict[str, str], wrong: dict[str, str], hint: str, caplog: pytest.LogCaptureFixture
) -> None:
    caplog.set_level(logging.DEBUG)
    async with NatsServer(config=f"authorization {{ {config} }}") as server:
        options = NatsOptions(servers=(server.url,))
        assert await connects(msgspec.structs.replace(options, **right))
        problem = await failure(msgspec.structs.replace(options, **wrong))
        assert problem.code == "auth"
        assert hint in problem.hint
        logged = "\n".join(map(TextFormatter().format, caplog.records))
        assert SECRET not in str(problem) + logged
        assert hint in logged


async def test_a_corrected_token_is_used_at_the_next_attempt() -> None:
    async with NatsServer(config=f'authorization {{ token: "{SECRET}" }}') as server:
        tokens = iter(["wrong"])

        async def resolve() -> NatsOptions:
            return NatsOptions(servers=(server.url,), token=next(tokens, SECRET))

        link = Link(resolve, name="test", ceiling=0.2)
        link.start()
        assert await link.wait_up(10)
        assert link.last_error is None
        await link.close(1)


async def test_an_nkey(tmp_path: Path) -> None:
    seed = nkeys.encode_seed(bytes(range(32)), nkeys.PREFIX_BYTE_USER)
    public = nkeys.from_seed(bytearray(seed)).public_key.decode()
    right, wrong, broken = tmp_path / "right.nk", tmp_path / "wrong.nk", tmp_path / "broken.nk"
    right.write_bytes(seed)
    wrong.write_bytes(nkeys.encode_seed(bytes(32), nkeys.PREFIX_BYTE_USER))
    broken.write_bytes(b"SU" + SECRET.encode())
    async with NatsServer(config=f'authorization {{ users: [{{ nkey: "{public}" }}] }}') as server:
        assert await connects(NatsOptions(servers=(server.url,), nkey=str(right)))
        for path in (wrong, broken):
            problem = await failure(NatsOptions(servers=(server.url,), nkey=str(path)))
            assert problem.code == "auth"
            assert "nats.nkey" in problem.hint
            assert SECRET not in str(problem)


async def test_a_credentials_file(tmp_path: Path) -> None:
    def key(number: int, kind: int) -> tuple[bytes, nkeys.KeyPair, str]:
        seed = nkeys.encode_seed(bytes([number]) * 32, kind)
        pair = nkeys.from_seed(bytearray(seed))
        return seed, pair, pair.public_key.decode()

    _, operator, operator_id = key(1, nkeys.PREFIX_BYTE_OPERATOR)
    _, account, account_id = key(2, nkeys.PREFIX_BYTE_ACCOUNT)
    user_seed, _, user_id = key(3, nkeys.PREFIX_BYTE_USER)
    unlimited = {"subs": -1, "data": -1, "payload": -1}
    operator_jwt = jwt({"sub": operator_id, "nats": {"type": "operator", "version": 2}}, operator)
    limits = {**unlimited, "conn": -1, "leaf": -1, "imports": -1, "exports": -1, "wildcards": True}
    account_jwt = jwt({"sub": account_id, "nats": {"type": "account", "version": 2, "limits": limits}}, operator)
    user_jwt = jwt({"sub": user_id, "nats": {"type": "user", "version": 2, **unlimited}}, account)
    (tmp_path / "operator.jwt").write_text(operator_jwt)
    config = (
        f'operator: "{tmp_path / "operator.jwt"}"\nresolver: MEMORY\n'
        f'resolver_preload: {{ {account_id}: "{account_jwt}" }}'
    )
    creds = tmp_path / "user.creds"
    creds.write_text(
        f"-----BEGIN NATS USER JWT-----\n{user_jwt}\n------END NATS USER JWT------\n\n"
        f"-----BEGIN USER NKEY SEED-----\n{user_seed.decode()}\n------END USER NKEY SEED------\n"
    )
    async with NatsServer(config=config) as server:
        assert await connects(NatsOptions(servers=(server.url,), creds=str(creds)))
        creds.write_text(creds.read_text().replace(user_jwt, user_jwt[:-4] + "AAAA"))
        problem = await failure(NatsOptions(servers=(server.url,), creds=str(creds)))
        assert problem.code == "auth"
        assert "nats.creds" in problem.hint


class Authority:
    """A certificate authority made with the openssl command, and what it signs."""

    def __init__(self, folder: Path) -> None:
        self.folder = folder
        folder.mkdir()
        self.ca = folder / "ca.pem"
        usage = ["-addext", "keyUsage=critical,keyCertSign"]
        self._run("req", "-x509", *self._key("ca"), "-out", str(self.ca), "-subj", "/CN=test-ca", "-days", "1", *usage)

    def issue(self, name: str, alternative: str) -> tuple[Path, Path]:
        """Certificate and key for `name` with one subjectAltName."""
        request, certificate = self.folder / f"{name}.csr", self.folder / f"{name}.pem"
        extension = ["-addext", f"subjectAltName={alternative}"]
        self._run("req", *self._key(name), "-out", str(request), "-subj", f"/CN={name}", *extension)
        signing = ["-CA", str(self.ca), "-CAkey", str(self.folder / "ca.key"), "-copy_extensions", "copy", "-days", "1"]
        self._run("x509", "-req", "-in", str(request), "-out", str(certificate), *signing)
        return certificate, self.folder / f"{name}.key"

    def _key(self, name: str) -> list[str]:
        curve = ["-newkey", "ec", "-pkeyopt", "ec_paramgen_curve:prime256v1", "-nodes"]
        return [*curve, "-keyout", str(self.folder / f"{name}.key")]

    @staticmethod
    def _run(*arguments: str) -> None:
        subprocess.run([require_tool("openssl"), *arguments], check=True, capture_output=True)


@pytest.fixture(scope="module")
def authority(tmp_path_factory: pytest.TempPathFactory) -> Authority:
    return Authority(tmp_path_factory.mktemp("tls") / "ca")


@pytest.fixture
async def tls_server(authority: Authority) -> AsyncIterator[NatsServer]:
    certificate, key = authority.issue("server", "IP:127.0.0.1")
    async with NatsServer(config=f'tls {{ cert_file: "{certificate}", key_file: "{key}" }}') as server:
        yield server


async def test_tls_with_our_own_authority(authority: Authority, tls_server: NatsServer) -> None:
    for scheme in ("nats", "tls"):
        url = f"{scheme}://127.0.0.1:{tls_server.port}"
        link = fixed(NatsOptions(servers=(url,), tls_ca=str(authority.ca)))
        link.start()
        assert await link.wait_up(10), link.last_error
        assert link.server is not None
        assert link.server.tls
        await link.publish("t", b"x" * 100_000)
        await link.flush(5)
        await link.close(1)


async def test_tls_reconnects_without_leaking_sockets(authority: Authority, tls_server: NatsServer) -> None:
    link = fixed(NatsOptions(servers=(tls_server.url,), tls_ca=str(authority.ca)))
    link.start()
    assert await link.wait_up(10)
    for count in (1, 2):
        await tls_server.restart()
        await wait_until(lambda: link.reconnects == count, 30, "the loss")  # noqa: B023 - awaited in the loop
        assert await link.wait_up(10)
    await link.close(1)


async def test_an_unknown_authority_is_refused(tls_server: NatsServer, tmp_path: Path) -> None:
    other = Authority(tmp_path / "other")
    for options in (
        NatsOptions(servers=(tls_server.url,), tls_ca=str(other.ca), token=SECRET),
        NatsOptions(servers=(f"tls://127.0.0.1:{tls_server.port}",), token=SECRET),
    ):
        problem = await failure(options)
        assert problem.code == "tls"
        assert "nats.tls_ca" in problem.hint
        assert SECRET not in str(problem)


async def test_a_certificate_for_another_host_is_refused(authority: Authority) -> None:
    certificate, key = authority.issue("elsewhere", "DNS:elsewhere.example")
    async with NatsServer(config=f'tls {{ cert_file: "{certificate}", key_file: "{key}" }}') as server:
        problem = await failure(NatsOptions(servers=(server.url,), tls_ca=str(authority.ca)))
    assert problem.code == "tls"
    assert "127.0.0.1" in problem.cause


async def test_a_client_certificate(authority: Authority) -> None:
    certificate, key = authority.issue("mutual", "IP:127.0.0.1")
    client, client_key = authority.issue("client", "DNS:client.example")
    config = f'tls {{ cert_file: "{certificate}", key_file: "{key}", ca_file: "{authority.ca}", verify: true }}'
    async with NatsServer(config=config) as server:
        known = NatsOptions(
            servers=(server.url,), tls_ca=str(authority.ca), tls_cert=str(client), tls_key=str(client_key)
        )
        assert await connects(known)
        assert (await failure(NatsOptions(servers=(server.url,), tls_ca=str(authority.ca)))).code in {
            "tls",
            "protocol",
            "unreachable",
        }


async def test_a_server_cannot_downgrade_the_connection_from_tls() -> None:
    """A server, or someone before it, that offers no TLS gets nothing: no CONNECT, so no token."""
    received = bytearray()

    async def plain(reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        writer.write(b'INFO {"server_id":"x","version":"2.10.0","max_payload":1048576,"auth_required":true}\r\n')
        with contextlib.closing(writer), contextlib.suppress(OSError):
            received.extend(await reader.read())

    listener = await asyncio.start_server(plain, "127.0.0.1", 0)
    url = f"tls://127.0.0.1:{listener.sockets[0].getsockname()[1]}"
    problem = await failure(NatsOptions(servers=(url,), token=SECRET))
    assert problem.code == "tls"
    assert "offers no TLS" in problem.cause
    assert not received
    listener.close()
    await listener.wait_closed()
