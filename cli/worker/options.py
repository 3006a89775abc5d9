"""What the operator asked of `aghctl serve`: fixed for the life of the process."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any


@dataclass(frozen=True, slots=True)
class WorkerOptions:
    """One worker. Times are seconds; `accept` maps `intent`, `from` and `kind` to the values that are taken (none: all).

    `queue_when_busy` leaves works waiting that find no free slot, instead of rejecting them. `rerun` starts a command again
    whose worker died under it. `max_jobs` ends the worker after so many.
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
        """Whether the opening `message` (`control.Message`) is one that this worker takes."""
        body = message["envelope"].get("body") or {}
        found = {"intent": body.get("intent"), "from": message["sender"], "kind": message["kind"]}
        return all(found[name] in values for name, values in self.accept.items())
