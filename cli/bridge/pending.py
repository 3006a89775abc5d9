"""Tracks which delivered works are unanswered: an input line that names no work answers the only one."""

from __future__ import annotations

import contextlib
import threading

from aghbus.client.api import Api
from aghbus.client.errors import ClientError
from aghbus.protocol.base.annotations import Any

MAX_LISTED = 1_000
"""Works in one answer of the API."""
FORMATS_WITHOUT_IDS = ("sacp", "humaninloop")
"""Formats whose messages do not identify the work they answer."""


class UnansweredWorks:
    """Works that were delivered to our agent and not answered yet, as (channel, work id). Thread-safe."""

    def __init__(self, format: str) -> None:
        self._tracked = format in FORMATS_WITHOUT_IDS
        self._works: dict[tuple[str, str], None] = {}
        self._lock = threading.Lock()

    def recall(self, api: Api) -> None:
        """Load the assigned works, which an earlier process may have printed. Does nothing when the daemon is unreachable."""
        if not self._tracked:
            return
        query = [("state", "working"), ("state", "needs_input"), ("role", "target"), ("limit", MAX_LISTED)]
        with contextlib.suppress(ClientError):
            for work in api.get("/v1/works", query)["works"]:
                with self._lock:
                    self._works[work["channel"], work["work_id"]] = None

    def add(self, item: dict[str, Any]) -> None:
        """Add the work of a message (`BridgeMessage`) that is about to be printed."""
        if self._tracked and item["kind"] in ("say", "capability") and item["work_role"] == "target":
            with self._lock:
                self._works[item["channel"], item["work_id"]] = None

    def waiting(self, channel: str | None) -> list[tuple[str, str]]:
        """The unanswered works on one channel, or on all (None)."""
        with self._lock:
            return [work for work in self._works if channel in (None, work[0])]

    def forget(self, channel: str, work_id: str) -> None:
        """Remove a work that was answered or has ended."""
        with self._lock:
            self._works.pop((channel, work_id), None)


def reports_on_work(format: str, request: dict[str, Any]) -> bool:
    """Whether a message without a work id reports on an assigned work, instead of opening a new one."""
    if format == "sacp":
        return request.get("target") is None
    return format == "humaninloop" and _is_output(request)


def _is_output(request: dict[str, Any]) -> bool:
    from aghbus.protocol.formats.humaninloop.shape import kind_of
    from aghbus.protocol.formats.strict_json import read_json

    message = (
        request["message"] if "message" in request else read_json(str(request["text"]).encode(errors="replace"))[0]
    )
    return kind_of(message) == "output"
