"""Figure `jetstream`: the receive path of figure `receive` with a stream in between."""

from bench.harness.figure import Figure, Result, Run, interleave
from bench.harness.load import delivery_rate, no_op_subscriber, receive_rate
from bench.harness.processes import LOAD_FLAGS, broker, daemons


def measure(run: Run) -> Result:
    """The stream keeps each message; the daemon acknowledges it after its own commit."""
    scale, flags = run.scale, (*LOAD_FLAGS, "--durability", "jetstream")
    with (
        broker(jetstream=True) as server,
        daemons(server.url, "streamed", flags=flags) as (streamed,),
        no_op_subscriber(server) as nobody,
    ):
        found = interleave(
            run,
            {
                "nothing": lambda: delivery_rate(nobody, server, scale.floor_messages),
                "say": lambda: receive_rate(server, streamed, scale.messages),
            },
        )
    what = "says of 614 bytes through a stream, delivered to a consumer"
    nothing = ("nats-py callback that does nothing, no stream", "nothing")
    return Result(rows=[found.row(what, "msg/s", "say", floor=nothing, target=0.10)])


FIGURE = Figure("jetstream", "JetStream mode, over bare sockets", measure)
