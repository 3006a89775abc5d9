"""The daemon's API as a worker uses it: open works, leases, and calls that are retried until the daemon answers."""

from __future__ import annotations

import time
from collections.abc import Callable
from typing import Any, BinaryIO, TypeVar

from aghbus.cli.app.uploads import content_of, put
from aghbus.client.api import FIRST_PAUSE, LAST_PAUSE, Api
from aghbus.client.errors import ClientError, RefusedByDaemon
from aghbus.client.http import quote
from aghbus.protocol.agh.lifecycle import REFUSING_OUTCOMES
from aghbus.protocol.base.backoff import Backoff

T = TypeVar("T")

FINAL_REFUSALS = frozenset(
    ["work_closed", "actor_not_allowed", "work_container_mismatch", "invalid_transition", "not_found", "conflict"]
)
"""Error codes of a step of a work that a retry cannot change: the work has ended, or is not (any longer) ours."""
LEASE_MARGIN = 600.0
"""Seconds by which the lease of a message exceeds the time limit of its command: for the grace period and for reporting."""
ACK_LEASE = 60.0
"""Lease in seconds for a message that is acknowledged immediately."""
MAX_LISTED = 1_000
"""Largest number of works in one answer of the API."""
_OPENING = frozenset(["say", "capability"])


class RetryAbandoned(Exception):
    """The worker is stopping and the daemon is unreachable: the job stays in the journal."""


class DaemonClient:
    """Calls of the API. `stop_retrying` says when a call that fails must not be retried any more."""

    def __init__(self, api: Api, stop_retrying: Callable[[], bool]) -> None:
        self.api = api
        self._stop_retrying = stop_retrying

    def with_retry(self, call: Callable[[], T]) -> T:
        """The result of `call`, retried while the daemon is unreachable. Raises RefusedByDaemon or RetryAbandoned."""
        backoff = Backoff(FIRST_PAUSE, LAST_PAUSE)
        while True:
            try:
                return call()
            except ClientError as error:
                if not error.is_transient:
                    raise
            if self._stop_retrying():
                raise RetryAbandoned
            time.sleep(backoff.next())

    def submitted(self) -> list[dict[str, Any]]:
        """Works for this peer that are not accepted yet, oldest first (the latest thousand)."""
        query = [("state", "submitted"), ("role", "target"), ("limit", MAX_LISTED)]
        works: list[dict[str, Any]] = self.api.get("/v1/works", query)["works"]
        return works[::-1]

    def opening(self, work: dict[str, Any]) -> dict[str, Any] | None:
        """The message that opened a work; None when it is no longer stored."""
        query = [("work", work["work_id"]), ("channel", work["channel"]), ("direction", "in"), ("limit", 1)]
        messages = self.api.get("/v1/messages", query)["messages"]
        return messages[0] if messages and messages[0]["id"] == work["opening_id"] else None

    def lease_next(self, work_id: str, visibility: float) -> dict[str, Any] | None:
        """Lease the oldest ready message of a work for `visibility` seconds; None when there is none."""
        item: dict[str, Any] | None = self.api.post("/v1/inbox/next", {"work_id": work_id, "visibility": visibility})[
            "item"
        ]
        return item

    def work(self, work_id: str, channel: str) -> dict[str, Any] | None:
        """A work with its history; None when the daemon does not know it. Retries."""
        try:
            return self.with_retry(lambda: self.api.get(f"/v1/works/{quote(work_id)}", [("channel", channel)]))
        except RefusedByDaemon:
            return None

    def state(self, work_id: str, channel: str) -> str | None:
        """The state of a work; None when the daemon does not know it. Retries."""
        answer = self.work(work_id, channel)
        return None if answer is None else str(answer["work"]["state"])

    def received(self, work_id: str, channel: str, since: int) -> list[dict[str, Any]]:
        """The messages of the initiator in a work after sequence `since`, oldest first. Retries."""
        kinds = [("kind", kind) for kind in sorted(_OPENING)]
        query = [("work", work_id), ("channel", channel), ("direction", "in"), ("limit", MAX_LISTED), *kinds]
        found: list[dict[str, Any]] = []
        while True:
            where = [*query, ("since", since)]
            page = self.with_retry(lambda where=where: self.api.get("/v1/messages", where))  # type: ignore[misc]
            found += [message for message in page["messages"] if message["outcome"] not in REFUSING_OUTCOMES]
            if len(page["messages"]) < MAX_LISTED:
                return found
            since = page["next_since"]

    def step(self, work_id: str, verb: str, request: dict[str, Any]) -> dict[str, Any]:
        """One step of a work, tried once. Raises RefusedByDaemon or Unreachable."""
        return self.api.post(f"/v1/works/{quote(work_id)}/{verb}", request)

    def put_artifact(self, work_id: str, stream: BinaryIO, length: int, name: str) -> dict[str, Any]:
        """Store an open file as an artifact of a work, tried once; the members of a reference that name it. Raises ClientError."""
        return content_of(put(self.api, work_id, stream, length, name))

    def release(self, seq: int, lease: str | None) -> None:
        """Make a leased message ready again; ignored when the lease is no longer ours. Retries."""
        request = {"lease": lease, "delay": 0, "error": "the worker was restarted before it accepted"}
        self._retry_ignoring_lost_lease(lambda: self.api.post(f"/v1/inbox/{seq}/nack", request))

    def acknowledge(self, seq: int) -> None:
        """Acknowledge a message of a work that has ended, whatever its lease. Retries."""
        self._retry_ignoring_lost_lease(lambda: self.api.post(f"/v1/inbox/{seq}/ack", {}))

    def acknowledge_all(self, work_id: str, channel: str) -> int:
        """Acknowledge all ready messages of a work; how many there were. Retries."""
        count = 0
        while (item := self.with_retry(lambda: self.lease_next(work_id, ACK_LEASE))) is not None:
            if item["message"]["channel"] != channel:  # another work with the same id
                self.release(item["seq"], item["lease"])
                return count
            self.acknowledge(item["seq"])
            count += 1
        return count

    def _retry_ignoring_lost_lease(self, call: Callable[[], object]) -> None:
        try:
            self.with_retry(call)
        except RefusedByDaemon:
            return  # removed by retention, or leased by another consumer


def opens(item: dict[str, Any]) -> bool:
    """Whether an inbox item is the message that opened its work."""
    message = item["message"]
    return bool(message["direction"] == "in" and message["kind"] in _OPENING and message["outcome"] == "opened")
