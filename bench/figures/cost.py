"""Figure `cost`: what a daemon costs: start-up and memory."""

import time

from bench.harness.figure import Figure, Result, Row, Run, interleave
from bench.harness.load import receive_rate
from bench.harness.processes import LOAD_FLAGS, Child, broker, daemons, home, memory_mib, pid_of
from tests.support.daemons import Daemon
from tests.support.natsutil import NatsServer

_PIECE = 50_000  # messages that the sender prepares at a time


def measure(run: Run) -> Result:
    """`aghd` beside an interpreter that only imports the same libraries."""
    scale = run.scale
    with broker() as server, daemons(server.url, "worker") as (worker,):

        def bare() -> dict[str, float]:
            started = time.perf_counter()
            with Child("bench.harness.floors", "bare") as child:
                child.read()
                took = (time.perf_counter() - started) * 1000
                return {"bare start": took, "bare memory": memory_mib(child.pid)}

        def fresh() -> dict[str, float]:
            with home() as folder:
                started = time.perf_counter()
                with Daemon(folder, "fresh", "--nats", server.url) as daemon:
                    took = (time.perf_counter() - started) * 1000
                    return {"start": took, "memory": memory_mib(pid_of(daemon))}

        def loaded() -> dict[str, float]:
            receive_rate(server, worker, scale.messages)
            return {"loaded memory": memory_mib(pid_of(worker))}

        found = interleave(run, {"bare": bare, "fresh": fresh, "loaded": loaded})
        held = _held(server, scale.held) if scale.held else []
    imports = "bare imports of the same libraries"
    start, memory = (imports, "bare start"), (imports, "bare memory")
    return Result(
        rows=[
            found.row("start of the process to ready", "ms", "start", floor=start),
            found.row("memory when ready", "MiB", "memory", floor=memory),
            found.row("memory after the load", "MiB", "loaded memory", floor=memory),
            *held,
        ],
        notes=[f"The load is {scale.messages:,} says a round, delivered to a consumer; flags: {' '.join(LOAD_FLAGS)}."],
    )


def _held(server: NatsServer, count: int) -> list[Row]:
    """The row about a daemon that has received so many messages."""
    with daemons(server.url, "holder") as (holder,):
        for _ in range(0, count, _PIECE):
            receive_rate(server, holder, min(_PIECE, count))
        memory = memory_mib(pid_of(holder))
    return [Row(what=f"memory after {count:,} messages, all unread", unit="MiB", values=[memory], better="lower")]


FIGURE = Figure("cost", "Memory and start-up", measure)
