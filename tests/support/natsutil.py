"""A real nats-server for tests, and waiting for conditions instead of sleeping."""

import asyncio
import json
import os
import shutil
import signal
import subprocess
import tempfile
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final, Self

from aghbus.daemon.broker.binary import find_binary

NATS_SERVER: Final = find_binary(None).path
"""The nats-server that an embedded broker would run."""


async def wait_until(predicate: Callable[[], object], timeout: float = 30.0, what: str = "the condition") -> None:
    """Returns once `predicate()` is true, looked at every few milliseconds; an AssertionError after `timeout` seconds.

    Of a pause between two looks that is longer than half a second the rest is not counted: the machine stood still.
    """
    left, before = timeout, time.monotonic()
    while not predicate():
        now = time.monotonic()
        left -= min(now - before, 0.5)
        before = now
        assert left > 0, f"waited {timeout:g} s for {what}"
        await asyncio.sleep(0.005)


async def pause(pid: int) -> None:
    """Stops the process `pid` and waits until all its threads stand still: the signal alone is not waited for."""
    os.kill(pid, signal.SIGSTOP)
    threads = Path(f"/proc/{pid}/task")

    def still() -> bool:
        try:
            return all(stat.read_text().rsplit(")", 1)[1].split()[0] == "T" for stat in threads.glob("*/stat"))
        except (FileNotFoundError, ProcessLookupError):  # a thread that ended between the list and the look
            return False

    await wait_until(still, 20, f"process {pid} to stop")


class NatsServer:
    """One nats-server on a free loopback port, in its own folder, killed at the end; an async context manager.

    `config` is text of its configuration file. Its port stays the same over `restart`.
    """

    def __init__(self, *, config: str = "", jetstream: bool = False, port: int = -1) -> None:
        self.folder = Path(tempfile.mkdtemp(prefix="nats-"))
        self.port = port
        self._config = config
        self.jetstream = jetstream
        self._process: subprocess.Popen[bytes] | None = None

    async def __aenter__(self) -> Self:
        try:
            await self.start()
        except BaseException:
            self._end()
            raise
        return self

    async def __aexit__(self, *_: object) -> None:
        self._end()

    @property
    def url(self) -> str:
        """nats:// URL without credentials."""
        return f"nats://127.0.0.1:{self.port}"

    @property
    def pid(self) -> int:
        """Of the running server."""
        assert self._process is not None
        return self._process.pid

    @property
    def log(self) -> str:
        """What the server has logged so far."""
        return (self.folder / "log").read_text(encoding="utf-8", errors="replace")

    async def start(self) -> None:
        """Starts it, on the port it had before if any, and waits until it listens."""
        config = self.folder / "nats.conf"
        jetstream = f'jetstream {{ store_dir: "{self.folder / "js"}" }}\n' if self.jetstream else ""
        config.write_text(f"{jetstream}{self._config}\n", encoding="utf-8")
        arguments = ["-c", str(config), "-a", "127.0.0.1", "-p", str(self.port), "--ports_file_dir", str(self.folder)]
        with (self.folder / "log").open("ab") as log:
            self._process = subprocess.Popen(  # noqa: ASYNC220 - starts in a millisecond; its end is waited for without the loop
                [NATS_SERVER, *arguments], stdout=log, stderr=log
            )
        process = self._process
        ports = self.folder / f"nats-server_{process.pid}.ports"

        def listening() -> bool:
            assert process.poll() is None, f"nats-server ended at its start:\n{self.log}"
            return ports.exists() and ports.read_bytes().endswith(b"}")

        await wait_until(listening, 20, "nats-server to listen")
        self.port = int(json.loads(ports.read_text())["nats"][0].rsplit(":", 1)[1])

    def kill(self) -> None:
        """kill -9, and waits for its end."""
        self._signal(signal.SIGKILL)

    def stop(self) -> None:
        """SIGTERM, and waits for its end."""
        self._signal(signal.SIGTERM)

    async def restart(self) -> None:
        """kill -9 if it still runs, then a start on the same port."""
        self.kill()
        await self.start()

    async def pause(self) -> None:
        """SIGSTOP, and waits until no thread of it runs any more; `kill` works on it too."""
        await pause(self.pid)

    def resume(self) -> None:
        """SIGCONT."""
        os.kill(self.pid, signal.SIGCONT)

    def reload(self, config: str) -> None:
        """Has the running server read another configuration."""
        self._config = config
        (self.folder / "nats.conf").write_text(config, encoding="utf-8")
        assert self._process is not None
        self._process.send_signal(signal.SIGHUP)

    def _signal(self, signo: signal.Signals) -> None:
        if self._process is not None:
            self._process.send_signal(signo)
            self._process.wait(timeout=20)
            self._process = None

    def _end(self) -> None:
        self.kill()
        shutil.rmtree(self.folder, ignore_errors=True)
