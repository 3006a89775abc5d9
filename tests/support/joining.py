"""Helpers for tests of `aghctl a2a join`: the agent's process, and a join of the daemon `worker`."""

import contextlib
import http.client
import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from tests.support.cluster import free_ports
from tests.support.daemons import wait_for
from tests.support.serving import WAIT, Bus, EventsProcess

ROOT = Path(__file__).parents[2]


class AgentProcess:
    """tests/support/a2a_agent.py in a folder of its own; it keeps its ports."""

    def __init__(self, folder: Path, *options: str) -> None:
        folder.mkdir(exist_ok=True)
        self.folder, self.options = folder, options
        self.port, self.grpc_port = free_ports(2)
        self.tls = bool({"tls", "mtls"} & {*options})
        self.url = f"http{'s' * self.tls}://127.0.0.1:{self.port}"
        self.process: subprocess.Popen[bytes] | None = None

    def start(self) -> None:
        ports = (str(self.port), str(self.grpc_port))
        command = [sys.executable, "-m", "tests.support.a2a_agent", str(self.folder), *ports, *self.options]
        with (self.folder / "log").open("ab") as log:
            self.process = subprocess.Popen(command, cwd=ROOT, stdout=log, stderr=log)
        wait_for(self._answers, WAIT, "the agent to answer")

    def _answers(self) -> bool:
        assert self.process is not None
        assert self.process.poll() is None, (self.folder / "log").read_text()
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=5)
        with contextlib.suppress(OSError), contextlib.closing(client):
            if self.tls:
                client.connect()
                return True
            client.request("GET", "/.well-known/agent-card.json")
            return client.getresponse().read() != b""
        return False

    def kill(self) -> None:
        if self.process is not None:
            self.process.kill()
            self.process.wait(WAIT)

    def lines(self, name: str) -> list[str]:
        """What the agent noted in `runs` or `canceled`."""
        path = self.folder / name
        return path.read_text().splitlines() if path.exists() else []

    def runs(self, words: str) -> list[str]:
        """The message ids of the runs for this text."""
        return [line.split()[0] for line in self.lines("runs") if line.split(maxsplit=2)[2] == words]

    def send(self, message: dict[str, Any]) -> None:
        """A message that somebody else sends, over HTTP+JSON; its answer."""
        with contextlib.closing(http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)) as client:
            headers = {"Content-Type": "application/json", "A2A-Version": "1.0"}
            client.request("POST", "/rest/message:send", json.dumps({"message": message}), headers)
            answer = client.getresponse()
            assert answer.status == 200, answer.read()
            answer.read()

    def go(self, name: str) -> None:
        (self.folder / f"go.{name}").touch()


@contextlib.contextmanager
def agent(folder: Path, *options: str) -> Iterator[AgentProcess]:
    one = AgentProcess(folder, *options)
    try:
        one.start()
        yield one
    finally:
        one.kill()


def journals(bus: Bus) -> dict[Path, str]:
    """The journals of the works that a join of `worker` has, and their text."""
    found = dict[Path, str]()
    for path in (bus.home.root / "state" / "aghbus" / "clients" / "worker" / "a2a-join").glob("*.jsonl"):
        with contextlib.suppress(FileNotFoundError):  # its work has ended meanwhile
            found[path] = path.read_text()
    return found


def phases(bus: Bus, work_id: str) -> list[str]:
    """The phases of a work in its journal, oldest first; none without a journal."""
    texts = [text for text in journals(bus).values() if work_id in text]
    return [json.loads(line)["phase"] for text in texts for line in text.splitlines()]


class Join(EventsProcess):
    """One `aghctl a2a join` of the daemon `worker`; as a context manager killed at the end."""

    def __init__(self, bus: Bus, url: str, *options: str) -> None:
        super().__init__(bus.home, bus.home.root, "--name", "worker", "a2a", "join", url, "-o", "jsonl", *options)
        self.name = f"j{self.process.pid}"

    def __enter__(self) -> "Join":
        try:
            self.until("ready")
        except BaseException:
            self.close()  # it would take the works of the next test
            raise
        return self

    def __exit__(self, *_: object) -> None:
        self.close()

    def of(self, work_id: str, event: str) -> dict[str, Any]:
        return self.until(event, work_id=work_id)
