"""Figure `send`: the send path, from requests on the API, over bare sockets, to the bus."""

from bench.harness.figure import Figure, Result, Run, interleave
from bench.harness.load import Api, publish_rate, send_rate, skeletons
from bench.harness.processes import broker, cpu_seconds, daemons, pid_of

_CONNECTIONS = 64


def measure(run: Run) -> Result:
    """Requests over many connections at a time, each answered after its commit, until all are on the bus."""
    scale = run.scale
    with broker() as server, daemons(server.url, "ops") as (ops,), skeletons(server.url, "least") as (least,):

        def sent(name: str, api: Api, pid: int, count: int) -> dict[str, float]:
            before = cpu_seconds(pid)
            rate = send_rate(server, api, count, _CONNECTIONS)
            return {name: rate, f"{name}, processor": count / (cpu_seconds(pid) - before)}

        found = interleave(
            run,
            {
                "publish": lambda: publish_rate(server, scale.floor_messages),
                "skeleton": lambda: sent("skeleton", least, least.pid, 2 * scale.messages),
                "send": lambda: sent("send", ops, pid_of(ops), scale.messages // 2),
            },
        )
    what = f"API over {_CONNECTIONS} bare sockets, commit, published"
    label = "skeleton daemon over HTTP, no rule checked"
    skeleton, busy = (label, "skeleton"), (label, "skeleton, processor")
    return Result(
        rows=[
            found.row(f"{what}: of processor time", "msg/core/s", "send, processor", floor=busy, target=0.2),
            found.row(what, "msg/s", "send", floor=skeleton),
            found.row(what, "msg/s", "send", floor=("nats-py publish of the same size", "publish")),
        ]
    )


FIGURE = Figure("send", "Sending over bare sockets: what the daemon can do", measure)
