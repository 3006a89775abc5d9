"""What happens to running jobs from outside: events of their works, and the clock of their heartbeats. A thread for each."""

from __future__ import annotations

import threading
import time
from typing import TYPE_CHECKING, Any

from aghbus.cli.app.message_text import TERMINAL
from aghbus.cli.worker.daemon_client import GaveUp
from aghbus.client.api import Api
from aghbus.client.errors import ClientError
from aghbus.client.events import LAST_PAUSE, follow

if TYPE_CHECKING:
    from aghbus.cli.worker.worker import Worker

KINDS = ["say", "capability", "receipt", "trace"]
"""What can belong to a work."""
SHORTEST_BEAT = 0.05
"""Seconds between two looks at what heartbeats are due, at least."""


class EventWatch:
    """Follows the daemon's events from `since` on, for ever: wakes the worker for new work, and ends what was called off."""

    def __init__(self, worker: Worker, api: Api, since: int) -> None:
        self._worker = worker
        self._api = api
        self._since = since

    def start(self) -> None:
        """Begin, in a thread that ends with the process."""
        threading.Thread(target=self._run, name="events", daemon=True).start()

    def _run(self) -> None:
        while True:
            try:
                for event in follow(self._api, [("kind", KINDS)], self._since, lambda why: None):
                    self._since = event["seq"]
                    self._on_event(event)
            except (ClientError, GaveUp):
                time.sleep(LAST_PAUSE)  # away for longer than a stream waits: the worker's own requests say so

    def _on_event(self, event: dict[str, Any]) -> None:
        message, change = event.get("message"), event.get("work")
        if event["type"] == "gap" or message is None:
            self._look_at_all()
        elif change is not None:
            self._on_change(message, change)

    def _on_change(self, message: dict[str, Any], change: dict[str, Any]) -> None:
        job = self._worker.job(message["channel"], change["work_id"])
        if job is None:
            self._worker.bell.ring()
        elif change["after"] in TERMINAL:
            job.stop("canceled")  # without effect when it was our own trace: the command has ended then
        elif (
            message["direction"] == "in" and message["kind"] in ("say", "capability") and change["outcome"] != "opened"
        ):
            job.heard()

    def _look_at_all(self) -> None:
        """Retention removed events before we saw them: ask for what they would have said."""
        for job in self._worker.jobs():
            if self._worker.desk.state(job.work_id, job.channel) in TERMINAL:
                job.stop("canceled")
        self._worker.bell.ring()


class Pulse:
    """Gives every running job its heartbeats. Apart from the jobs, so that a daemon that hangs stops no command's clock."""

    def __init__(self, worker: Worker, interval: float) -> None:
        self._worker = worker
        self._pause = max(SHORTEST_BEAT, min(0.5, interval / 4))

    def start(self) -> None:
        """Begin, in a thread that ends with the process."""
        threading.Thread(target=self._run, name="pulse", daemon=True).start()

    def _run(self) -> None:
        while True:
            time.sleep(self._pause)
            for job in self._worker.jobs():
                try:
                    job.pulse(time.monotonic())
                except GaveUp:
                    return
