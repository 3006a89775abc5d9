"""Figure `work`: whole works between two daemons over bare sockets, at rest and under load."""

import statistics

from bench.harness.figure import Figure, Result, Row, Run, interleave
from bench.harness.load import (
    WAL_WORKS,
    acknowledgement_times,
    background_load,
    ready_child,
    request_times,
    skeletons,
    work_times,
)
from bench.harness.processes import broker, daemons
from bench.harness.statistic import percentile
from bench.peers.agents import FLIGHT

RATE = 1_000  # messages a second beside what is measured
_WAL_WORKS_SKELETON = 3_000  # until that of a skeleton has
_PACED = "bench.paced"


def measure(run: Run) -> Result:
    """Open, receipt, trace completed: three messages that are committed on both sides, and an inbox between them."""
    scale = run.scale
    with (
        broker() as server,
        daemons(server.url, "ops", "worker") as (ops, worker),
        skeletons(server.url, "least-ops", "least-worker") as (least_ops, least_worker),
        ready_child("bench.harness.floors", "echo", server.url, _PACED),
    ):
        if scale.warm_up:
            work_times(ops, worker, WAL_WORKS, FLIGHT)
            work_times(least_ops, least_worker, _WAL_WORKS_SKELETON, FLIGHT)
        reached: list[float] = []

        def under_load() -> list[float]:
            with background_load(server, worker, RATE, reached):
                return work_times(ops, worker, scale.works, 1)[0]

        found = interleave(
            run,
            {
                "request-reply": lambda: request_times(server, scale.calls),
                "at rest": lambda: work_times(ops, worker, scale.works, 1)[0],
                "under load": under_load,
                "echo": lambda: acknowledgement_times(server, scale.paced, RATE, to="nobody", subject=_PACED),
                "ack": lambda: acknowledgement_times(server, scale.paced, RATE, to=worker.name),
                "skeleton": lambda: work_times(least_ops, least_worker, 6 * scale.works, FLIGHT)[1],
                "concurrent": lambda: work_times(ops, worker, 2 * scale.works, FLIGHT)[1],
            },
        )
    request, echo = ("nats-py request and reply, p50", "request-reply"), ("nats-py echo that keeps nothing", "echo")
    skeleton = ("skeleton daemons over HTTP, no rule checked", "skeleton")
    work, ack = f"a work over bare sockets at {RATE} msg/s", f"acknowledged after commit at {RATE} msg/s"
    rest, samples = "a work at rest over bare sockets", found.samples

    def slowest(what: str, name: str) -> Row:
        return Row(what=f"{what}, p99", unit="ms", values=[percentile(samples[name], 0.99)])

    return Result(
        rows=[
            found.row(
                f"works, {FLIGHT} at a time, over bare sockets", "works/s", "concurrent", floor=skeleton, target=0.27
            ),
            found.row(f"{rest}, p50", "ms", "at rest", floor=request),
            slowest(rest, "at rest"),
            found.row(f"{work}, p50", "ms", "under load", floor=request),
            slowest(work, "under load"),
            found.row(f"{ack}, p50", "ms", "ack", floor=echo, target=2.3),
            slowest(ack, "ack"),
        ],
        latencies={
            "request-reply": samples["request-reply"],
            "work at rest, bare sockets": samples["at rest"],
            f"work at {RATE} msg/s, bare sockets": samples["under load"],
            "echo": samples["echo"],
            "ack after commit": samples["ack"],
        },
        notes=[f"The load beside works reached {statistics.median(reached):,.0f} of {RATE:,} messages a second."],
    )


FIGURE = Figure("work", "Works over bare sockets: what the daemons can do", measure, 2.5)
