"""Credentials of `aghctl a2a join` with a server of the SDK over TLS: authorities, client certificates and tokens."""

import contextlib
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.a2a_gateway import certificate
from tests.support.daemons import wait_for
from tests.support.joining import AgentProcess, Join, agent
from tests.support.serving import WAIT, Bus

TOKEN = "0123456789abcdef"


class Site:
    """A folder with certificates by one authority: of the server and of a client; and those of another authority."""

    def __init__(self, folder: Path) -> None:
        folder.mkdir()
        self.folder = folder
        self.authority = certificate(folder, "authority")
        self.make("server")
        self.make("client")
        self.make("old_client", days=-2)
        certificate(folder, "unknown_authority", authority=certificate(folder, "other"))

    def make(self, name: str, **more: Any) -> None:
        certificate(self.folder, name, authority=self.authority, **more)

    def options(self, client: str = "", ca: str = "authority") -> list[str]:
        found = ["--ca", str(self.folder / f"{ca}.crt")] if ca else []
        if client:
            found += ["--client-cert", f"{self.folder / client}.crt", "--client-key", f"{self.folder / client}.key"]
        return found


@pytest.fixture(scope="module")
def site(tmp_path_factory: pytest.TempPathFactory) -> Site:
    return Site(tmp_path_factory.mktemp("site") / "agent")


@pytest.fixture(scope="module")
def tls(site: Site) -> Iterator[AgentProcess]:
    with agent(site.folder, "tls") as one:
        yield one


@pytest.fixture(scope="module")
def mtls(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[AgentProcess, Site]]:
    site = Site(tmp_path_factory.mktemp("mtls") / "agent")
    with agent(site.folder, "mtls") as one:
        yield one, site


def refusal(bus: Bus, url: str, *options: str) -> str:
    """What a join prints that does not begin."""
    join = Join(bus, url, *options)
    try:
        assert join.ended() == 2, join.events
        return join.errors().decode()
    finally:
        join.close()


@pytest.mark.parametrize("binding", ["jsonrpc", "http-json", "grpc"])
def test_works_over_tls_with_a_token(bus: Bus, site: Site, tls: AgentProcess, tmp_path: Path, binding: str) -> None:
    token = tmp_path / "token"
    token.write_text(f"{TOKEN}\n")
    (site.folder / "token").write_text(TOKEN)
    try:
        with Join(bus, tls.url, "--binding", binding, "--bearer-file", str(token), *site.options()):
            assert bus.end_of(bus.open("done it"))["message"] == "it is good"
            assert bus.end_of(bus.open("say hello"))["message"] == "hello"
    finally:
        (site.folder / "token").unlink()


@pytest.mark.parametrize("binding", ["jsonrpc", "http-json", "grpc"])
@pytest.mark.parametrize("files", [2, 1])
def test_works_with_a_client_certificate(
    bus: Bus, mtls: tuple[AgentProcess, Site], tmp_path: Path, binding: str, files: int
) -> None:
    """Certificate and key are two files, or one."""
    other, site = mtls
    options = site.options("client")
    if files == 1:
        both = tmp_path / "both.pem"
        both.write_bytes((site.folder / "client.crt").read_bytes() + (site.folder / "client.key").read_bytes())
        options = [*site.options(), "--client-cert", str(both)]
    with Join(bus, other.url, "--binding", binding, *options):
        assert bus.end_of(bus.open("done it"))["message"] == "it is good"


@pytest.mark.parametrize("ca", ["", "other"])
def test_a_server_of_another_authority(bus: Bus, site: Site, tls: AgentProcess, ca: str) -> None:
    said = refusal(bus, tls.url, *site.options(ca=ca))
    assert "the certificate of the agent is not accepted" in said and "--ca" in said


def test_an_expired_certificate_of_the_server(bus: Bus, tmp_path: Path) -> None:
    site = Site(tmp_path / "agent")
    site.make("server", days=-2)
    with agent(site.folder, "tls") as other:
        said = refusal(bus, other.url, *site.options())
    assert "expired" in said


CLIENTS = pytest.mark.parametrize("client", ["", "unknown_authority", "old_client"])


@CLIENTS
def test_a_client_certificate_that_is_missing_or_not_accepted(
    bus: Bus, mtls: tuple[AgentProcess, Site], client: str
) -> None:
    """The server of the SDK only ends the connection then."""
    other, site = mtls
    join = Join(bus, other.url, *site.options(client))
    try:
        assert "it may want a client certificate" in join.until("away")["message"]
    finally:
        join.close()


@CLIENTS
def test_a_server_that_says_why_it_refuses_a_client(bus: Bus, site: Site, client: str) -> None:
    context = ssl.create_default_context(ssl.Purpose.CLIENT_AUTH, cafile=str(site.folder / "authority.crt"))
    context.load_cert_chain(site.folder / "server.crt", site.folder / "server.key")
    context.verify_mode, context.maximum_version = ssl.CERT_REQUIRED, ssl.TLSVersion.TLSv1_2
    with socket.create_server(("127.0.0.1", 0)) as server:

        def refuse() -> None:
            connection, _ = server.accept()
            with connection, contextlib.suppress(OSError), context.wrap_socket(connection, server_side=True):
                pass

        serving = threading.Thread(target=refuse)
        serving.start()
        said = refusal(bus, f"https://127.0.0.1:{server.getsockname()[1]}", *site.options(client))
        serving.join(WAIT)
    assert "refuses the connection" in said and "--client-cert" in said


@pytest.mark.parametrize("token", [None, "another_token"])
def test_a_token_that_is_missing_or_wrong(
    bus: Bus, site: Site, tls: AgentProcess, tmp_path: Path, token: str | None
) -> None:
    (site.folder / "token").write_text(TOKEN)
    try:
        options = site.options()
        if token is not None:
            (tmp_path / "token").write_text(token)
            options += ["--bearer-file", str(tmp_path / "token")]
        said = refusal(bus, tls.url, *options)
    finally:
        (site.folder / "token").unlink()
    assert "HTTP 401" in said and "--bearer-file" in said


@pytest.mark.parametrize("content", ["", "a b\nc", "schlüssel"])
def test_a_token_that_cannot_be_sent(bus: Bus, site: Site, tls: AgentProcess, tmp_path: Path, content: str) -> None:
    (tmp_path / "token").write_text(content)
    said = refusal(bus, tls.url, "--bearer-file", str(tmp_path / "token"), *site.options())
    assert "--bearer-file" in said


def test_a_token_that_is_refused_later_is_replaced(bus: Bus, site: Site, tls: AgentProcess, tmp_path: Path) -> None:
    token = tmp_path / "token"
    token.write_text(TOKEN)
    (site.folder / "token").write_text(TOKEN)
    try:
        with Join(bus, tls.url, "--bearer-file", str(token), *site.options()) as join:
            (site.folder / "token").write_text("the_next_one")
            work_id = bus.open("done later")
            assert "HTTP 401" in join.of(work_id, "away")["message"]
            assert bus.ops.state_of(work_id) == "submitted"
            token.write_text("the_next_one")
            assert bus.end_of(work_id)["message"] == "it is good"
    finally:
        (site.folder / "token").unlink()
    wait_for(lambda: len(tls.runs("done later")) == 1, WAIT, "one run")
