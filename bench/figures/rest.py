"""Figure `rest`: daemons with little or nothing to do: what they write, their processor time and their memory."""

import contextlib
import time
from collections.abc import Iterator

from bench.harness.figure import Figure, Result, Row, Run, interleave
from bench.harness.load import acknowledgement_times, running, work_times
from bench.harness.processes import HANG, broker, daemons, pid_of, pss_mib, usage
from tests.support.daemons import Daemon, wait_for

_RATE = 50  # messages a second: each is alone in its commit
_PEERS = 60  # that an idle daemon knows
_GREETS = 30  # seconds between two greets of a peer, as by default
_DAY = 86_400


def measure(run: Run) -> Result:
    """Messages and works one at a time; meanwhile many daemons on a broker of their own do nothing but greet. Messages go to the
    opener of the works: nobody reads them, and the worker's agent waits for a work with an empty inbox, as agents do."""
    scale = run.scale
    with (
        _idle_daemons(run) as idle,
        broker() as server,
        daemons(server.url, "ops", "worker") as (ops, worker),
        running("follow", socket=str(ops.socket_path)),
    ):

        def message() -> dict[str, float]:
            before = usage(pid_of(ops))
            acknowledgement_times(server, scale.resting, _RATE, to=ops.name)
            busy = usage(pid_of(ops)).since(before)
            return {
                "message written": busy.written / scale.resting / 1024,
                "message time": 1000 * busy.seconds / scale.resting,
            }

        def work() -> dict[str, float]:
            count = scale.works + -(-scale.works // 10)  # with those that warm up
            before = usage(pid_of(ops), pid_of(worker))
            work_times(ops, worker, scale.works, 1)
            return {"work written": usage(pid_of(ops), pid_of(worker)).since(before).written / count / 1024}

        pids, began = [pid_of(one) for one in idle], time.monotonic()
        before = usage(*pids)
        found = interleave(run, {"message": message, "work": work})
        run.progress.step("idle")
        time.sleep(max(0.0, began + scale.idle_seconds - time.monotonic()))
        idle_use, seconds = usage(*pids).since(before), time.monotonic() - began
        memory = [pss_mib(pid) for pid in pids]
    share = len(pids) * seconds
    return Result(
        rows=[
            found.row(
                "a message from a bare socket at rest, written by its receiver", "KiB", "message written", target=20
            ),
            found.row("a work at rest over bare sockets, written by both daemons", "KiB", "work written", target=300),
            found.row(
                f"a message from a bare socket at {_RATE} msg/s, processor time of its receiver",
                "ms",
                "message time",
                target=1.3,
            ),
            Row(
                what=f"an idle daemon among {_PEERS} peers, written in a day",
                unit="GiB",
                values=[idle_use.written / share * _DAY / (1 << 30)],
                target=0.3,
                better="lower",
            ),
            Row(
                what=f"an idle daemon among {_PEERS} peers, processor time",
                unit="% of a core",
                values=[100 * idle_use.seconds / share],
                better="lower",
            ),
            Row(what=f"{len(pids)} idle daemons, PSS each", unit="MiB", values=memory, target=29, better="lower"),
        ],
        notes=[
            f"Idle daemons: means of {len(pids)} daemons over {seconds:.0f} s, extrapolated to a day. Every peer greets once in "
            f"{_GREETS} s. Bytes written are those of /proc/PID/io."
        ],
    )


@contextlib.contextmanager
def _idle_daemons(run: Run) -> Iterator[list[Daemon]]:
    """Daemons with default settings that all know `_PEERS` peers: each other, and played ones."""
    count = run.scale.idle_daemons
    names = [f"idle-{number:02d}" for number in range(count)]
    run.progress.step(f"starting {count} daemons")
    with (
        broker() as server,
        daemons(server.url, *names, flags=(), knows=False) as idle,
        running("greet", nats=server.url, peers=_PEERS + 1 - count, interval=_GREETS),
    ):
        wait_for(lambda: all(map(_knows_all, idle)), HANG, "the peers to meet")
        yield idle


def _knows_all(daemon: Daemon) -> bool:
    return len(daemon.get("/v1/peers")["peers"]) > _PEERS  # the list begins with the daemon itself


FIGURE = Figure("rest", "At rest, over bare sockets", measure, 7.0)
