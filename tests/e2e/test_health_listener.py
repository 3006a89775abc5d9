"""The health listener of a running daemon: three probes, nothing else, and its bounds."""

import asyncio
import contextlib
import socket
from collections.abc import Iterator
from pathlib import Path

import pytest

from aghbus.daemon.health.server import HEAD_SECONDS, MAX_CONNECTIONS
from tests.support.daemons import Daemon, Home, wait_for
from tests.support.natsutil import NatsServer
from tests.support.probing import LISTEN, ask, port_of


@pytest.fixture(scope="module")
def port(tmp_path_factory: pytest.TempPathFactory) -> Iterator[int]:
    with Daemon(Home(tmp_path_factory.mktemp("health")), "ops", *LISTEN) as ops:
        yield port_of(ops)


def test_probes_of_a_ready_daemon(port: int) -> None:
    assert [(ask(port, path).status, ask(port, path).json()) for path in ("/livez", "/startupz", "/readyz")] == [
        (200, {"alive": True}),
        (200, {"started": True}),
        (200, {"ready": True, "broker": True, "subscriptions": True, "store": True}),
    ]


async def test_readiness_follows_the_broker_within_a_second(tmp_path: Path) -> None:
    async with NatsServer() as broker:
        with Daemon(Home(tmp_path), "ops", "--nats", broker.url, *LISTEN) as ops:
            port = port_of(ops)

            def probes() -> list[int]:
                return [ask(port, path).status for path in ("/livez", "/startupz", "/readyz")]

            broker.kill()
            wait_for(lambda: probes() == [200, 200, 503], 1.0, "the daemon not to be ready")
            await broker.start()
            await asyncio.to_thread(wait_for, lambda: probes() == [200, 200, 200], 10.0, "the daemon to be ready")


def test_a_daemon_without_a_broker_is_live_and_started_and_not_ready(tmp_path: Path) -> None:
    daemon = Daemon(Home(tmp_path), "ops", "--nats", "127.0.0.1:1", *LISTEN).start(wait=False)
    try:
        port = port_of(daemon)
        wait_for(lambda: ask(port, "/startupz").status == 200, 30, "the start")
        assert (ask(port, "/livez").status, ask(port, "/readyz").status) == (200, 503)
        assert ask(port, "/readyz").json() == {"ready": False, "broker": False, "subscriptions": False, "store": True}
    finally:
        assert daemon.stop() == 0


@pytest.mark.parametrize(
    ("method", "path", "body", "status", "code"),
    [
        ("GET", "/v1/status", None, 404, "not_found"),
        ("GET", "/", None, 404, "not_found"),
        ("POST", "/readyz", None, 405, "method_not_allowed"),
        ("DELETE", "/livez", None, 405, "method_not_allowed"),
        ("GET", "/livez", b"x", 413, "too_large"),
        ("GET", "/" + "x" * 70_000, None, 414, "target_too_long"),
    ],
)
def test_everything_else_is_refused(
    port: int, method: str, path: str, body: bytes | None, status: int, code: str
) -> None:
    answer = ask(port, path, method, body)
    assert (answer.status, answer.json()["code"]) == (status, code)
    assert answer.headers["connection"] == "close"


def test_a_probe_may_be_a_head_request_with_a_query(port: int) -> None:
    answer = ask(port, "/readyz?verbose", "HEAD")
    assert (answer.status, answer.body) == (200, b"")


def test_a_client_that_sends_no_request_is_cut_off(port: int) -> None:
    with socket.create_connection(("127.0.0.1", port), timeout=HEAD_SECONDS + 30) as client:
        client.sendall(b"GET /livez HTTP/1.1\r\n")
        assert client.recv(100).startswith(b"HTTP/1.1 408 ")


@pytest.mark.parametrize(
    "request_head",
    [b"", b"GET /livez HTTP/1.1\r\n", b"GET / HTTP/1.1\r\nHost: x\r\nContent-Length: 9\r\n\r\n"],
    ids=["silent", "half a head", "no body"],
)
def test_a_probe_is_answered_while_others_hold_all_connections(port: int, request_head: bytes) -> None:
    with contextlib.ExitStack() as held:
        for _ in range(3 * MAX_CONNECTIONS):
            held.enter_context(socket.create_connection(("127.0.0.1", port))).sendall(request_head)
        assert [ask(port, "/livez").status for _ in range(15)] == [200] * 15


def test_an_address_in_use_stops_the_start_with_the_key_of_the_setting(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as other:
        address = f"127.0.0.1:{other.getsockname()[1]}"
        daemon = Daemon(Home(tmp_path), "ops", "--health-listen", address).start(wait=False)
        assert daemon.process is not None
        assert daemon.process.wait(30) != 0
        assert "health.listen: cannot listen on " + address in daemon.log.read_text()


def test_by_default_no_port_is_open(tmp_path: Path) -> None:
    with Daemon(Home(tmp_path), "ops", "--log-level", "info") as ops:
        assert "link up" in ops.log.read_text()
        assert "health listener" not in ops.log.read_text()
