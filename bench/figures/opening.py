"""Figure `opening`: starting again after kill -9, with a large store."""

import time
from pathlib import Path

from bench.harness.figure import Figure, Result, Row, Run, interleave
from bench.harness.filling import fill, room_for
from bench.harness.load import receive_rate
from bench.harness.processes import LOAD_FLAGS, Child, broker, home
from tests.support.daemons import Daemon

_PIECE = 1 << 20  # bytes of one read
_RECEIVED = 3_000  # messages between the start and the kill: they are in the write-ahead log, and not in the indexes
_START = 300.0  # seconds for the daemon to be ready


def measure(run: Run) -> Result:
    """A filled store, a daemon that receives messages on top of it and is killed; then that file is opened again and again."""
    scale = run.scale
    if why := room_for("random", scale.reopened):
        return Result(skipped=why)
    with broker() as server, home() as folder:
        daemon = Daemon(folder, "killed", "--nats", server.url, *LOAD_FLAGS)
        fill(daemon.store_path, "random", scale.reopened, daemon.name, lambda step: _show(run, step))

        def start_and_kill(messages: int = 0) -> float:
            started = time.perf_counter()
            daemon.start(wait=False)
            try:
                daemon.wait_ready(_START)
                took = 1000 * (time.perf_counter() - started)
                if messages:
                    receive_rate(server, daemon, messages)
            finally:
                daemon.kill()
            return took

        size = daemon.store_path.stat().st_size / scale.reopened
        start_and_kill(_RECEIVED)
        found = interleave(
            run,
            {
                "read": lambda: _read(daemon.store_path),
                "open": lambda: _opened(daemon.store_path),
                "ready": start_and_kill,
            },
        )
    what = f"{scale.reopened:,} messages, after kill -9"
    return Result(
        rows=[
            found.row(f"store with {what}: opened", "ms", "open", floor=("reading its file", "read"), target=10),
            found.row(f"start of the process to ready with {what}", "ms", "ready"),
            Row(what="stored for a message of 614 bytes", unit="B", values=[size], target=900, better="lower"),
        ]
    )


def _show(run: Run, step: str) -> bool:
    run.progress.step(step)
    return True


def _opened(path: Path) -> float:
    with Child("bench.harness.opening", path) as child:
        return float(child.read())


def _read(path: Path) -> float:
    """Milliseconds to read the file and its write-ahead log; both are in the page cache, as they are for opening."""
    started = time.perf_counter()
    for part in (path, path.with_name(f"{path.name}-wal")):
        with part.open("rb", buffering=0) as file:
            while file.read(_PIECE):
                pass
    return (time.perf_counter() - started) * 1000


FIGURE = Figure("opening", "A large store after kill -9", measure, 2.5)
