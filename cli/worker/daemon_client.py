"""The daemon as a worker sees it: works that wait, leases, and steps that must get through however often the daemon restarts."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, TypeVar

from aghbus.client.api import Api
from aghbus.client.errors import ClientError, RefusedByDaemon, Unexpected, Unreachable
from aghbus.client.events import FIRST_PAUSE, LAST_PAUSE
from aghbus.client.http import quote
from aghbus.protocol.base.backoff import Backoff

T = TypeVar("T")

MOOT = frozenset(
    ["work_closed", "actor_not_allowed", "work_container_mismatch", "invalid_transition", "not_found", "conflict"]
)
"""Refusals of a step of a work that no repetition changes: it has ended, or is not ours (any more)."""
LEASE_SPARE = 600.0
"""Seconds that the lease of a message outlives the longest run of its command: for the grace and for reporting."""
CLEARING_LEASE = 60.0
"""Seconds for which a message is leased that is acknowledged in the next moment."""
MAX_LISTED = 1_000
"""Works in one answer of the API, at most."""
_OPENING = frozenset(["say", "capability"])


class GaveUp(Exception):
    """The worker is stopping and the daemon cannot be reached: what is to be done stays in the journal."""


class Desk:
    """Calls of the API. `over` says when a step that cannot get through is to be given up."""

    def __init__(self, api: Api, over: Callable[[], bool]) -> None:
        self.api = api
        self._over = over

    def insist(self, call: Callable[[], T]) -> T:
        """The answer of `call`, repeated while the daemon is away. Raises RefusedByDaemon, or GaveUp."""
        backoff = Backoff(FIRST_PAUSE, LAST_PAUSE)
        while True:
            try:
                return call()
            except (Unreachable, Unexpected, RefusedByDaemon) as error:
                if not is_passing(error):
                    raise
            if self._over():
                raise GaveUp
            time.sleep(backoff.next())

    def submitted(self) -> list[dict[str, Any]]:
        """Works for us that nobody has accepted yet, longest waiting first (of the latest thousand)."""
        query = [("state", "submitted"), ("role", "target"), ("limit", MAX_LISTED)]
        works: list[dict[str, Any]] = self.api.get("/v1/works", query)["works"]
        return works[::-1]

    def opening(self, work: dict[str, Any]) -> dict[str, Any] | None:
        """The message that opened a work; None when the store no longer has it."""
        query = [("work", work["work_id"]), ("channel", work["channel"]), ("direction", "in"), ("limit", 1)]
        messages = self.api.get("/v1/messages", query)["messages"]
        return messages[0] if messages and messages[0]["id"] == work["opening_id"] else None

    def take(self, work_id: str, visibility: float) -> dict[str, Any] | None:
        """Lease the oldest ready message of a work; None when another consumer has it, or nothing is left of it."""
        item: dict[str, Any] | None = self.api.post("/v1/inbox/next", {"work_id": work_id, "visibility": visibility})[
            "item"
        ]
        return item

    def state(self, work_id: str, channel: str) -> str | None:
        """The work's state; None when the daemon knows no such work. Insists."""
        try:
            answer = self.insist(lambda: self.api.get(f"/v1/works/{quote(work_id)}", [("channel", channel)]))
        except RefusedByDaemon:
            return None
        return str(answer["work"]["state"])

    def step(self, work_id: str, verb: str, ask: dict[str, Any]) -> dict[str, Any]:
        """One step of a work, once. Raises RefusedByDaemon, Unreachable."""
        return self.api.post(f"/v1/works/{quote(work_id)}/{verb}", ask)

    def give_back(self, seq: int, lease: str | None) -> None:
        """Return a message that we hold; that somebody else has it by now is all right. Insists."""
        ask = {"lease": lease, "delay": 0, "error": "the worker was restarted before it accepted"}
        self._settle(lambda: self.api.post(f"/v1/inbox/{seq}/nack", ask))

    def acknowledge(self, seq: int) -> None:
        """The message is dealt with, whoever holds it: its work has ended. Insists."""
        self._settle(lambda: self.api.post(f"/v1/inbox/{seq}/ack", {}))

    def clear(self, work_id: str, channel: str) -> int:
        """Acknowledge what else was said in a work of ours; how many messages that was. Insists."""
        count = 0
        while (item := self.insist(lambda: self.take(work_id, CLEARING_LEASE))) is not None:
            if item["message"]["channel"] != channel:  # another work of the same id
                self.give_back(item["seq"], item["lease"])
                return count
            self.acknowledge(item["seq"])
            count += 1
        return count

    def _settle(self, call: Callable[[], object]) -> None:
        try:
            self.insist(call)
        except RefusedByDaemon:
            return  # pruned by retention, or in somebody else's hands


def is_passing(error: ClientError) -> bool:
    """Whether the same request may get through later."""
    return not isinstance(error, RefusedByDaemon) or error.code == "unavailable"


def opens(item: dict[str, Any]) -> bool:
    """Whether an inbox item is the message that opened its work for us."""
    message = item["message"]
    return bool(message["direction"] == "in" and message["kind"] in _OPENING and message["outcome"] == "opened")
