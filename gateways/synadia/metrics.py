"""Counters of a bridge, and a listener from which Prometheus reads them."""

from __future__ import annotations

import asyncio
from collections import Counter
from collections.abc import AsyncGenerator
from contextlib import asynccontextmanager, suppress

from aghbus.client.errors import UsageError

HELP = {
    "prompts_total": ("counter", "prompts of their clients, by how they ended"),
    "works_total": ("counter", "works given to their agents, by how they ended"),
    "questions_total": ("counter", "questions passed on"),
    "attachments_total": ("counter", "attachments and artifacts passed on"),
    "callers_gone_total": ("counter", "callers that went away before the end"),
    "running": ("gauge", "prompts and works that run now"),
    "agents": ("gauge", "agents of ours that are served, or of theirs that are present"),
}
"""Each metric below `aghbus_synadia_`, its type and what it counts; docs/adapters/synadia.md has this table."""
_MOST = 8_192  # bytes of a request that are read


class Metrics:
    """The counters and gauges."""

    def __init__(self) -> None:
        self.counts: Counter[tuple[str, str]] = Counter()

    def count(self, name: str, outcome: str = "", by: int = 1) -> None:
        """Add to a counter or gauge of `HELP`."""
        self.counts[name, outcome] += by

    def set(self, name: str, value: int) -> None:
        """Set a gauge."""
        self.counts[name, ""] = value

    def text(self) -> str:
        """All in the text format of Prometheus."""
        lines = []
        for name, (kind, meaning) in HELP.items():
            found = {outcome: value for (each, outcome), value in self.counts.items() if each == name} or {"": 0}
            lines += [f"# HELP aghbus_synadia_{name} {meaning}", f"# TYPE aghbus_synadia_{name} {kind}"]
            for outcome, value in sorted(found.items()):
                label = f'{{outcome="{outcome}"}}' if outcome else ""
                lines.append(f"aghbus_synadia_{name}{label} {value}")
        return "\n".join(lines) + "\n"

    @asynccontextmanager
    async def served(self, host: str, port: int) -> AsyncGenerator[int, None]:
        """Answer each request at this address with `text`; the port. Raises UsageError."""
        try:
            server = await asyncio.start_server(self._answer, host, port, limit=_MOST)
        except OSError as error:
            raise UsageError(f"--metrics: {host}:{port} cannot be listened at: {error.strerror}") from None
        try:
            yield server.sockets[0].getsockname()[1]
        finally:
            server.close()

    async def _answer(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        with suppress(OSError, TimeoutError, asyncio.IncompleteReadError, asyncio.LimitOverrunError):
            async with asyncio.timeout(10.0):
                first = (await reader.readuntil(b"\r\n\r\n")).split(b" ", 2)
                found = first[:2] == [b"GET", b"/metrics"]
                body = self.text().encode() if found else b""
                head = "200 OK\r\nContent-Type: text/plain; version=0.0.4" if found else "404 Not Found"
                writer.write(
                    f"HTTP/1.1 {head}\r\nContent-Length: {len(body)}\r\nConnection: close\r\n\r\n".encode() + body
                )
                await writer.drain()
        writer.close()
