"""Which work a line answers that names none: the only one whose words were printed and that no line has answered yet."""

from __future__ import annotations

import contextlib
import threading

from aghbus.cli.worker.daemon_client import MAX_LISTED
from aghbus.client.errors import ClientError

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

    from aghbus.client.api import Api

NAMELESS = ("sacp", "humaninloop")
"""Formats whose messages do not say what they answer."""


class UnansweredWorks:
    """Works of our agent that it has the words of and has not answered, as (channel, work id). Printed by one thread,
    answered by another."""

    def __init__(self, format: str) -> None:
        self._counts = format in NAMELESS
        self._works: dict[tuple[str, str], None] = {}
        self._lock = threading.Lock()

    def recall(self, api: Api) -> None:
        """What an earlier process may have printed: works that our agent has in hand already. Without a daemon none are known."""
        if not self._counts:
            return
        query = [("state", "working"), ("state", "needs_input"), ("role", "target"), ("limit", MAX_LISTED)]
        with contextlib.suppress(ClientError):
            for work in api.get("/v1/works", query)["works"]:
                with self._lock:
                    self._works[work["channel"], work["work_id"]] = None

    def add(self, item: dict[str, Any]) -> None:
        """`item` is about to be printed: what the daemon handed out (`BridgeDelivery`)."""
        if self._counts and item["kind"] in ("say", "capability") and item["work_role"] == "target":
            with self._lock:
                self._works[item["channel"], item["work_id"]] = None

    def waiting(self, channel: str | None) -> list[tuple[str, str]]:
        """Those that wait for an answer, on one channel or (None) on all."""
        with self._lock:
            return [work for work in self._works if channel in (None, work[0])]

    def forget(self, channel: str, work_id: str) -> None:
        """It was answered, or takes no answer any more."""
        with self._lock:
            self._works.pop((channel, work_id), None)


def reports(format: str, ask: dict[str, Any]) -> bool:
    """Whether a message that names no work reports on one: neither opens work, nor tells by itself what it answers."""
    if format == "sacp":
        return ask.get("target") is None
    return format == "humaninloop" and _is_output(ask)


def _is_output(ask: dict[str, Any]) -> bool:
    from aghbus.protocol.adapters.humaninloop.shape import kind_of
    from aghbus.protocol.adapters.strict_json import read_json

    message = ask["message"] if "message" in ask else read_json(str(ask["text"]).encode(errors="replace"))[0]
    return kind_of(message) == "output"
