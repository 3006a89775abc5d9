"""Figure 5: what a daemon costs: start-up and memory."""

import time

from bench.harness.figure import Figure, Result, Run, interleave
from bench.harness.load import receive_rate
from bench.harness.processes import LOAD_FLAGS, Child, broker, daemons, home, memory_mib, pid_of
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
    imports = "bare imports of the same libraries"
    start, memory = (imports, "bare start"), (imports, "bare memory")
    return Result(
        rows=[
            found.row("start of the process to ready", "ms", "start", floor=start),
            found.row("memory when ready", "MiB", "memory", floor=memory),
            found.row("memory after the load", "MiB", "loaded memory", floor=memory),
        ],
        notes=[f"The load is {scale.messages:,} says a round, delivered to a consumer; flags: {' '.join(LOAD_FLAGS)}."],
    )


FIGURE = Figure("cost", "5. Memory and start-up", measure)
