"""`aghctl mcp` as a host starts it: a process that reads and writes lines."""

import json
import queue
import subprocess
import sys
import threading
from typing import Any, Self

from tests.support.daemons import Home
from tests.support.mcp_client import META

MODERN: dict[str, Any] = {META + "protocolVersion": "2026-07-28", META + "clientCapabilities": {}}


class RelayProcess:
    """A context manager: started on entry; at the exit its input ends, and it must end by itself."""

    def __init__(
        self,
        home: Home,
        name: str,
        *args: str,
        env: dict[str, str] | None = None,
        options: tuple[str, ...] = (),
        parent: tuple[str, ...] = (),
    ) -> None:
        """`args` are global options, `options` those of `mcp`. `parent` is a program that starts the command after it."""
        command = [*parent, sys.executable, "-m", "aghbus.cli", "--name", name, *args, "mcp", *options]
        self.process = subprocess.Popen(
            command,
            env={**home.env, **(env or {})},
            stdin=subprocess.PIPE,
            stdout=subprocess.PIPE,
            stderr=subprocess.PIPE,
            start_new_session=True,  # an interrupt is for us: the relay ends with its input
        )
        self.errors = ""  # what it wrote to standard error, after it ended
        self._lines: queue.Queue[bytes] = queue.Queue()
        self._reader = threading.Thread(target=self._read)
        self._reader.start()

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self._lines.put(line)

    def __enter__(self) -> Self:
        return self

    def __exit__(self, *_: object) -> None:
        assert self.process.stdin is not None
        assert self.process.stderr is not None
        with self.process:  # closes its streams
            self.process.stdin.close()
            assert self.process.wait(20) == 0
            self._reader.join()
            self.errors = self.process.stderr.read().decode()

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

    def call(self, request_id: int, tool: str, meta: dict[str, Any] | None = None, **arguments: Any) -> dict[str, Any]:
        """The structured content of a tool's answer; other messages before it are dropped."""
        params = {"name": tool, "arguments": arguments, **({"_meta": meta} if meta else {})}
        self.send({"jsonrpc": "2.0", "id": request_id, "method": "tools/call", "params": params})
        while (answer := self.receive()).get("id") != request_id:
            pass
        found: dict[str, Any] = answer["result"]["structuredContent"]
        return found

    def open(self, host: str) -> dict[str, Any]:
        """A legacy session of a host with this name, and the result of `initialize`."""
        info = {"name": host, "version": "1.2.3"}
        params = {"protocolVersion": "2025-06-18", "capabilities": {}, "clientInfo": info}
        self.send({"jsonrpc": "2.0", "id": 0, "method": "initialize", "params": params})
        found: dict[str, Any] = self.receive()["result"]
        self.send({"jsonrpc": "2.0", "method": "notifications/initialized"})
        return found
