"""Figure 5: what a daemon costs: start-up, memory, and doing nothing."""

import time

from bench.harness.figure import Figure, Result, Row, Run, interleave
from bench.harness.load import receive_rate
from bench.harness.processes import LOAD_FLAGS, Child, broker, cpu_seconds, daemons, home, memory_mib, pid_of
from tests.support.daemons import Daemon


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
        run.progress.step("doing nothing")
        before = cpu_seconds(pid_of(worker))
        time.sleep(scale.idle_seconds)
        idle = 100 * (cpu_seconds(pid_of(worker)) - before) / scale.idle_seconds
    imports = "bare imports of the same libraries"
    start, memory = (imports, "bare start"), (imports, "bare memory")
    return Result(
        rows=[
            found.row("start of the process to ready", "ms", "start", floor=start),
            found.row("memory when ready", "MiB", "memory", floor=memory),
            found.row("memory after the load", "MiB", "loaded memory", floor=memory, target=(2.5, 1.5)),
            Row(what="processor time at rest", unit="% of a core", values=[idle], better="lower"),
        ],
        notes=[f"The load is {scale.messages:,} says a round, delivered to a consumer; flags: {' '.join(LOAD_FLAGS)}."],
    )


FIGURE = Figure("cost", "5. Memory, start-up, idle", measure)
