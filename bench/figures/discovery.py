"""Figure 4: whois, warm through the API and cold as a command."""

import statistics
import sys
from pathlib import Path

from bench.harness.figure import Figure, Result, Row, Run, interleave
from bench.harness.load import once, requests
from bench.harness.processes import broker, daemons, wall


def measure(run: Run) -> Result:
    """One peer that answers, another that asks."""
    scale = run.scale
    latencies: dict[str, list[float]] = {"request-reply": [], "whois": []}
    aghctl = str(Path(sys.executable).with_name("aghctl"))
    with broker() as server, daemons(server.url, "worker", "ops", flags=("--capability", "test.run")) as (_, ops):

        def warm() -> float:
            samples: list[float] = once(
                "caller", do="whois", socket=str(ops.socket_path), query="worker", count=scale.calls
            )
            latencies["whois"].extend(samples)
            return statistics.median(samples)

        def floor() -> float:
            samples = requests(server, scale.calls)
            latencies["request-reply"].extend(samples)
            return statistics.median(samples)

        def cold() -> float:
            command = [aghctl, "--name", "ops", "whois", "worker", "--first"]
            return statistics.median(wall(command, ops.env) for _ in range(scale.cold_starts))

        def python() -> float:
            return statistics.median(wall([sys.executable, "-c", "pass"], ops.env) for _ in range(scale.cold_starts))

        found = interleave(run, {"request": floor, "whois": warm, "python": python, "aghctl": cold})
    return Result(
        rows=[
            Row(
                what="whois over two daemons, warm, p50",
                unit="ms",
                values=found["whois"],
                floor="raw request-reply, p50",
                floors=found["request"],
                bound=2.0,
                aim=1.25,
                better="lower",
            ),
            Row(
                what="`aghctl whois --first`, cold, wall",
                unit="ms",
                values=found["aghctl"],
                floor="`python -c pass`",
                floors=found["python"],
                bound=5.0,
                aim=2.5,
                better="lower",
            ),
        ],
        latencies=latencies,
    )


FIGURE = Figure("whois", "4. Discovery", measure)
