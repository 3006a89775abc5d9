"""`aghctl mcp` as a host starts it: a process that reads and writes lines."""

import json
import queue
import subprocess
import sys
import threading
from types import TracebackType
from typing import Any, Self

from tests.support.daemons import Home
from tests.support.mcp_client import META

MODERN: dict[str, Any] = {META + "protocolVersion": "2026-07-28", META + "clientCapabilities": {}}


class RelayProcess:
    """A context manager: started on entry; at the exit its input ends, and it must end by itself."""

    def __init__(self, home: Home, name: str, *args: str, env: dict[str, str] | None = None) -> None:
        command = [sys.executable, "-m", "aghbus.cli", "--name", name, *args, "mcp"]
        self.process = subprocess.Popen(
            command,
            env={**home.env, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
        )
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        assert self.process.stdin is not None
        with self.process:  # closes its streams
            self.process.stdin.close()
            assert self.process.wait(20) == 0
            self._reader.join()

    def send(self, message: dict[str, Any] | bytes) -> None:
        assert self.process.stdin is not None
        raw = message if isinstance(message, bytes) else json.dumps(message).encode()
        self.process.stdin.write(raw + b"\n")
        self.process.stdin.flush()

    def request(self, request_id: int, method: str, **params: Any) -> None:
        self.send({"jsonrpc": "2.0", "id": request_id, "method": method, "params": {"_meta": MODERN, **params}})

    def receive(self, timeout: float = 30.0) -> dict[str, Any]:
        found: dict[str, Any] = json.loads(self._lines.get(timeout=timeout))
        return found
