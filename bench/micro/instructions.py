"""Machine instructions of the daemons for a message or a work: `python -m bench.micro.instructions [receive send works …]`.

Daemons run under valgrind's callgrind, fifty times slower, with the load of the figures `receive`, `send`, `work`, `verified`
and `jetstream`. The count hardly depends on what else the machine does: where times jump by half, it shows a change of one part
in a hundred. It is not a time: how many instructions a processor executes in one differs from code to code, and waiting counts
nothing. Two things distort it. Valgrind has no SHA-NI: SHA-256 was a tenth of the instructions of a received message, and 1.5 %
of its time. And it sees no kernel: system calls, a sixth of the daemon's processor time under load, count nothing. So count a
change and time it too. What the daemon does by the clock it does oftener: transactions that gather for some milliseconds hold
fewer messages, so that `send` and `works` count more commits than there are without valgrind. Only counts of the same path
compare.

With `--profiles FOLDER` callgrind's files stay there, for `callgrind_annotate`; the last part of each is the measured one.
"""

import argparse
import contextlib
import re
import shutil
import signal
import subprocess
import sys
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final, Self

from bench.harness.load import receive_rate, send_rate, work_times
from bench.harness.processes import LOAD_FLAGS, broker, home, pid_of
from tests.support.daemons import Daemon, wait_for
from tests.support.natsutil import NatsServer

_WARM: Final = 0.5  # of the load, before what is counted
_READY: Final = 180.0  # seconds until a daemon is ready, under valgrind
_TOTALS: Final = re.compile(r"^totals: (\d+)", re.MULTILINE)
_FLIGHT: Final = 16
_CONNECTIONS: Final = 64


class Counted(Daemon):
    """A daemon whose instructions are counted."""

    def start(self, *, wait: bool = True) -> Self:
        """Under callgrind, which needs no debugging symbols for a count."""
        tool = ["valgrind", "--tool=callgrind", "--fair-sched=yes", f"--callgrind-out-file={self.profile}"]
        command = [*tool, sys.executable, "-m", "aghbus.daemon", "run", "--name", self.name, "--quiet", *self.args]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
            )
        if wait:
            self.wait_ready(_READY)
        return self

    @property
    def profile(self) -> Path:
        """Callgrind's output file; a number is appended for each part."""
        return self.home.root / f"{self.name}.callgrind"

    def count(self, part: int) -> int:
        """Instructions since the part before ended, as the end of this part."""
        subprocess.run(["callgrind_control", "--dump", str(pid_of(self))], check=True, stdout=subprocess.DEVNULL)
        path = self.profile.with_name(f"{self.profile.name}.{part}")
        wait_for(lambda: path.exists() and _TOTALS.search(path.read_text()), _READY, "callgrind to write its counts")
        return sum(map(int, _TOTALS.findall(path.read_text())))


@contextlib.contextmanager
def counted(names: tuple[str, ...], *, jetstream: bool) -> Iterator[tuple[NatsServer, list[Counted]]]:
    """Daemons that know each other, on a broker of their own."""
    flags = (*LOAD_FLAGS, *(("--durability", "jetstream") if jetstream else ()))
    with broker(jetstream=jetstream) as server, home() as folder, contextlib.ExitStack() as stack:
        started = [Counted(folder, name, "--nats", server.url, *flags) for name in names]
        for daemon in started:
            daemon.start(wait=False)
            stack.push(daemon)
        for daemon in started:
            daemon.wait_ready(_READY)
        wait_for(lambda: all(one.knows(*names) for one in started), _READY, "the daemons to meet")
        yield server, started


def measured(path: "_Path", profiles: Path | None) -> float:
    """Instructions of all daemons for each message or work; callgrind's files go into `profiles`, where that is given."""
    load, amount, daemons, jetstream = path
    with counted(("ops", "worker")[:daemons], jetstream=jetstream) as (server, started):
        load(server, started, max(1, int(amount * _WARM)))
        for daemon in started:
            daemon.count(1)
        load(server, started, amount)
        total = sum(daemon.count(2) for daemon in started)
        if profiles is not None:
            for daemon in started:
                shutil.copy(daemon.profile.with_name(f"{daemon.profile.name}.2"), profiles)
        return total / amount


def _receive(server: NatsServer, daemons: list[Counted], amount: int) -> object:
    return receive_rate(server, daemons[0], amount)


def _verified(server: NatsServer, daemons: list[Counted], amount: int) -> object:
    return receive_rate(server, daemons[0], amount, signed=True)


def _send(server: NatsServer, daemons: list[Counted], amount: int) -> object:
    return send_rate(server, daemons[0], amount, _CONNECTIONS)


def _works(_: NatsServer, daemons: list[Counted], amount: int) -> object:
    return work_times(daemons[0], daemons[1], amount, _FLIGHT)


def _works_at_rest(_: NatsServer, daemons: list[Counted], amount: int) -> object:
    return work_times(daemons[0], daemons[1], amount, 1)


_Path = tuple[Callable[[NatsServer, list[Counted], int], object], int, int, bool]
PATHS: Final[dict[str, _Path]] = {  # load, how much of it, daemons, JetStream
    "receive": (_receive, 2_000, 1, False),
    "verified": (_verified, 2_000, 1, False),
    "jetstream": (_receive, 2_000, 1, True),
    "send": (_send, 600, 1, False),
    "works": (_works, 48, 2, False),
    "works-at-rest": (_works_at_rest, 12, 2, False),
}


def main() -> int:
    """Measures the paths that are named, or all."""
    parser = argparse.ArgumentParser(prog="python -m bench.micro.instructions", description=__doc__)
    parser.add_argument("paths", nargs="*", metavar="PATH", help=f"of {', '.join(PATHS)}; default: all")
    parser.add_argument("--profiles", type=Path, help="keep callgrind's files in this folder")
    options = parser.parse_args()
    unknown = [name for name in options.paths if name not in PATHS]
    if unknown:
        parser.error(f"{unknown[0]!r} is none of {', '.join(PATHS)}")
    if shutil.which("valgrind") is None or shutil.which("callgrind_control") is None:
        parser.error("valgrind is not installed (Debian: apt install valgrind)")
    if options.profiles is not None:
        options.profiles.mkdir(parents=True, exist_ok=True)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, so that brokers and daemons end too
    for name in options.paths or PATHS:
        print(f"{name:14} {measured(PATHS[name], options.profiles):>12,.0f} instructions", flush=True)
    print("not counted: the kernel; counted too high: SHA-256, which runs without SHA-NI here. Time a change too.")
    return 0


if __name__ == "__main__":
    sys.exit(main())
