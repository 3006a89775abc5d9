"""Messages of a format that reach its command, and messages that it prints, as the daemon translates them."""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from typing import Any

from aghbus.cli.worker.job import plain
from aghbus.cli.worker.messages import MessagesWithoutWork
from aghbus.cli.worker.options import CommandOptions
from aghbus.cli.worker.process import Process, ProcessExit
from aghbus.cli.worker.reporter import Reporter
from aghbus.client.errors import RefusedByDaemon
from aghbus.client.work.clients import AsyncClient
from aghbus.client.work.journal import Journal, JournalEntry
from aghbus.protocol.api.bridge import BridgeMessage
from aghbus.protocol.base.formats import Format
from aghbus.protocol.formats.attachments import MAX_MESSAGE_BYTES


class ForeignMessages(MessagesWithoutWork):
    """Messages without a work for a command that uses `format`: it gets them, and prints its own, in that format."""

    keep = MAX_MESSAGE_BYTES

    def __init__(
        self,
        options: CommandOptions,
        client: AsyncClient,
        reporter: Reporter,
        journal: Journal,
        on_end: Callable[[], object],
        *,
        format: Format,
    ) -> None:
        super().__init__(options, client, reporter, journal, on_end)
        self._format = format

    async def _input(self, message: dict[str, Any]) -> bytes:
        delivered = await message_of(self._client, self._format, message["seq"])
        return line_of(delivered.message)

    async def _report(self, item: dict[str, Any], entry: JournalEntry, process: Process, ended: ProcessExit) -> None:
        """Submit what the command printed; nothing if it failed."""
        printed = process.stdout.complete()
        if ended.code != 0 or ended.stopped is not None or printed is None:
            return
        channel = item["message"]["channel"]
        for number, text in enumerate(messages_in(self._format, printed.decode("utf-8", "replace"))):
            key = f"{entry.token}_{number}"
            try:
                response = await self._client.submit_foreign(self._format, text=text, channel=channel, key=key)
            except RefusedByDaemon as error:
                self._emit(item, "problem", message=f"the output was refused: {error.message}")
                return
            for finding in response.findings:
                self._emit(item, "problem", message=words(plain(finding)))
            self._emit(item, "reported", sent=[one.id for one in response.sent])


async def message_of(client: AsyncClient, format: Format, seq: int) -> BridgeMessage:
    """A stored envelope in the format. Raises ValueError when it has no equivalent there."""
    try:
        return await client.foreign_message(format, seq)
    except RefusedByDaemon as error:
        raise ValueError(f"its input: {error.message}") from None


def line_of(message: Any) -> bytes:
    """A message as input of a command: text as it is, any other JSON value on one line."""
    text = message if isinstance(message, str) else json.dumps(message, ensure_ascii=False)
    return text.encode(errors="replace") + b"\n"


def messages_in(format: Format, text: str) -> Sequence[str]:
    """The messages in what a command printed: all of it is one, but agents of AgentOS may print several, one on each line."""
    lines = [line for line in text.splitlines() if line.strip()]
    several = format == "agentos" and len(lines) > 1 and all(map(_is_object, lines))
    return lines if several else [text] if lines else []


def words(finding: dict[str, Any]) -> str:
    """A finding, as the JSON object that it was, for people."""
    return f"{finding['path'] or '(whole)'} {finding['rule']}: {finding['message']}"


def _is_object(line: str) -> bool:
    try:
        return isinstance(json.loads(line), dict)
    except (ValueError, RecursionError):
        return False
