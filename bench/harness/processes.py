"""Brokers, daemons and load in their own processes, ended with their block."""

import asyncio
import contextlib
import json
import shutil
import signal
import subprocess
import sys
import tempfile
import threading
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple, Self

from tests.support.daemons import Daemon, Home, wait_for
from tests.support.natsutil import NatsServer

ROOT: Final = Path(__file__).resolve().parent.parent.parent
HANG: Final = 120.0
"""Seconds after which a child that has not answered counts as hanging. Measurements end by count: this bounds only the slowest
machine."""

_START: Final = 300.0  # seconds for a daemon to be ready, which reads ten gigabytes in figure `growth`
LOAD_FLAGS: Final = (
    *("--inbox-capacity", "1000000000", "--inbox-max-bytes", "1000GiB", "--store-retention-size", "2000GiB"),
    *("--limits-processor-percent", "1000000", "--receive-queue", "8192"),
    *("--retry-first", "1h", "--retry-ceiling", "1d"),
)
"""Flags of daemons under a load that no agent consumes: inbox, receive queue and processing budget have room
for one unknown sender, and messages to a load generator that does not answer are not retried during a measurement. All other
settings are defaults, `store.synchronous = full` included."""


@contextlib.contextmanager
def broker(*, jetstream: bool = False) -> Iterator[NatsServer]:
    """A nats-server with its default limits on a free port."""
    server = NatsServer(jetstream=jetstream)
    try:
        asyncio.run(server.start())
        yield server
    finally:
        server.kill()
        shutil.rmtree(server.folder, ignore_errors=True)


@contextlib.contextmanager
def home() -> Iterator[Home]:
    """A folder for daemons, in the same file system as the temporary folder."""
    with tempfile.TemporaryDirectory(prefix="aghbench-") as folder:
        yield Home(Path(folder))


@contextlib.contextmanager
def daemons(url: str, *names: str, flags: tuple[str, ...] = LOAD_FLAGS, knows: bool = True) -> Iterator[list[Daemon]]:
    """Daemons on the broker at `url`, ready and, when `knows`, acquainted with each other."""
    with home() as folder, contextlib.ExitStack() as stack:
        started = [Daemon(folder, name, "--nats", url, *flags) for name in names]
        run_all(stack, started)
        if knows:
            wait_for(lambda: all(one.knows(*names) for one in started), 30, "the daemons to meet")
        yield started


def run_all(stack: contextlib.ExitStack, daemons: list[Daemon]) -> None:
    """Start them beside each other, wait until all are ready, and have `stack` end them."""
    for daemon in daemons:
        daemon.start(wait=False)
        stack.push(daemon)
    for daemon in daemons:
        daemon.wait_ready(_START)


def pid_of(daemon: Daemon) -> int:
    """Its process id."""
    assert daemon.process is not None
    return daemon.process.pid


class Child:
    """A module of the project as a process that prints one JSON value a line; it ends with its block, at once if that raises."""

    def __init__(self, module: str, *arguments: object) -> None:
        self._module = module
        command = [sys.executable, "-m", module, *map(str, arguments)]
        self._process = subprocess.Popen(
            command, cwd=ROOT, stdin=subprocess.PIPE, stdout=subprocess.PIPE, start_new_session=True
        )

    def __enter__(self) -> Self:
        return self

    def __exit__(self, kind: type[BaseException] | None, *_: object) -> None:
        assert self._process.stdin is not None and self._process.stdout is not None
        if kind is not None:  # a job that it is in may last
            self._process.kill()
        self._process.stdin.close()
        try:
            self._process.wait(5)
        except subprocess.TimeoutExpired:
            self._process.kill()
            self._process.wait()
        self._process.stdout.close()

    @property
    def pid(self) -> int:
        """Its process id."""
        return self._process.pid

    def read(self) -> Any:
        """The next value that it prints; RuntimeError when it ended instead."""
        assert self._process.stdout is not None
        watch = threading.Timer(HANG, self._process.kill)
        watch.start()
        try:
            line = self._process.stdout.readline()
        finally:
            watch.cancel()  # else an interrupted run ends only with it
        if not line:
            code = self._process.wait(10)
            why = f"no answer in {HANG:g} s" if code == -signal.SIGKILL else f"ended with {code} instead of an answer"
            raise RuntimeError(f"{self._module}: {why}")
        return json.loads(line)

    def tell(self, value: Any) -> None:
        """One JSON value to its standard input."""
        assert self._process.stdin is not None
        self._process.stdin.write(json.dumps(value).encode() + b"\n")
        self._process.stdin.flush()

    def ask(self, value: Any) -> Any:
        """Tell it, and read its answer."""
        self.tell(value)
        return self.read()


def memory_mib(pid: int) -> float:
    """MiB that a process holds (VmRSS)."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has no VmRSS")


def pss_mib(pid: int) -> float:
    """MiB that a process holds, of shared pages its share (Pss)."""
    for line in Path(f"/proc/{pid}/smaps_rollup").read_text().splitlines():
        if line.startswith("Pss:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has no Pss")


def bytes_written(pid: int) -> int:
    """Bytes that a process has made the kernel write to a disk, in whole pages; 0 for files in memory (tmpfs)."""
    for line in Path(f"/proc/{pid}/io").read_text().splitlines():
        if line.startswith("write_bytes:"):
            return int(line.split()[1])
    raise RuntimeError(f"process {pid} has no write_bytes")


def cpu_seconds(pid: int) -> float:
    """Seconds of processor time that a process has used, from its clock, which is finer than the kernel's tick."""
    return time.clock_gettime((~pid << 3) | 2)  # clock_getcpuclockid(3): CPUCLOCK_SCHED of the process


class Usage(NamedTuple):
    """What processes have used so far: seconds of processor time, and bytes written to the disk."""

    seconds: float
    written: int

    def since(self, before: "Usage") -> "Usage":
        """What they have used after `before`."""
        return Usage(self.seconds - before.seconds, self.written - before.written)


def usage(*pids: int) -> Usage:
    """Of all these processes together."""
    return Usage(sum(map(cpu_seconds, pids)), sum(map(bytes_written, pids)))


def wall_ms(command: list[str], env: dict[str, str] | None = None) -> float:
    """Milliseconds from starting a command to its end; it must succeed."""
    started = time.perf_counter()
    process = subprocess.Popen(command, stdout=subprocess.DEVNULL, env=env)
    timer = threading.Timer(HANG, process.kill)  # a wait with a timeout asks at growing intervals: 16, 32, 64 ms
    timer.start()
    code = process.wait()
    took = time.perf_counter() - started
    timer.cancel()
    assert code == 0, f"{command[0]} ended with {code}"
    return took * 1000
