"""Figure 3: whole works between two daemons, at rest and under load."""

import json
import statistics
import threading

from bench.harness.figure import Figure, Result, Row, Run, interleave
from bench.harness.load import once, requests
from bench.harness.processes import Child, broker, daemons
from bench.harness.statistic import percentile
from tests.support.daemons import Daemon
from tests.support.natsutil import NatsServer

RATE = 1_000  # messages a second beside what is measured
FLIGHT = 16  # works at a time, where throughput is measured


def crowd(ops: Daemon, worker: Daemon, count: int) -> float:
    """Works a second from one daemon to another and back."""
    job = {"ops": str(ops.socket_path), "worker": str(worker.socket_path), "to": worker.name}
    return float(once("caller", do="crowd", count=count, flight=FLIGHT, **job))


def measure(run: Run) -> Result:
    """Open, receipt, trace working, trace completed: four messages that are committed on both sides, and an inbox between them."""
    scale = run.scale
    taken: dict[str, list[float]] = {"request-reply": [], "work at rest": [], f"work at {RATE} msg/s": []}
    acked: dict[str, list[float]] = {"echo": [], "ack after commit": []}
    with (
        broker() as server,
        daemons(server.url, "ops", "worker") as (ops, worker),
        Child("bench.harness.floors", "echo", server.url, "bench.paced") as echo,
    ):
        echo.read()
        job = {"ops": str(ops.socket_path), "worker": str(worker.socket_path), "to": "worker"}

        def floor() -> float:
            return _median(taken["request-reply"], requests(server, scale.calls))

        def resting() -> float:
            return _median(taken["work at rest"], once("caller", do="works", count=scale.calls // 2, **job))

        def loaded() -> float:
            with _Load(server, "worker", scale.paced_seconds + 1.0):
                samples = once("caller", do="works", count=scale.calls // 2, **job)
            return _median(taken[f"work at {RATE} msg/s"], samples)

        def paced(name: str, **where: str) -> float:
            samples = once(
                "pump", do="pace", nats=server.url, rate=RATE, seconds=scale.paced_seconds, reply=True, **where
            )
            return _median(acked[name], samples)

        found = interleave(
            run,
            {
                "request": floor,
                "works": resting,
                "works under load": loaded,
                "echo": lambda: paced("echo", to="nobody", subject="bench.paced"),
                "ack": lambda: paced("ack after commit", to="worker"),
                "crowd": lambda: crowd(ops, worker, scale.works),
            },
        )
    ask, asked = "raw request-reply, p50", found["request"]
    rows = [
        Row(what=f"works, {FLIGHT} at a time", unit="works/s", values=found["crowd"]),
        Row(what="a work at rest, p50", unit="ms", values=found["works"], floor=ask, floors=asked, better="lower"),
        Row(what="a work at rest, p99", unit="ms", values=[percentile(taken["work at rest"], 0.99)]),
        Row(
            what=f"a work at {RATE} msg/s, p50",
            unit="ms",
            values=found["works under load"],
            floor=ask,
            floors=asked,
            better="lower",
        ),
        Row(what=f"a work at {RATE} msg/s, p99", unit="ms", values=[percentile(taken[f"work at {RATE} msg/s"], 0.99)]),
        Row(
            what=f"acknowledged after commit at {RATE} msg/s, p50",
            unit="ms",
            values=found["ack"],
            floor="nats-py echo that keeps nothing",
            floors=found["echo"],
            bound=3.0,
            aim=2.2,
            better="lower",
        ),
        Row(
            what=f"acknowledged after commit at {RATE} msg/s, p99",
            unit="ms",
            values=[percentile(acked["ack after commit"], 0.99)],
        ),
    ]
    return Result(rows=rows, latencies={**taken, **acked})


def _median(into: list[float], samples: list[float]) -> float:
    into.extend(samples)
    return statistics.median(samples)


class _Load:
    """RATE says a second to a peer while its block runs, for at most so many seconds."""

    def __init__(self, server: NatsServer, to: str, seconds: float) -> None:
        job = {"do": "pace", "nats": server.url, "to": to, "rate": RATE, "seconds": seconds, "sender": "neighbour"}
        self._child = Child("bench.harness.pump", json.dumps(job))
        self._reader = threading.Thread(target=self._child.read)

    def __enter__(self) -> None:
        self._reader.start()

    def __exit__(self, *_: object) -> None:
        self._reader.join()
        self._child.__exit__()


FIGURE = Figure("work", "3. Works between two daemons", measure, 2.5)
