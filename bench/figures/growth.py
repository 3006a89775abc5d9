"""Figure 6: the cost of a message as everything else grows."""

import contextlib
from collections.abc import Iterator
from functools import partial

from bench.harness.envelopes import Maker
from bench.harness.figure import Curve, Figure, Result, Row, Run, interleave
from bench.harness.filling import fill
from bench.harness.load import received
from bench.harness.processes import ROOMY, broker, home
from bench.harness.wire import RawNats, frame
from tests.support.daemons import Daemon, Home, wait_for
from tests.support.natsutil import NatsServer

_TITLES = {
    "dedup": "ids in the dedup window",
    "stored": "envelopes in the store",
    "works": "open works",
    "peers": "peers present",
}
_FLAGS = (*ROOMY, "--store-retention-size", "1000GiB", "--discovery-interval", "1h")


def measure(run: Run) -> Result:
    """For each quantity, daemons of all its sizes beside each other, the rounds in turn."""
    scale = run.scale
    sizes = {
        "dedup": scale.dedup,
        "works": scale.open_works,
        "peers": scale.present,
        "stored": scale.stored,  # last: filling it takes longest
    }
    rows: list[Row] = []
    curves: list[Curve] = []
    for what, counts in sizes.items():
        if rows and run.progress.late:
            break
        with broker() as server, home() as folder, _grown(run, server, folder, what, counts) as grown:
            ways = {str(size): partial(_cost, server, daemon, scale.growth_messages) for size, daemon in grown.items()}
            found = interleave(run, ways, scale.growth_rounds)
        small, *others = counts
        rows += [
            Row(
                what=f"{size:,} {_TITLES[what]}",
                unit="µs/msg",
                values=found[str(size)],
                floor=f"{small:,}",
                floors=found[str(small)],
                bound=1.3,
                aim=1.05,
                better="lower",
            )
            for size in others
        ]
        middle = [sorted(found[str(size)])[len(found[str(size)]) // 2] for size in counts]
        curves.append(Curve(name=_TITLES[what], unit="µs per message", sizes=list(counts), costs=middle))
    left = [_TITLES[what] for what in sizes if what not in list(sizes)[: len(curves)]]
    return Result(rows=rows, curves=curves, notes=[f"No time for: {', '.join(left)}."] if left else [])


def _cost(server: NatsServer, daemon: Daemon, count: int) -> float:
    return 1e6 / received(server, daemon, count)


@contextlib.contextmanager
def _grown(
    run: Run, server: NatsServer, folder: Home, what: str, counts: tuple[int, ...]
) -> Iterator[dict[int, Daemon]]:
    """A daemon for each size, by size."""
    with contextlib.ExitStack() as stack:
        grown = {}
        for size in counts:
            daemon = Daemon(folder, f"grown-{size}", "--nats", server.url, *_FLAGS)
            if what != "peers":
                fill(daemon.store_path, what, size, daemon.name, run.progress.step)
            run.progress.step(f"starting with {size:,} {_TITLES[what]}")
            grown[size] = stack.enter_context(daemon)
        if what == "peers":
            _greet(server, grown)
        yield grown


def _greet(server: NatsServer, grown: dict[int, Daemon]) -> None:
    """So many peers greet each daemon, one by one on its own subject, so that the others do not hear them."""
    with RawNats(server.url) as nats:
        for size, daemon in grown.items():
            for number in range(size):
                maker = Maker(f"peer-{number:05d}", None)
                nats.socket.sendall(frame(Maker("", daemon.name).subject, maker.greet()))
            nats.flush()
    for size, daemon in grown.items():
        wait_for(partial(_has, daemon, size), 60, "presence")


def _has(daemon: Daemon, peers: int) -> bool:
    return len(daemon.get("/v1/peers")["peers"]) >= peers


FIGURE = Figure("growth", "6. Growth", measure, 4.0)
