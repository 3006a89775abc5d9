"""How long deliveries take, for the metrics."""

import time
from collections.abc import Iterable
from typing import Final

from aghbus.protocol.base.histogram import Histogram
from aghbus.store.tables.outbox import Outgoing

MAX_MEASURED: Final = 8_192
"""Unanswered messages whose time is kept; of more, the oldest are not measured."""


class DeliveryTimes:
    """Seconds from the commit of a directed message to the acknowledgement of its receiver's commit.

    Messages that were committed in an earlier run are not measured.
    """

    def __init__(self) -> None:
        self.seconds = Histogram()
        self._since: dict[int, float] = {}  # by sequence, ascending

    def committed(self, rows: Iterable[Outgoing]) -> None:
        """These messages were committed now."""
        since, now = self._since, time.monotonic()
        for row in rows:
            if row.recipient is not None:
                since[row.seq] = now
        while len(since) > MAX_MEASURED:
            del since[next(iter(since))]

    def acknowledged(self, seq: int) -> None:
        """The receiver's daemon has committed our message `seq`; a second acknowledgement has no effect."""
        since = self._since.pop(seq, None)
        if since is not None:
            self.seconds.observe(time.monotonic() - since)
