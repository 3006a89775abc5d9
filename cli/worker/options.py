"""The options of a worker, fixed for the life of the process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """The options of one worker. Times are in seconds. `accept` maps `intent`, `from` and `kind` to accepted values (no key:
    all values).

    `queue_when_busy` leaves works in the inbox while no slot is free, instead of rejecting them. `rerun` runs a command again
    if its worker died. `max_jobs` is the number of jobs after which the worker exits.
    """

    command: tuple[str, ...]
    capabilities: tuple[str, ...]
    concurrency: int
    time_limit: float
    grace: float
    heartbeat: float
    drain: float
    artifacts: tuple[str, ...]
    cwd: str
    accept: dict[str, frozenset[str]]
    queue_when_busy: bool
    rerun: bool
    max_jobs: int | None

    def fits(self, message: dict[str, Any]) -> bool:
        """Whether the opening `message` (a Message of the API) matches `accept`."""
        body = message["envelope"].get("body") or {}
        found = {"intent": body.get("intent"), "from": message["sender"], "kind": message["kind"]}
        return all(found[name] in values for name, values in self.accept.items())
