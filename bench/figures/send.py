"""Figure 2: the send path, from requests on the API to the bus."""

from bench.harness.figure import Figure, Result, Run, interleave
from bench.harness.load import publish_rate, receive_rate, send_rate
from bench.harness.processes import broker, daemons

_CONNECTIONS = 64


def measure(run: Run) -> Result:
    """Requests over many connections at a time, each answered after its commit, until all are on the bus."""
    scale = run.scale
    with broker() as server, daemons(server.url, "ops") as (ops,):
        found = interleave(
            run,
            {
                "publish": lambda: publish_rate(server, scale.floor_messages),
                "send": lambda: send_rate(server, ops, scale.messages // 2, _CONNECTIONS),
                "receive": lambda: receive_rate(server, ops, scale.messages // 2),
            },
        )
    what = f"API, commit, published; {_CONNECTIONS} connections"
    return Result(
        rows=[
            found.row(what, "msg/s", "send", floor=("nats-py publish of the same size", "publish")),
            found.row(what, "msg/s", "send", floor=("durable receive path", "receive"), target=(0.5, 1.0)),
        ]
    )


FIGURE = Figure("send", "2. Send path", measure)
