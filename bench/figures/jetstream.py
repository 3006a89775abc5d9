"""Figure 8: the receive path of figure 1 with a stream in between."""

from bench.harness.figure import Figure, Result, Row, Run, interleave
from bench.harness.load import ignored, received
from bench.harness.processes import ROOMY, broker, daemons


def measure(run: Run) -> Result:
    """The stream keeps each message; the daemon acknowledges it after its own commit."""
    scale = run.scale
    with (
        broker(jetstream=True) as server,
        daemons(server.url, "streamed", flags=(*ROOMY, "--durability", "jetstream")) as (streamed,),
    ):
        found = interleave(
            run,
            {
                "nothing": lambda: ignored(server, scale.floor_messages),
                "say": lambda: received(server, streamed, scale.messages),
            },
        )
    return Result(
        rows=[
            Row(
                what="says of 614 bytes through a stream, delivered to a consumer",
                unit="msg/s",
                values=found["say"],
                floor="nats-py callback that does nothing, no stream",
                floors=found["nothing"],
                bound=0.12,
                aim=0.22,
            )
        ]
    )


FIGURE = Figure("jetstream", "8. JetStream mode", measure)
