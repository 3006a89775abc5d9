"""The logger of a job. A module of its own, because a client that has no jobs does without `logging`."""

from __future__ import annotations

import logging
from collections.abc import MutableMapping
from typing import Any


class JobLog(logging.LoggerAdapter[logging.Logger]):
    """Logger `aghbus.job` that puts work, initiator and attempt before each line, and into `extra`."""

    def __init__(self, work_id: str, peer: str, attempt: int) -> None:
        super().__init__(logging.getLogger("aghbus.job"), {"work_id": work_id, "peer": peer, "attempt": attempt})
        self._prefix = f"{work_id} of {peer}, attempt {attempt}"

    def process(self, msg: Any, kwargs: MutableMapping[str, Any]) -> tuple[Any, MutableMapping[str, Any]]:
        """As LoggerAdapter."""
        message, more = super().process(msg, kwargs)
        return f"{self._prefix}: {message}", more
