"""Two threads beside the jobs: one follows the daemon's events, the other sends heartbeats when they are due."""

from __future__ import annotations

import time
from collections.abc import Sequence
from typing import Any, Protocol

from aghbus.cli.app.message_text import TERMINAL
from aghbus.cli.worker.daemon_client import DaemonClient, RetryAbandoned
from aghbus.cli.worker.job import Job
from aghbus.client.api import LAST_PAUSE, Api
from aghbus.client.errors import ClientError
from aghbus.client.events import follow

KINDS = ["say", "capability", "receipt", "trace"]
"""Kinds of envelopes that can belong to a work."""
MIN_HEARTBEAT_CHECK = 0.05
"""Shortest time between two checks for due heartbeats, in seconds."""


class RunningJobs(Protocol):
    """The interface of the worker for its two threads: its jobs, the daemon, and a way to wake its main thread."""

    @property
    def client(self) -> DaemonClient:
        """Calls of the daemon."""
        ...

    def jobs(self) -> Sequence[Job]:
        """The jobs of this worker."""
        ...

    def job(self, channel: str, work_id: str) -> Job | None:
        """The job of a work; None when this worker has none."""
        ...

    def wake(self) -> None:
        """Make the main thread look for works."""
        ...


class EventWatcher:
    """Follows the daemon's events after sequence `since`: wakes the worker for new works, and stops jobs of canceled ones."""

    def __init__(self, worker: RunningJobs, api: Api, since: int) -> None:
        self._worker = worker
        self._api = api
        self._since = since

    def run(self) -> None:
        """Follow the events until the process ends."""
        while True:
            try:
                for event in follow(self._api, [("kind", KINDS)], self._since, lambda why: None):
                    self._since = event["seq"]
                    self._on_event(event)
            except (ClientError, RetryAbandoned):
                time.sleep(LAST_PAUSE)  # the daemon is unreachable for longer than the stream retries

    def _on_event(self, event: dict[str, Any]) -> None:
        message, change = event.get("message"), event.get("work")
        if event["type"] == "gap" or message is None:
            self._check_all_jobs()
        elif change is not None:
            self._on_change(message, change)

    def _on_change(self, message: dict[str, Any], change: dict[str, Any]) -> None:
        job = self._worker.job(message["channel"], change["work_id"])
        if job is None:
            self._worker.wake()
            return
        if change["after"] in TERMINAL:
            job.stop("canceled")  # no effect when the trace was our own: the command has ended by then
        asks = message["direction"] == "in" and message["kind"] in ("say", "capability")
        job.note_change(change["after"], message=asks and change["outcome"] != "opened")
        if job.is_waiting:
            self._worker.wake()

    def _check_all_jobs(self) -> None:
        """Retention removed events before we received them: read the state of every work instead."""
        for job in self._worker.jobs():
            job.changed = True
            if self._worker.client.state(job.work_id, job.channel) in TERMINAL:
                job.stop("canceled")
        self._worker.wake()


def send_heartbeats(worker: RunningJobs, interval: float) -> None:
    """Send the heartbeats of all running jobs: its own thread, so that a slow daemon does not delay any job's timeout."""
    pause = max(MIN_HEARTBEAT_CHECK, min(0.5, interval / 4))
    while True:
        time.sleep(pause)
        for job in worker.jobs():
            try:
                job.send_heartbeat(time.monotonic())
            except RetryAbandoned:
                return
