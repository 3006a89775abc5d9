"""Figure 9: other systems on the same work, each as its documentation recommends it."""

import contextlib
import importlib.util
import tempfile
from collections.abc import Iterator

from aghbus.protocol.identifiers import subject_for
from bench.figures.work import FLIGHT, crowd
from bench.harness.envelopes import CHANNEL, WORKSPACE
from bench.harness.figure import Figure, Result, Row, Run, interleave
from bench.harness.load import into, once, received
from bench.harness.processes import Child, broker, daemons
from tests.support.natsutil import NatsServer

_NEEDED = {"a2a": "a2a-sdk", "faststream": "faststream", "sqlalchemy": "a2a-sdk[sqlite]", "uvicorn": "uvicorn"}


def measure(run: Run) -> Result:
    """Ours and theirs in the same rounds."""
    missing = sorted({package for module, package in _NEEDED.items() if importlib.util.find_spec(module) is None})
    if missing:
        return Result(skipped=f"not installed: {', '.join(missing)} (pip install --group bench)")
    scale = run.scale
    with broker() as server, daemons(server.url, "ops", "worker") as (ops, worker), _service(server) as service:
        assert service == "ready"

        def a2a(store: str) -> float:
            with (
                tempfile.TemporaryDirectory(prefix="aghbench-") as folder,
                Child("bench.peers.a2a_server", folder, store) as child,
            ):
                return float(once("rivals", do="a2a", port=child.read(), count=scale.works, flight=FLIGHT))

        def faststream() -> float:
            subject = subject_for(WORKSPACE, CHANNEL, "faststream")
            with Child("bench.peers.faststream_app", server.url, subject) as child:
                return into(child, server, scale.messages, subject, to="faststream")

        def micro() -> float:
            return float(once("rivals", do="micro", nats=server.url, count=10 * scale.works, flight=FLIGHT))

        found = interleave(
            run,
            {
                "works": lambda: crowd(ops, worker, scale.works),
                "a2a, SQLite": lambda: a2a("sqlite"),
                "a2a, memory": lambda: a2a("memory"),
                "micro service": micro,
                "receive": lambda: received(server, worker, scale.messages),
                "faststream": faststream,
            },
        )

    def beside(floor: str, name: str, bound: float | None = None, aim: float | None = None) -> Row:
        what = f"works, {FLIGHT} at a time"
        return Row(
            what=what, unit="works/s", values=found["works"], floor=floor, floors=found[name], bound=bound, aim=aim
        )

    return Result(
        rows=[
            beside("a2a-sdk SendMessage, tasks in SQLite", "a2a, SQLite", 30, 80),
            beside("a2a-sdk SendMessage, tasks in memory", "a2a, memory"),
            beside("nats-py micro service, keeps nothing", "micro service"),
            Row(
                what="durable receive path, delivered to a consumer",
                unit="msg/s",
                values=found["receive"],
                floor="FastStream subscriber, keeps nothing",
                floors=found["faststream"],
                bound=1.5,
                aim=4.0,
            ),
        ]
    )


@contextlib.contextmanager
def _service(server: NatsServer) -> Iterator[str]:
    with Child("bench.peers.micro_service", server.url) as child:
        yield child.read()


FIGURE = Figure("peers", "9. Others on the same work", measure, 2.0)
