"""Figure 5: what a daemon costs: start-up, memory, and doing nothing."""

import time

from bench.harness.figure import Figure, Result, Row, Run, interleave
from bench.harness.load import received
from bench.harness.processes import ROOMY, Child, broker, cpu_seconds, daemons, home, memory_mib, pid_of
from tests.support.daemons import Daemon


def measure(run: Run) -> Result:
    """`aghd` beside an interpreter that only imports the same libraries."""
    scale = run.scale
    bare_mib: list[float] = []
    fresh_mib: list[float] = []
    with broker() as server, daemons(server.url, "worker") as (worker,):

        def bare() -> float:
            started = time.perf_counter()
            with Child("bench.harness.floors", "bare") as child:
                child.read()
                took = (time.perf_counter() - started) * 1000
                bare_mib.append(memory_mib(child.pid))
            return took

        def start() -> float:
            with home() as folder:
                started = time.perf_counter()
                with Daemon(folder, "fresh", "--nats", server.url) as daemon:
                    took = (time.perf_counter() - started) * 1000
                    fresh_mib.append(memory_mib(pid_of(daemon)))
            return took

        def loaded() -> float:
            received(server, worker, scale.messages)
            return memory_mib(pid_of(worker))

        found = interleave(run, {"bare": bare, "start": start, "loaded": loaded})
        run.progress.step("doing nothing")
        before = cpu_seconds(pid_of(worker))
        time.sleep(scale.idle_seconds)
        idle = 100 * (cpu_seconds(pid_of(worker)) - before) / scale.idle_seconds
    rounds = len(found["bare"])
    bare_rounds = bare_mib[-rounds:]
    imports = "bare imports of the same libraries"
    return Result(
        rows=[
            Row(
                what="start of the process to ready",
                unit="ms",
                values=found["start"],
                floor=imports,
                floors=found["bare"],
                better="lower",
            ),
            Row(
                what="memory when ready",
                unit="MiB",
                values=fresh_mib[-rounds:],
                floor=imports,
                floors=bare_rounds,
                better="lower",
            ),
            Row(
                what="memory after the load",
                unit="MiB",
                values=found["loaded"],
                bound=2.5,
                aim=1.5,
                floor=imports,
                floors=bare_rounds,
                better="lower",
            ),
            Row(what="processor time at rest", unit="% of a core", values=[idle], better="lower"),
        ],
        notes=[f"The load is {scale.messages:,} says a round, delivered to a consumer; flags: {' '.join(ROOMY)}."],
    )


FIGURE = Figure("cost", "5. Memory, start-up, idle", measure)
