"""Messages without a work: acknowledged with a line in the log, or given to the command, one after the other.

They are taken from the inbox at once, so that none of them stands before a work of the same sender. A command for a message
runs beside those for works: no work waits for it.
"""

from __future__ import annotations

import asyncio
import contextlib
import os
import time
from collections import Counter, deque
from collections.abc import Callable, Sequence
from functools import partial
from typing import Any, Final

from aghbus.cli.worker import input as worker_input
from aghbus.cli.worker import process_group as worker_group
from aghbus.cli.worker.job import plain
from aghbus.cli.worker.options import CommandOptions
from aghbus.cli.worker.process import TAIL_BYTES, Process, ProcessExit
from aghbus.cli.worker.reporter import Reporter
from aghbus.cli.worker.result import outcome_of
from aghbus.client.core.aio import in_thread
from aghbus.client.core.ids import new_lease
from aghbus.client.core.refusals import Conflict, LeaseLost, NotFound
from aghbus.client.errors import ClientError
from aghbus.client.work.clients import AsyncClient
from aghbus.client.work.feed import POLL
from aghbus.client.work.journal import Journal, JournalEntry
from aghbus.protocol.api.inbox import InboxItem
from aghbus.protocol.api.queries import MAX_LIMIT

AT_ONCE: Final = 32
"""Messages that are acknowledged at a time."""
LEASE: Final = 60.0
"""Seconds from the lease of a message to its acknowledgement, at most."""
_GONE: Final = (LeaseLost, Conflict, NotFound)
"""Refusals: another consumer has dealt with the message."""


class MessagesWithoutWork:
    """The messages without a work of one worker. `run` goes on until it is canceled; `stop` ends the command that runs."""

    keep = TAIL_BYTES
    """How many bytes of the command's output are kept."""

    def __init__(
        self,
        options: CommandOptions,
        client: AsyncClient,
        reporter: Reporter,
        journal: Journal,
        on_end: Callable[[], object],
    ) -> None:
        """`on_end` is called when a command has ended."""
        self._options = options
        self._client = client
        self._reporter = reporter
        self._journal = journal
        self._on_end = on_end
        self._arrived, self._found = asyncio.Event(), asyncio.Event()
        self._waiting: deque[InboxItem] = deque()
        self._position = 0
        self._look_at = 0.0
        self._process: Process | None = None
        self._stopping = False
        self.is_running = False

    def wake(self) -> None:
        """A message may have arrived."""
        self._arrived.set()

    def stop(self, reason: str) -> None:
        """Take no more messages, and end the command that runs if there is a `reason`."""
        self._stopping = True
        if reason and self._process is not None:
            self._process.stop("stopped")

    def recover(self, entry: JournalEntry) -> int:
        """End what a dead worker left of a message; how many processes there were. Its command is not run again. Blocks."""
        started = entry.last("started") or {}
        pid = int(started.get("pid") or 0)
        group = pid if pid and worker_group.is_same_process(pid, started.get("started")) else 0
        ended = worker_group.end(entry.token, group, self._options.grace)
        entry.remove()
        return ended

    async def run(self) -> None:
        """Take messages until this is canceled."""
        if self._options.without_work == "leave":
            return
        async with asyncio.TaskGroup() as tasks:
            tasks.create_task(self._look())
            tasks.create_task(self._run_commands())

    # the inbox

    async def _look(self) -> None:
        while True:
            self._arrived.clear()
            try:
                await self._take_new()
            except ClientError as error:
                self._reporter.emit("problem", message=str(error))
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(POLL):
                    await self._arrived.wait()

    async def _take_new(self) -> None:
        """Take what has arrived; at times look at the whole inbox, for messages that were returned or whose peer was admitted."""
        since: int | None = self._position
        if time.monotonic() >= self._look_at:
            self._look_at = time.monotonic() + POLL
            self._waiting.clear()
            since = 0
        while since is not None:
            page = await self._client.inbox(states=frozenset({"ready"}), since=since, limit=MAX_LIMIT)
            ours = [item for item in page.items if self._is_ours(item)]
            if self._options.without_work == "run":
                self._waiting.extend(ours)
                ours = [self._waiting.popleft() for _ in range(len(self._waiting) - self._options.queue)]
                self._found.set()
            await self._acknowledge(ours)
            self._position = max([self._position, *(item.seq for item in page.items)])
            since = page.next_since

    def _is_ours(self, item: InboxItem) -> bool:
        message, now_ms = item.message, time.time_ns() // 1_000_000
        admitted = item.lane != "other" or self._options.others
        new = message.work_id is None and message.direction == "in" and item.available_ms <= now_ms
        return new and admitted and self._options.fits(message)

    async def _acknowledge(self, items: Sequence[InboxItem]) -> None:
        """Acknowledge messages without running the command, with one line for each sender."""
        for start in range(0, len(items), AT_ONCE):
            await asyncio.gather(*(self._ack(item.seq) for item in items[start : start + AT_ONCE]))
        for sender, count in Counter(item.message.sender for item in items).items():
            why = "more wait than --queue allows" if self._options.without_work == "run" else "they have no work"
            told = {"from": sender, "count": count, "message": f"the command was not run: {why}"}
            self._reporter.emit("acknowledged", **told)

    async def _ack(self, seq: int, lease: str | None = None) -> bool:
        try:
            await self._client.ack(seq, lease=lease)
        except _GONE:
            return False
        return True

    # the command

    async def _run_commands(self) -> None:
        while True:
            self._found.clear()
            while self._waiting and not self._stopping:
                item = self._waiting.popleft()
                try:
                    if await self._taken(item):
                        await self._run_command(plain(item))
                except (ClientError, OSError, ValueError) as error:
                    self._emit(plain(item), "problem", message=str(error))
            await self._found.wait()

    async def _taken(self, item: InboxItem) -> bool:
        """Acknowledge a message before its command runs, which therefore runs at most once. False when it is another one's."""
        lease = new_lease()
        try:
            leased = await self._client.lease(item.seq, lease=lease, visibility=LEASE, others=self._options.others)
        except _GONE:
            return False
        return leased.lease == lease and await self._ack(item.seq, lease)

    async def _run_command(self, item: dict[str, Any]) -> None:
        """Raises ClientError, OSError and ValueError."""
        self.is_running = True
        entry = self._journal.begin(seq=item["seq"], command=list(self._options.command), item=item)
        try:
            process = await self._start(entry, item["message"])
            self._emit(item, "started", pid=process.pid)
            ended = await in_thread(partial(process.run, self._options.time_limit, self._options.grace))
            outcome = outcome_of(process, ended, self._options.time_limit)
            self._emit(item, "finished", verb=outcome.verb, message=outcome.message)
            await self._report(item, entry, process, ended)
        finally:
            self._process, self.is_running = None, False
            entry.remove()
            self._on_end()

    async def _start(self, entry: JournalEntry, message: dict[str, Any]) -> Process:
        options, socket = self._options, self._client.core.endpoint.path or None
        command = options.command_line(str(entry.input_path), message, socket)
        worker_input.write(entry.input_path, await self._input(message))
        env = worker_input.environment(
            worker_input.inherited(os.environ, options.pass_env), message, entry.token, entry.input_path, socket=socket
        )
        entry.write("starting")
        with entry.input_path.open("rb") as stdin:
            process = Process(
                command,
                cwd=options.cwd,
                env=env,
                stdin=stdin,
                token=entry.token,
                keep=self.keep,
                supervised=options.supervised,
            )
        entry.write("started", pid=process.pid, started=worker_group.start_time(process.pid))
        self._process = process
        if self._stopping:
            process.stop("stopped")
        return process

    async def _input(self, message: dict[str, Any]) -> bytes:
        """The command's standard input. Raises OSError and ValueError."""
        return worker_input.written(message, ())

    async def _report(self, item: dict[str, Any], entry: JournalEntry, process: Process, ended: ProcessExit) -> None:
        """Nobody waits for the result of the command."""

    def _emit(self, item: dict[str, Any], event: str, **more: Any) -> None:
        self._reporter.emit(event, seq=item["seq"], **{"from": item["message"]["sender"]}, **more)
