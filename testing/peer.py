"""One daemon of a sandbox, with clients of it and workers that it has."""

from __future__ import annotations

import subprocess
from collections.abc import Callable, Sequence

from aghbus.client.http import Endpoint
from aghbus.testing.folders import Folders
from aghbus.testing.processes import DaemonProcess

TYPE_CHECKING = False
if TYPE_CHECKING:
    from aghbus.client.work.clients import AsyncClient, Client
    from aghbus.client.work.worker import Worker
    from aghbus.testing.worker_thread import WorkerThread

STOP_SECONDS = 12.0
"""For a daemon to stop after SIGTERM: its own deadline is 10 s."""
TIMEOUT = 30.0
"""Seconds that a call of a client may take, restarts of the daemon included."""
LOG_LINES = 3
"""Lines of a log in an error."""


class Peer:
    """A daemon of a sandbox. `name` is its peer id, unless its options give it a key.

    `env` has the variables by which programs find it: `subprocess.run(…, env={**os.environ, **peer.env})`. `log` is the path of
    its log.
    """

    def __init__(
        self, name: str, options: Sequence[str], folders: Folders, until_ready: Callable[[Sequence[Peer]], None]
    ) -> None:
        places = folders.places(name)
        self.name = name
        self.endpoint = Endpoint(path=places.socket_path)
        self.env = {**folders.variables, "AGHD_NAME": name, "AGHD_API_SOCKET": places.socket_path}
        self.log = f"{folders.root}/{name}.log"
        self._options = options
        self._folders = folders
        self._until_ready = until_ready
        self._process: DaemonProcess | None = None
        self._workers: list[WorkerThread] = []

    def __repr__(self) -> str:
        return f"<Peer {self.name}>"

    def client(self, *, timeout: float = TIMEOUT) -> Client:
        """A client of the daemon that blocks."""
        from aghbus.client.work.clients import Client

        return Client(self.endpoint, timeout=timeout)

    def async_client(self, *, timeout: float = TIMEOUT) -> AsyncClient:
        """A client of the daemon for asyncio."""
        from aghbus.client.work.clients import AsyncClient

        return AsyncClient(self.endpoint, timeout=timeout)

    def serve(self, worker: Worker) -> None:
        """Let `worker` take works of the daemon, in a thread with an event loop of its own, until the end of the sandbox.

        Returns when it takes them. Raises what keeps it from that: UsageError when the daemon does not announce a capability.
        """
        from aghbus.testing.worker_thread import WorkerThread

        thread = WorkerThread(worker, self.endpoint)
        self._workers.append(thread)
        thread.start()

    def start(self) -> None:
        """Start the daemon again after `stop`; returns when it is ready. Raises Unexpected when it does not start."""
        self.launch()
        self._until_ready([self])

    def stop(self) -> None:
        """Stop the daemon; its messages are kept for the next start. Clients and workers wait for it."""
        self.terminate()
        self.wait()

    # for the sandbox

    def launch(self) -> None:
        """Start the daemon without waiting for it."""
        folders = self._folders
        self._process = DaemonProcess(["run", "--name", self.name, "--quiet", *self._options])
        self._process.start(env=folders.environment, log=self.log, folder=folders.temporary)

    def problem(self) -> str:
        """Why the daemon does not run, or "" while it does."""
        if self._process is not None and self._process.poll() is None:
            return ""
        try:
            with open(self.log, encoding="utf-8", errors="replace") as log:  # noqa: PTH123 - pathlib is slow to load
                return " / ".join(line.strip() for line in log.read().splitlines()[-LOG_LINES:]) or "no output"
        except FileNotFoundError:
            return "no output"

    def stop_workers(self) -> None:
        """End the workers; jobs that run return to the inbox."""
        for thread in self._workers:
            thread.stop()

    def terminate(self) -> None:
        """SIGTERM."""
        if self._process is not None:
            self._process.terminate()

    def wait(self) -> None:
        """Wait until the daemon has stopped; kill it when it takes too long."""
        if self._process is not None:
            try:
                self._process.wait(STOP_SECONDS)
            except subprocess.TimeoutExpired:
                self._process.kill()
                self._process.wait()
