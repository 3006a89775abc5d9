"""Helpers for tests of `aghctl serve`: two daemons, one with a worker, and the worker's process."""

import contextlib
import json
import signal
import subprocess
import sys
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

from tests.support.daemons import Daemon, Home, wait_for

WAIT = 60.0
"""Seconds: with four workers on two cores a program may need half of it until it is ready."""
SERVE = ("serve", "--capability", "test.run")
WAITS = """
import os, pathlib, time
with open("runs", "a") as runs:
    print(os.environ["AGH_WORK_ID"], file=runs, flush=True)
print("waiting", flush=True)
while not pathlib.Path("go").exists():
    time.sleep(0.01)
print("went")
"""
FAMILY = """
import os, pathlib, signal, subprocess, sys, time
child = 'import signal, time; signal.signal(signal.SIGTERM, signal.SIG_IGN); print("up", flush=True); time.sleep(90)'
family = [subprocess.Popen([sys.executable, "-c", child], stdout=subprocess.PIPE, start_new_session=new) for new in (False, True)]
for member in family:
    member.stdout.readline()
pathlib.Path("pids.new").write_text(" ".join(str(member.pid) for member in family) + f" {os.getpid()}")
os.rename("pids.new", "pids")
print("waiting", flush=True)
time.sleep(90)
"""


class Bus:
    """`ops`, who hands out work, and `worker`, whose work `aghctl serve` does."""

    def __init__(self, home: Home, ops: Daemon, worker: Daemon) -> None:
        self.home, self.ops, self.worker = home, ops, worker

    def meet(self) -> None:
        wait_for(lambda: self.ops.knows("worker") and self.worker.knows("ops"), WAIT, "the two to know each other")

    def open(self, text: str | None = "do it", **more: Any) -> str:
        """A new work for `worker`, which its daemon has received."""
        work_id: str = self.ops.post("/v1/works", to="worker", text=text, **more)["work_id"]
        query = f"/v1/messages?work={work_id}&direction=in"
        wait_for(lambda: self.worker.get(query)["messages"], WAIT, "the work to arrive")
        return work_id

    def end_of(self, work_id: str) -> dict[str, Any]:
        """The last step of a work, as `ops` knows it, once it has ended."""
        wait_for(lambda: self.ops.state_of(work_id) in ("completed", "failed", "canceled"), WAIT, "the work to end")
        history: list[dict[str, Any]] = self.ops.get(f"/v1/works/{work_id}")["history"]
        return [step for step in history if step["outcome"] != "unchanged"][-1]  # not that something came twice

    def traces(self, work_id: str) -> list[dict[str, Any]]:
        """Bodies of the traces that `ops` received, oldest first."""
        messages = self.ops.get(f"/v1/messages?work={work_id}&kind=trace&direction=in")["messages"]
        return [message["envelope"]["body"] for message in messages]

    def waiting(self, work_id: str) -> list[dict[str, Any]]:
        """Inbox items of a work that nobody has dealt with."""
        items = self.worker.get("/v1/inbox?limit=1000")["items"]
        return [item for item in items if item["message"]["work_id"] == work_id]

    def journal(self) -> Path:
        return self.home.root / "state" / "aghbus" / "clients" / "worker" / "serve"

    def phases(self) -> set[str]:
        """The last phase of each job in the journal."""
        found = set()
        for path in self.journal().glob("*.jsonl"):
            with contextlib.suppress(FileNotFoundError, IndexError):
                found.add(json.loads(path.read_bytes().splitlines()[-1])["phase"])
        return found


@contextlib.contextmanager
def two_peers(root: Path, *options: str, worker_options: tuple[str, ...] = ()) -> Iterator[Bus]:
    """The two daemons, `ops` with more `options`."""
    home = Home(root)
    with (
        Daemon(home, "worker", "--capability", "test.run", *worker_options) as worker,
        Daemon(home, "ops", *options) as ops,
    ):
        bus = Bus(home, ops, worker)
        bus.meet()
        yield bus


class EventsProcess:
    """One `aghctl … -o jsonl`; its events are collected as they come."""

    def __init__(self, home: Home, cwd: Path, *words: str) -> None:
        command = [sys.executable, "-m", "aghbus.cli", *words]
        self.process = subprocess.Popen(command, env=home.env, cwd=cwd, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.events: list[dict[str, Any]] = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))

    def seen(self, event: str, **members: Any) -> list[dict[str, Any]]:
        return [item for item in list(self.events) if item["event"] == event and members.items() <= item.items()]

    def until(self, event: str, **members: Any) -> dict[str, Any]:
        """The first such event."""

        def there() -> bool:
            found = bool(self.seen(event, **members))
            assert found or self.process.poll() is None, (self.events, self.errors())
            return found

        wait_for(there, WAIT, f"{event} {members}, not only {self.events}")
        return self.seen(event, **members)[0]

    def errors(self) -> bytes:
        assert self.process.stderr is not None
        return self.process.stderr.read()

    def ended(self) -> int:
        """The exit code, once it exits by itself."""
        code = self.process.wait(WAIT)
        self._reader.join(WAIT)
        return code

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        self.process.send_signal(number)
        return self.ended()

    def close(self) -> None:
        """Kill it if it still runs, and close what it was read by."""
        self.process.kill()
        self.ended()
        assert self.process.stdout is not None
        assert self.process.stderr is not None
        self.process.stdout.close()
        self.process.stderr.close()


class Serve(EventsProcess):
    """One `aghctl serve`, or the command that `words` begin."""

    def __init__(self, bus: Bus, cwd: Path, *options: str, command: list[str], words: tuple[str, ...] = SERVE) -> None:
        super().__init__(bus.home, cwd, "--name", "worker", *words, "-o", "jsonl", *options, "--", *command)


@contextlib.contextmanager
def serving(bus: Bus, cwd: Path, *options: str, command: list[str], words: tuple[str, ...] = SERVE) -> Iterator[Serve]:
    serve = Serve(bus, cwd, *options, command=command, words=words)
    try:
        serve.until("ready")
        yield serve
    finally:
        serve.close()
        serve.ended()
        for stream in (serve.process.stdout, serve.process.stderr):
            assert stream is not None
            stream.close()


def script(folder: Path, text: str) -> list[str]:
    """A command that runs `text` as Python."""
    path = folder / "command.py"
    path.write_text(text)
    return [sys.executable, str(path)]


def lives(pid: int) -> bool:
    with contextlib.suppress(OSError):
        return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0] not in ("Z", "X")
    return False


def pids_of(folder: Path) -> list[int]:
    wait_for((folder / "pids").exists, WAIT, "the command's family")
    return [int(pid) for pid in (folder / "pids").read_text().split()]


def all_gone(pids: list[int]) -> Callable[[], bool]:
    return lambda: not any(lives(pid) for pid in pids)
