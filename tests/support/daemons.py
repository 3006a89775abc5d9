"""Real `aghd` processes in folders of their own, and a client of their API for tests."""

import contextlib
import http.client
import json
import os
import signal
import socket
import subprocess
import sys
import time
from collections.abc import Callable, Generator, Iterator
from pathlib import Path
from types import TracebackType
from typing import Any, ClassVar, Self

from aghbus.testing.processes import DaemonProcess

START_WAIT = 60.0  # seconds; shared machines are slow at times
STALL = 0.5  # seconds: what one look of `wait_for` counts at most


class HttpError(Exception):
    """The daemon refused: HTTP status and the error object."""

    def __init__(self, status: int, answer: dict[str, Any]) -> None:
        super().__init__(f"{status} {answer}")
        self.status = status
        self.answer = answer


class UnixClient(http.client.HTTPConnection):
    """HTTP over a Unix socket."""

    def __init__(self, path: Path, timeout: float = 30.0) -> None:
        super().__init__("localhost", timeout=timeout)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(str(self._path))


class Home:
    """One user's folders: daemons in the same home share the embedded broker."""

    def __init__(self, root: Path) -> None:
        self.root = root
        self.env = {
            "PATH": os.environ.get("PATH", ""),
            "HOME": str(root),
            "XDG_STATE_HOME": str(root / "state"),
            "XDG_CONFIG_HOME": str(root / "config"),
            "XDG_RUNTIME_DIR": str(root / "run"),
        }
        (root / "run").mkdir(mode=0o700, parents=True, exist_ok=True)

    def ctl(self, *args: str, stdin: bytes = b"", timeout: float = 60.0) -> subprocess.CompletedProcess[bytes]:
        """`aghctl` as a process."""
        command = [sys.executable, "-m", "aghbus.cli", *args]
        return subprocess.run(command, env=self.env, input=stdin, capture_output=True, timeout=timeout, check=False)

    def ctl_json(self, *args: str) -> Any:
        """`aghctl … -o json`, which must succeed."""
        done = self.ctl(*args, "-o", "json")
        assert done.returncode == 0, (args, done.returncode, done.stdout, done.stderr)
        return json.loads(done.stdout)


class Daemon:
    """One `aghd run`. A context manager: started on entry, terminated (and checked) on exit.

    `forked` by the suite alone: the benchmarks start the daemons that they measure as a user does.
    """

    forked: ClassVar = False

    def __init__(self, home: Home, name: str, *args: str, env: dict[str, str] | None = None) -> None:
        self.home = home
        self.name = name
        self.args = args
        self.env = {**home.env, **(env or {})}
        self.log = home.root / f"{name}.log"
        self.process: DaemonProcess | subprocess.Popen[bytes] | None = None
        self.starts: list[int] = []  # wall time in milliseconds

    @property
    def socket_path(self) -> Path:
        return self.home.root / "run" / "aghbus" / f"{self.name}.sock"

    @property
    def store_path(self) -> Path:
        return self.home.root / "state" / "aghbus" / "instances" / self.name / "store.db"

    def start(self, *, wait: bool = True) -> Self:
        argv = ["run", "--name", self.name, "--quiet", *self.args]
        self.starts.append(time.time_ns() // 1_000_000)
        if self.forked:
            self.process = DaemonProcess(argv)
            self.process.start(env=self.env, log=str(self.log), folder=str(self.home.root / "run"))
        else:
            command = [sys.executable, "-m", "aghbus.daemon", *argv]
            with self.log.open("ab") as log:
                self.process = subprocess.Popen(
                    command, env=self.env, stdin=subprocess.DEVNULL, stdout=log, stderr=log, start_new_session=True
                )
        if wait:
            self.wait_ready()
        return self

    def __enter__(self) -> Self:
        return self.start()

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        code = self.stop()
        if kind is None:
            assert code == 0, f"{self.name} ended with {code}:\n{self.log.read_text()}"

    def stop(self, timeout: float = 30.0) -> int:
        """SIGTERM, and the exit code."""
        assert self.process is not None
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGTERM)
        return self.process.wait(timeout)

    def kill(self) -> None:
        """SIGKILL: what a crash looks like."""
        assert self.process is not None
        self.process.kill()
        self.process.wait(10)

    def wait_ready(self, timeout: float = START_WAIT) -> None:
        """Until `/readyz` says so."""

        def ready() -> bool:
            assert self.process is not None
            code = self.process.poll()
            assert code is None, f"{self.name} ended with {code} at start:\n{self.log.read_text()}"
            with contextlib.suppress(OSError, HttpError):
                return bool(self.get("/readyz")["ready"])
            return False

        wait_for(ready, timeout, f"{self.name} to be ready")

    def processor_seconds(self) -> float:
        """Processor time that the process has had."""
        assert self.process is not None
        fields = Path(f"/proc/{self.process.pid}/stat").read_text().rpartition(")")[2].split()
        return (int(fields[11]) + int(fields[12])) / os.sysconf("SC_CLK_TCK")

    # the API

    def answers(self) -> bool:
        """Whether the API can be reached: its socket is there a moment before it is listened at."""
        with contextlib.suppress(OSError):
            self.get("/healthz")
            return True
        return False

    def request(self, method: str, path: str, body: Any = None, timeout: float = 30.0) -> Any:
        client = UnixClient(self.socket_path, timeout)
        try:
            payload = None if body is None else json.dumps(body)
            client.request(method, path, payload, {"Content-Type": "application/json"} if payload else {})
            response = client.getresponse()
            answer = json.loads(response.read() or b"null")
        finally:
            client.close()
        if response.status >= 400:
            raise HttpError(response.status, answer)
        return answer

    def get(self, path: str) -> Any:
        return self.request("GET", path)

    def post(self, path: str, **body: Any) -> Any:
        return self.request("POST", path, body)

    def events(self, query: str = "", timeout: float = 30.0) -> Generator[dict[str, Any], None, None]:
        """The event stream as JSON objects."""
        return self.stream(f"/v1/events{query}", timeout)

    def stream(self, path: str, timeout: float = 30.0) -> Generator[dict[str, Any], None, None]:
        """A stream as JSON objects, keep-alives left out; ends with the daemon or the generator."""
        client = UnixClient(self.socket_path, timeout)
        try:
            client.request("GET", path)
            response = client.getresponse()
            assert response.status == 200, response.read()
            while line := response.readline():
                if line.startswith(b"data:"):
                    yield json.loads(line[5:])
        finally:
            client.close()

    def state_of(self, work_id: str) -> str:
        """The state of a work here; "" while the work is not known here: its opening may still be on its way."""
        try:
            return str(self.get(f"/v1/works/{work_id}")["work"]["state"])
        except HttpError as error:
            if error.status != 404:
                raise
            return ""

    def why(self, work_id: str) -> str:
        """The code of the reason why a work does not move; "" without one, or while the work is not known here."""
        with contextlib.suppress(HttpError):
            return str((self.get(f"/v1/works/{work_id}")["why"] or {}).get("code", ""))
        return ""

    def knows(self, *peers: str) -> bool:
        """Whether presence has all these peers."""
        return {peer["peer_id"] for peer in self.get("/v1/peers")["peers"]} >= set(peers)


def stop_daemon(home: Home, name: str) -> None:
    """End a daemon that the program under test has started, if it runs."""
    done = home.ctl("--name", name, "status", "-o", "json")
    if done.returncode != 3:
        os.kill(json.loads(done.stdout)["pid"], signal.SIGTERM)
        wait_for(lambda: home.ctl("--name", name, "status").returncode == 3, 30, f"the end of {name}")


def wait_for(condition: Callable[[], object], timeout: float, what: str) -> None:
    """Until `condition()` is true; fails the test after `timeout` seconds. The pause is between looks, not instead of one.

    Of a look that takes longer than `STALL` the rest is not counted: the machine stood still, or the daemon that was asked.
    """
    left, before = timeout, time.monotonic()
    while not condition():
        now = time.monotonic()
        left -= min(now - before, STALL)
        before = now
        assert left > 0, f"waited {timeout} s for {what}"
        time.sleep(0.02)


@contextlib.contextmanager
def ops_and_worker(home: Home, *flags: str, env: dict[str, str] | None = None) -> Iterator[tuple[Daemon, Daemon]]:
    """The daemons `ops` and `worker` with the same flags and variables, once they know each other."""
    with Daemon(home, "worker", *flags, env=env) as worker, Daemon(home, "ops", *flags, env=env) as ops:
        wait_for(lambda: ops.knows("worker") and worker.knows("ops"), 30, "presence")
        yield ops, worker


# Retry never comes to help here, so that what arrives has come through the stream.
NO_RETRY = ("--retry-first", "1h", "--retry-ceiling", "1h")


DURABLE = ("--durability", "jetstream")


# On a broker of their own, with no other peers than theirs: workers take works of each of them.
ADMIT_ALL = ("--trust-admit", "all")


def has_no_subscriber(daemon: Daemon, message_id: str) -> bool:
    """Whether a message stays queued because the broker had nobody to pass it on to."""
    message = daemon.get(f"/v1/messages/{message_id}")
    return message["delivery"] == "queued" and str(message["delivery_detail"]).startswith(
        "nobody subscribes; tried until "
    )


def delivery(daemon: Daemon, message_id: str) -> str:
    return str(daemon.get(f"/v1/messages/{message_id}")["delivery"])
