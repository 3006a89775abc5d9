"""Figure 2: the send path, from requests on the API to the bus."""

from bench.harness.figure import Figure, Result, Row, Run, interleave
from bench.harness.load import once, published, received
from bench.harness.processes import broker, daemons

_CONNECTIONS = 64


def measure(run: Run) -> Result:
    """Requests over many connections at a time, each answered after its commit, until all are on the bus."""
    scale = run.scale
    with broker() as server, daemons(server.url, "ops") as (ops,):

        def sent() -> float:
            return float(
                once(
                    "caller",
                    do="send",
                    nats=server.url,
                    socket=str(ops.socket_path),
                    to="absent",
                    count=scale.messages // 2,
                    connections=_CONNECTIONS,
                )
            )

        found = interleave(
            run,
            {
                "publish": lambda: published(server, scale.floor_messages),
                "send": sent,
                "receive": lambda: received(server, ops, scale.messages // 2),
            },
        )
    what = f"API, commit, published; {_CONNECTIONS} connections"
    return Result(
        rows=[
            Row(
                what=what,
                unit="msg/s",
                values=found["send"],
                floor="nats-py publish of the same size",
                floors=found["publish"],
            ),
            Row(
                what=what,
                unit="msg/s",
                values=found["send"],
                floor="durable receive path",
                floors=found["receive"],
                bound=0.5,
                aim=1.0,
            ),
        ]
    )


FIGURE = Figure("send", "2. Send path", measure)
