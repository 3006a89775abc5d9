"""Figure 8: the receive path of figure 1 with a stream in between."""

from bench.harness.figure import Figure, Result, Run, interleave
from bench.harness.load import ignoring, into, received
from bench.harness.processes import ROOMY, broker, daemons


def measure(run: Run) -> Result:
    """The stream keeps each message; the daemon acknowledges it after its own commit."""
    scale, flags = run.scale, (*ROOMY, "--durability", "jetstream")
    with (
        broker(jetstream=True) as server,
        daemons(server.url, "streamed", flags=flags) as (streamed,),
        ignoring(server) as nobody,
    ):
        found = interleave(
            run,
            {
                "nothing": lambda: into(nobody, server, scale.floor_messages),
                "say": lambda: received(server, streamed, scale.messages),
            },
        )
    what = "says of 614 bytes through a stream, delivered to a consumer"
    nothing = ("nats-py callback that does nothing, no stream", "nothing")
    return Result(rows=[found.row(what, "msg/s", "say", floor=nothing, target=(0.12, 0.22))])


FIGURE = Figure("jetstream", "8. JetStream mode", measure)
