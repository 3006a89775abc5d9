"""Figure `growth`: the cost of a message as everything else grows."""

import contextlib
import statistics
from collections.abc import Callable, Iterator
from functools import partial

from bench.harness.envelopes import EnvelopeMaker
from bench.harness.figure import Curve, Figure, Measurement, Result, Rounds, Row, Run, interleave
from bench.harness.filling import fill, room_for
from bench.harness.load import drain_rate, receive_rate
from bench.harness.processes import HANG, LOAD_FLAGS, broker, home, run_all
from bench.harness.scale import Growth
from bench.harness.wire import RawNats, frame
from tests.support.daemons import Daemon, Home, wait_for
from tests.support.natsutil import NatsServer

_TITLES = {
    "random": "envelopes with random ids",
    "dedup": "ids in the dedup window",
    "works": "open works",
    "peers": "peers present",
    "inbox": "messages in the inbox",
    "stored": "envelopes in the store",
}
_TARGET = 1.3
_FLAGS = (*LOAD_FLAGS, "--discovery-interval", "1h")

Cost = Callable[[NatsServer, Daemon, int], float]
"""Microseconds for each of so many messages."""


def _receive(server: NatsServer, daemon: Daemon, count: int) -> float:
    return 1e6 / receive_rate(server, daemon, count)


def _receive_and_clear(server: NatsServer, daemon: Daemon, count: int) -> float:
    """The inbox is left as it was found: these messages go again, and are not counted."""
    cost = _receive(server, daemon, count)
    drain_rate(daemon, count)
    return cost


def _lease_and_ack(server: NatsServer, daemon: Daemon, count: int) -> float:
    """So many come first, and are not counted, so that the inbox is left as it was found."""
    receive_rate(server, daemon, count)
    return 1e6 / drain_rate(daemon, count)


def _receive_random(server: NatsServer, daemon: Daemon, count: int) -> float:
    return 1e6 / receive_rate(server, daemon, count, random_ids=True)


_COSTS: dict[str, dict[str, Cost]] = {
    "random": {"received": _receive_random},
    "inbox": {"received": _receive_and_clear, "leased and acked": _lease_and_ack},
}
"""What is measured for each size, by what happens to a message: received, where nothing else is said."""


def measure(run: Run) -> Result:
    """For each quantity, daemons of all its sizes beside each other, the rounds in turn."""
    growth = run.scale.growth
    rows: list[Row] = []
    curves: list[Curve] = []
    notes: list[str] = []
    for what, title in _TITLES.items():
        if rows and run.progress.late:
            notes.append(f"Not measured: {title}: no time was left.")
            continue
        sizes, found = _grown(run, what, _possible(growth, what, notes), notes)
        for done in _COSTS.get(what, {"received": _receive}):
            rows += _rows(found, done, what, sizes)
            costs = [statistics.median(found[f"{done} {size}"]) for size in sizes]
            name = title if done == "received" else f"{title}, {done}"
            curves.append(Curve(name=name, unit="µs per message", sizes=sizes, costs=costs))
    return Result(rows=rows, curves=curves, notes=notes)


def _possible(growth: Growth, what: str, notes: list[str]) -> list[int]:
    """The sizes for which there is room on the disk; why others are left out goes into `notes`."""
    sizes: list[int] = []
    total = 0
    for size in getattr(growth, what):
        total += size
        if why := room_for(what, total):
            notes.append(f"Not measured: {size:,} {_TITLES[what]}: {why}.")
            break
        sizes.append(size)
    return sizes


def _rows(found: Rounds, done: str, what: str, sizes: list[int]) -> list[Row]:
    small, *others = sizes
    floor = (f"{small:,}", f"{done} {small}")
    return [
        found.row(
            f"{size:,} {_TITLES[what]}: {done}",
            "µs/msg",
            f"{done} {size}",
            floor=floor,
            target=_TARGET,
        )
        for size in others
    ]


def _grown(run: Run, what: str, sizes: list[int], notes: list[str]) -> tuple[list[int], Rounds]:
    """The sizes that there was time for, and costs by `"<what happens> <size>"`."""
    with broker() as server, home() as folder, _daemons(run, server, folder, what, sizes) as grown:
        notes += [f"Not measured: {size:,} {_TITLES[what]}: no time to fill it." for size in sizes if size not in grown]
        ways: dict[str, Measurement] = {
            f"{done} {size}": partial(cost, server, daemon, run.scale.growth.messages)
            for size, daemon in grown.items()
            for done, cost in _COSTS.get(what, {"received": _receive}).items()
        }
        return list(grown), interleave(run, ways)


@contextlib.contextmanager
def _daemons(run: Run, server: NatsServer, folder: Home, what: str, sizes: list[int]) -> Iterator[dict[int, Daemon]]:
    """A daemon for each size, by size."""

    def in_time(step: str) -> bool:
        run.progress.step(step)
        return not run.progress.late or size == sizes[0]

    grown = {size: Daemon(folder, f"grown-{size}", "--nats", server.url, *_FLAGS) for size in sizes}
    if what != "peers":
        for size, daemon in list(grown.items()):
            if not fill(daemon.store_path, what, size, daemon.name, in_time):
                del grown[size]
    with contextlib.ExitStack() as stack:
        run.progress.step(f"starting with {_TITLES[what]}")
        run_all(stack, list(grown.values()))
        if what == "peers":
            _greet(server, grown)
        yield grown


def _greet(server: NatsServer, grown: dict[int, Daemon]) -> None:
    """So many peers greet each daemon, one by one on its own subject, so that the others do not hear them."""
    with RawNats(server.url) as nats:
        for size, daemon in grown.items():
            for number in range(size):
                maker = EnvelopeMaker(f"peer-{number:05d}", None)
                nats.socket.sendall(frame(EnvelopeMaker("", daemon.name).subject, maker.greet()))
            nats.flush()
    for size, daemon in grown.items():
        wait_for(partial(_has, daemon, size), HANG, "presence")


def _has(daemon: Daemon, peers: int) -> bool:
    return len(daemon.get("/v1/peers")["peers"]) >= peers


FIGURE = Figure("growth", "Growth, over bare sockets", measure, 7.0)
