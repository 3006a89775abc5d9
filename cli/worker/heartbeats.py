"""The `working` traces of a job while its command runs."""

from __future__ import annotations

import asyncio
import contextlib
import time
from collections.abc import Callable
from typing import Any

from aghbus.cli.app.text import span
from aghbus.cli.worker.process import Process
from aghbus.cli.worker.result import line
from aghbus.client.core.refusals import SecretLike
from aghbus.client.errors import ClientError
from aghbus.client.work.job import JobCanceled, JobCore
from aghbus.protocol.agh.envelope import OPENING_KINDS
from aghbus.protocol.api.messages import Event
from aghbus.protocol.api.works import WorkActionRequest

FORCED_AFTER = 3
"""Skipped heartbeats (nothing new to report) after which one is sent anyway."""
MIN_CHECK = 0.05
"""Shortest time between two checks for due heartbeats, in seconds."""
_WITHHELD = "running; its last line is not shown, because it looks like a credential"


class Heartbeats:
    """The heartbeats of one job, at most one in `interval` seconds. Their ids begin with `prefix`.

    The command reads its input once: the next heartbeat counts the messages that it did not get. While it asks, there are no
    heartbeats, because they would withdraw the question.
    """

    def __init__(self, core: JobCore, prefix: str, interval: float, emit: Callable[..., None]) -> None:
        self.prefix = prefix
        self._core = core
        self._interval = interval
        self._emit = emit
        self._unread = 0
        self._asking = False
        self._at = time.monotonic()
        self._text = ""

    def note(self, event: Event) -> None:
        """Note an event of the work."""
        if event.message is None or event.work is None:
            return
        if event.message.direction == "in" and event.message.kind in OPENING_KINDS and not self._asking:
            self._unread += 1
        self._asking = event.work.after == "needs_input"

    def reset(self) -> None:
        """The command runs again, and gets all messages."""
        self._asking, self._unread = False, 0

    async def send(
        self, process: Process, progress: Callable[[], str], ext: dict[str, Any] | None, ended: asyncio.Event
    ) -> None:
        """Send heartbeats with the latest line of `progress` until `ended`."""
        pause = max(MIN_CHECK, min(0.5, self._interval / 4))
        while not ended.is_set():
            if not self._asking and time.monotonic() - self._at >= self._interval:
                await self._send_if_new(progress(), process.seconds, ext)
            with contextlib.suppress(TimeoutError):
                async with asyncio.timeout(pause):
                    await ended.wait()

    async def _send_if_new(self, latest: str, seconds: float, ext: dict[str, Any] | None) -> None:
        now, unread = time.monotonic(), self._unread
        text = line(latest) or f"running for {span(seconds)}"
        quiet = not unread and (text == self._text or not latest)
        if quiet and now - self._at < FORCED_AFTER * self._interval:
            return
        self._at, self._text, self._unread = now, text, 0
        try:
            try:
                await self._send(text, unread, ext)
            except SecretLike:  # a heartbeat without the command's output
                await self._send(_WITHHELD, unread, ext)
        except JobCanceled:
            self._core.state.on_cancel()
        except ClientError:
            pass  # the job goes on without this one

    async def _send(self, text: str, unread: int, ext: dict[str, Any] | None) -> None:
        if unread:
            lost = f"{unread} message{'s' * (unread > 1)} not delivered"
            text += f" ({lost}: the command reads its input only at start)"
        action = WorkActionRequest(message=text, ext=ext, replace_secrets=True)
        action.id = f"{self.prefix}_{time.time_ns()}"
        await self._core.act("update", action)
        self._emit("heartbeat", message=text)
        if unread:
            await self._core.read()
