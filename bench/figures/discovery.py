"""Figure `whois`: warm over a bare socket, and cold as a command of a wheel install."""

from bench.harness.figure import Figure, Result, Run, interleave
from bench.harness.load import request_times, run_job
from bench.harness.processes import broker, daemons, wall_ms
from bench.harness.wheel import wheel_install

# A peer that asks a thousand times in a second or two is otherwise left without an answer.
_FLAGS = ("--capability", "test.run", "--limits-answers-per-minute", "1000000")


def measure(run: Run) -> Result:
    """One peer that answers, another that asks."""
    scale = run.scale
    with (
        wheel_install() as scripts,
        broker() as server,
        daemons(server.url, "worker", "ops", flags=_FLAGS) as (_, ops),
    ):
        job = {"do": "whois", "socket": str(ops.socket_path), "query": "worker", "count": scale.calls}

        def command(*words: str) -> list[float]:
            return [wall_ms(list(words), ops.env) for _ in range(scale.cold_starts)]

        found = interleave(
            run,
            {
                "request-reply": lambda: request_times(server, scale.calls),
                "whois": lambda: list(run_job("caller", **job)),
                "python": lambda: command(str(scripts / "python"), "-c", "pass"),
                "aghctl": lambda: command(str(scripts / "aghctl"), "--name", "ops", "whois", "worker", "--first"),
            },
        )
    request, python = (
        ("nats-py request and reply, uvloop at both ends, p50", "request-reply"),
        ("`python -c pass`", "python"),
    )
    return Result(
        rows=[
            found.row(
                "whois over two daemons, warm, over a bare socket, p50", "ms", "whois", floor=request, target=1.6
            ),
            found.row("`aghctl whois --first`, cold, wheel install, wall", "ms", "aghctl", floor=python, target=2.6),
        ],
        latencies={name: found.samples[name] for name in ("request-reply", "whois")},
    )


FIGURE = Figure("whois", "Discovery", measure)
