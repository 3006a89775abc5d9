"""The HTTP server of the local API against uvicorn used by its documented interface: `python -m bench.micro.http_server`.

Variants, each in a fresh process, with asyncio, msgspec and NATS already imported, on uvloop:

- `own`: `daemon/api/http` on httptools
- `uvicorn`: `uvicorn.Server(uvicorn.Config(…)).serve()` with httptools, under the same application
  (install it first: `pip install uvicorn`)

Both answer from memory. Measured: import time and memory, microseconds of one request at a time on a Unix socket, requests a
second over 64 connections, and what bounds a slow or hostile client. Medians of `--rounds`; only ratios carry over to another
machine. The results and the decision are in docs/adr/0003-http-server.md.
"""

import argparse
import asyncio
import contextlib
import json
import selectors
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterable
from pathlib import Path
from typing import Any, Final

from bench.harness.processes import ROOT, memory_mib
from bench.harness.wire import RawApi, ready, request_bytes

VARIANTS: Final = ("own", "uvicorn")
REQUESTS: Final[dict[str, tuple[str, str, dict[str, Any] | None]]] = {
    "GET /healthz": ("GET", "/healthz", None),
    "GET /v1/works?…": ("GET", "/v1/works?state=working&state=submitted&limit=10", None),
    "POST /v1/messages": ("POST", "/v1/messages", {"kind": "say", "to": "ops", "body": {"text": "hello"}}),
}
CONNECTIONS: Final = 64
PROBE_SECONDS: Final = 15.0  # that a slow client is waited for
PROBE_BYTES: Final = 64 << 20
MANY: Final = 600  # connections of one client


def rss_kib() -> int:
    """Resident memory of this process in KiB."""
    with Path("/proc/self/status").open() as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


# the server's process


def serve(variant: str, path: str) -> None:
    """Import, report, serve until standard input closes, report memory again."""
    import msgspec  # noqa: F401 - a cost that both variants share
    import nats  # noqa: F401 - likewise

    import aghbus.daemon.api.app

    before, started = rss_kib(), time.perf_counter()
    if variant == "uvicorn":
        import uvicorn
        import uvicorn.protocols.http.httptools_impl  # noqa: F401 - which uvicorn imports when it starts
    else:
        import aghbus.daemon.api.http.connection  # noqa: F401 - the cost that is measured
    report = {"import_ms": (time.perf_counter() - started) * 1000, "import_kib": rss_kib() - before}
    print(json.dumps(report), flush=True)
    from aghbus.daemon.base import runtime

    runtime.run(_serve_own(path) if variant == "own" else _serve_uvicorn(path))


def handlers() -> Any:
    """Handlers that each return a constant."""
    from aghbus.protocol.api.operations import OPERATIONS
    from tests.support.api_simulator import example

    def constant(response: Any) -> Any:
        async def handler(*_: Any) -> Any:
            return response

        return handler

    return {one: constant(example(one.response)) for one in OPERATIONS if one.response is not bytes}


async def _serve_own(path: str) -> None:
    from aghbus.daemon.api.server import ApiServer

    server = ApiServer(handlers(), socket_path=Path(path))
    await server.start()
    await _until_told()
    await server.stop(1.0)


async def _serve_uvicorn(path: str) -> None:
    import uvicorn

    from aghbus.daemon.api.app import ApiApp
    from aghbus.daemon.api.server import MAX_BODY_BYTES

    app: Any = ApiApp(handlers(), asyncio.Event(), max_body=MAX_BODY_BYTES)

    async def asgi(scope: Any, receive: Any, send: Any) -> None:
        exchange = AsgiExchange(scope, receive)
        if (serving := app(exchange)) is not None:
            await serving
        await exchange.send(send)

    Path(path).parent.mkdir(exist_ok=True)
    config = uvicorn.Config(
        asgi, uds=path, http="httptools", ws="none", lifespan="off", access_log=False, log_level="error"
    )
    server = uvicorn.Server(config)
    serving = asyncio.create_task(server.serve())
    while not server.started:
        await asyncio.sleep(0.01)
    await _until_told()
    server.should_exit = True
    await serving


async def _until_told() -> None:
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(rss_kib(), flush=True)


class AsgiExchange:
    """What the application uses of an Exchange, over ASGI."""

    def __init__(self, scope: Any, receive: Any) -> None:
        self._receive = receive
        self.method, self.path, self.query = scope["method"], scope["raw_path"].decode(), scope["query_string"]
        self.headers: dict[bytes, list[bytes]] = {}
        for name, value in scope["headers"]:
            self.headers.setdefault(name, []).append(value)
        self.content_length = int(self.headers.get(b"content-length", [b"0"])[0])
        self.body_complete = self.disconnected = False
        self.keep_alive = True
        self._response: tuple[int, bytes, Iterable[tuple[bytes, bytes]]] | None = None

    async def read(self) -> bytes:
        """The next piece of the body."""
        message = {} if self.body_complete else await self._receive()
        self.body_complete = not message.get("more_body", False)
        body: bytes = message.get("body", b"")
        return body

    def respond(self, status: int, body: bytes, headers: Iterable[tuple[bytes, bytes]] = ()) -> None:
        """Keep the response for `send`."""
        self._response = (status, body, headers)

    async def send(self, send: Any) -> None:
        """Send the response."""
        from aghbus.daemon.api.http.exchange import JSON, common_headers

        assert self._response is not None
        status, body, headers = self._response
        fields = [*common_headers(JSON), (b"content-length", b"%d" % len(body)), *headers]
        await send({"type": "http.response.start", "status": status, "headers": fields})
        await send({"type": "http.response.body", "body": body})


# the client's process


def measure(variant: str, requests: int, *, hostile: bool) -> dict[str, float]:
    """One process of one variant: its report, its figures, and the probes when `hostile`."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/run/d.sock"
        child = subprocess.Popen(
            [sys.executable, "-m", "bench.micro.http_server", "--serve", variant, path],
            cwd=ROOT,
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdin is not None and child.stdout is not None
        found: dict[str, float] = json.loads(child.stdout.readline())
        assert child.stdout.readline() == "ready\n"
        for name, request in REQUESTS.items():
            found[f"{name}, µs"] = latency(path, request_bytes(*request), requests)
        name, request = list(REQUESTS.items())[-1]
        found[f"{name}, {CONNECTIONS} connections, 1/s"] = rate(path, request_bytes(*request), 4 * requests)
        if hostile:
            found.update(
                {
                    probe.__doc__ or "": probe(path, child.pid)
                    for probe in (slow_head, connections, endless_head, unread)
                }
            )
        child.stdin.close()
        found["memory at the end, KiB"] = int(child.stdout.readline())
        child.wait(30)
        child.stdout.close()
    return found


def latency(path: str, request: bytes, count: int) -> float:
    """Median microseconds of one request on a kept-alive connection, after a warm-up of a tenth."""
    times, api = [], RawApi(path)
    for _ in range(count + count // 10):
        started = time.perf_counter()
        api.socket.sendall(request)
        api.answer()
        times.append((time.perf_counter() - started) * 1e6)
    api.socket.close()
    return statistics.median(times[count // 10 :])


def rate(path: str, request: bytes, count: int) -> float:
    """Requests a second over CONNECTIONS kept-alive connections, each with one request at a time."""
    picker, asked, answered = selectors.DefaultSelector(), CONNECTIONS, 0
    apis = [RawApi(path) for _ in range(CONNECTIONS)]
    for api in apis:
        picker.register(api.socket, selectors.EVENT_READ, api)
    started = time.perf_counter()
    for api in apis:
        api.socket.sendall(request)
    while answered < asked:
        for api in ready(picker):
            if api.receive() is None:
                continue
            answered += 1
            if asked < count:
                asked += 1
                api.socket.sendall(request)
    taken = time.perf_counter() - started
    for api in apis:
        api.socket.close()
    return answered / taken


def _connected(path: str) -> socket.socket:
    client = socket.socket(socket.AF_UNIX)
    client.settimeout(PROBE_SECONDS)
    client.connect(path)
    return client


def slow_head(path: str, _: int) -> float:
    """half a head: seconds until the server closes, or inf"""
    with _connected(path) as client:
        started = time.perf_counter()
        client.sendall(b"GET /healthz HTTP/1.1\r\nX-A:")
        try:
            client.recv(1)
        except TimeoutError:
            return float("inf")
        return time.perf_counter() - started


def endless_head(path: str, pid: int) -> float:
    """an endless header: MiB by which the server grows"""
    with _connected(path) as client:
        client.sendall(b"GET /healthz HTTP/1.1\r\nX-A:")
        return _growth(client, b"a" * 65_536, pid)


def unread(path: str, pid: int) -> float:
    """requests whose responses are not read: MiB by which the server grows"""
    with _connected(path) as client:
        return _growth(client, b"GET /healthz HTTP/1.1\r\nHost: d\r\n\r\n" * 1000, pid)


def _growth(client: socket.socket, piece: bytes, pid: int) -> float:
    """MiB by which the server grows until it closes, takes no more for a second, or has taken PROBE_BYTES."""
    before, taken, moved = memory_mib(pid), 0, time.perf_counter()
    client.setblocking(False)
    while taken < PROBE_BYTES and time.perf_counter() - moved < 1.0:
        try:
            taken += client.send(piece[taken % len(piece) :])
            moved = time.perf_counter()
        except BlockingIOError:
            time.sleep(0.001)
        except OSError:
            break
    return memory_mib(pid) - before


def connections(path: str, _: int) -> float:
    """connections that one client may hold, of 600"""
    held = 0
    with contextlib.ExitStack() as stack, contextlib.suppress(OSError):
        for _ in range(MANY):
            client = stack.enter_context(_connected(path))
            client.sendall(b"GET /healthz HTTP/1.1\r\nHost: d\r\n\r\n")
            held += client.recv(12).endswith(b" 200")
    return held


def main() -> None:
    """Measure the variants in turn, and print their medians with the ratio to `own`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="fresh processes of each variant")
    parser.add_argument("--requests", type=int, default=3000, help="requests of each kind in each process")
    parser.add_argument("--hostile", action="store_true", help="probe what bounds a slow or hostile client, once")
    parser.add_argument("--serve", nargs=2, metavar=("VARIANT", "SOCKET"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(*options.serve)
        return
    rounds = [
        {variant: measure(variant, options.requests, hostile=options.hostile and number == 0) for variant in VARIANTS}
        for number in range(options.rounds)
    ]
    print(f"{'median of ' + str(options.rounds):66}" + "".join(f"{variant:>20}" for variant in VARIANTS))
    for name in rounds[0]["own"]:
        medians = {v: statistics.median([r[v][name] for r in rounds if name in r[v]]) for v in VARIANTS}
        cells = [f"{medians[v]:.4g} ({medians[v] / medians['own']:.2f})" for v in VARIANTS]
        print(f"{name:66}" + "".join(f"{cell:>20}" for cell in cells))


if __name__ == "__main__":
    main()
