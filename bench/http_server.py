"""What the local API costs with our own routing, and with Starlette's: import time, memory, latency on the Unix socket.

    pip install starlette  # which aghbus itself does not need
    python bench/http_server.py [--rounds 5] [--requests 4000]

Each round starts a fresh process for each variant, with what the daemon has loaded anyway (asyncio, msgspec, NATS) already
imported. Figures are medians of the rounds; judge the ratios, the machine decides the rest (docs/adr/0003).
"""

import argparse
import asyncio
import json
import socket
import statistics
import subprocess
import sys
import tempfile
import time
from pathlib import Path
from typing import Any

VARIANTS = ("table", "starlette", "parser")
"""`table`: uvicorn's connection under our table of routes. `starlette`: the same under Starlette's router. `parser`: only
imports the HTTP parser (httptools), the floor below which no server of its kind can go."""

REQUESTS: dict[str, tuple[str, str, bytes | None]] = {
    "GET /readyz": ("GET", "/readyz", None),
    "GET /v1/works?…": ("GET", "/v1/works?state=working&state=submitted&limit=10", None),
    "POST /v1/messages": ("POST", "/v1/messages", b'{"kind":"say","to":"ops","body":{"text":"hello"}}'),
}


def rss_kib() -> int:
    """Resident memory of this process in KiB."""
    with Path("/proc/self/status").open() as lines:
        return next(int(line.split()[1]) for line in lines if line.startswith("VmRSS:"))


def serve(variant: str, path: str) -> None:
    """The child: import, report, serve until standard input closes, report memory again."""
    import msgspec  # noqa: F401 - a cost that every variant shares
    import nats  # noqa: F401 - likewise

    before, started = rss_kib(), time.perf_counter()
    if variant == "parser":
        import httptools  # noqa: F401 - its cost is the measurement
    else:
        import aghbus.daemon.api.server  # noqa: F401 - likewise
    if variant == "starlette":
        import starlette.applications
        import starlette.responses
        import starlette.routing  # noqa: F401 - likewise
    report = {"import_ms": (time.perf_counter() - started) * 1000, "import_kib": rss_kib() - before}
    print(json.dumps(report), flush=True)
    if variant != "parser":
        asyncio.run(_serve(variant, path))


async def _serve(variant: str, path: str) -> None:
    from aghbus.daemon.api.routes import ROUTES
    from aghbus.daemon.api.server import ApiServer
    from aghbus.protocol.api.messages import SendResponse
    from aghbus.protocol.api.status import ReadinessResponse
    from aghbus.protocol.api.works import WorksResponse

    sent = SendResponse(
        **dict.fromkeys(("thread_id", "direct_id", "work_id", "work_state")),
        id="msg_1",
        seq=1,
        kind="say",
        workspace_id="ws_local",
        channel="default",
        to="ops",
        state="queued",
    )

    responses = {
        "GET /readyz": ReadinessResponse(ready=True, broker=True, subscriptions=True, store=True),
        "GET /v1/works": WorksResponse(works=[]),
        "POST /v1/messages": sent,
    }

    def operation(response: Any) -> Any:
        async def respond(*_: Any) -> Any:
            return response

        return respond

    operations = {route: operation(responses.get(f"{route.method} {route.path}")) for route in ROUTES}
    server = ApiServer(operations, socket_path=Path(path))
    if variant == "starlette":
        server._app = starlette_app(operations)
    await server.start()
    print("ready", flush=True)
    await asyncio.to_thread(sys.stdin.read)
    print(rss_kib(), flush=True)
    await server.stop(1.0)


def starlette_app(operations: Any) -> Any:
    """Our table of routes given to Starlette, with our own parsing and types behind it."""
    import msgspec
    from starlette.applications import Starlette
    from starlette.requests import Request
    from starlette.responses import Response
    from starlette.routing import Route as StarletteRoute

    from aghbus.daemon.api import parsing
    from aghbus.daemon.api.route import Route
    from aghbus.daemon.api.routes import ROUTES

    def endpoint(route: Route) -> Any:
        async def answer(request: Request) -> Response:
            segments = [str(value) for value in request.path_params.values()]
            arguments: list[Any] = parsing.path_arguments(route, segments) if segments else []
            arguments.append(parsing.query_string(request.scope["query_string"], route.query))
            if route.request is not None:
                arguments.append(parsing.request(await request.body(), route.request))
            found = await operations[route](*arguments)
            return Response(msgspec.json.encode(found), route.status, media_type="application/json")

        return answer

    return Starlette(routes=[StarletteRoute(r.path, endpoint(r), methods=[r.method]) for r in ROUTES if r.operation])


def measure(variant: str, requests: int) -> dict[str, float]:
    """One process of one variant: its report, and its latencies in microseconds."""
    with tempfile.TemporaryDirectory() as folder:
        path = f"{folder}/run/d.sock"
        child = subprocess.Popen(
            [sys.executable, __file__, "--serve", variant, path],
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            text=True,
        )
        assert child.stdin is not None and child.stdout is not None
        figures: dict[str, float] = json.loads(child.stdout.readline())
        if variant != "parser":
            assert child.stdout.readline() == "ready\n"
            for name, request in REQUESTS.items():
                figures[f"{name}, µs"] = latency(path, *request, requests)
        child.stdin.close()
        if variant != "parser":
            figures["memory after load, KiB"] = int(child.stdout.readline())
        child.wait(30)
        child.stdout.close()
    return figures


def latency(path: str, method: str, target: str, body: bytes | None, requests: int) -> float:
    """Median microseconds of one request on a connection that is kept alive, after a warm-up of a tenth.

    On a bare socket: an HTTP client in Python would cost more than the server.
    """
    head = (
        f"{method} {target} HTTP/1.1\r\nHost: d\r\nContent-Type: application/json\r\nContent-Length: {len(body or b'')}"
    )
    request = head.encode() + b"\r\n\r\n" + (body or b"")
    times = []
    with socket.socket(socket.AF_UNIX) as connection:
        connection.connect(path)
        for _ in range(requests + requests // 10):
            started = time.perf_counter()
            connection.sendall(request)
            answer = _one_answer(connection)
            times.append((time.perf_counter() - started) * 1e6)
            assert answer.startswith(b"HTTP/1.1 20"), answer
    return statistics.median(times[requests // 10 :])


def _one_answer(connection: socket.socket) -> bytes:
    answer = connection.recv(65_536)
    head, _, body = answer.partition(b"\r\n\r\n")
    length = int(head.lower().partition(b"content-length: ")[2].split(b"\r\n")[0])
    while len(body) < length:
        more = connection.recv(65_536)
        answer, body = answer + more, body + more
    return answer


def _cell(medians: dict[str, float], variant: str) -> str:
    return f"{medians[variant]:.0f} ({medians[variant] / medians['table']:.2f})" if variant in medians else "-"


def main() -> None:
    """Measure the variants in turn, and print their medians with the ratio to `table`."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=5, help="fresh processes of each variant")
    parser.add_argument("--requests", type=int, default=4000, help="requests of each kind in each process")
    parser.add_argument("--serve", nargs=2, metavar=("VARIANT", "SOCKET"), help=argparse.SUPPRESS)
    options = parser.parse_args()
    if options.serve:
        serve(*options.serve)
        return
    rounds = [{variant: measure(variant, options.requests) for variant in VARIANTS} for _ in range(options.rounds)]
    names = list(rounds[0]["table"])
    print(f"{'median of ' + str(options.rounds):26}" + "".join(f"{variant:>20}" for variant in VARIANTS))
    for name in names:
        medians = {v: statistics.median(r[v][name] for r in rounds) for v in VARIANTS if name in rounds[0][v]}
        cells = "".join(f"{_cell(medians, v):>20}" for v in VARIANTS)
        print(f"{name:26}{cells}")


if __name__ == "__main__":
    main()
