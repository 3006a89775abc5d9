"""The tail of the log: its envelopes after the last segment, which the indexes do not have yet (segments.py).

Appending to it costs one tuple. Its own indexes are brought up to date when it is searched.
"""

import sqlite3
from bisect import bisect_left
from collections.abc import Callable
from typing import Final

TailRow = tuple[int, int, int, str | None]
"""The sequence, the key of the id, the number of the flow and the id of the work of one envelope."""

_LOAD: Final = "SELECT seq, msg_id, flow, work_id FROM log WHERE seq > ? ORDER BY seq"


class Tail:
    """Sequences by id, flow and work, ascending; those of the open transaction included, and those that retention has
    removed since. So a query compares what it finds in the log."""

    __slots__ = ("_flows", "_ids", "_indexed", "_works", "rows")

    def __init__(self) -> None:
        self.rows: list[TailRow] = []
        self._clear_indexes()

    def of_id(self, id_key: int) -> list[int]:
        """The envelopes whose id has this key."""
        self._index()
        return self._ids.get(id_key, [])

    def of_flow(self, flow: int) -> list[int]:
        """The envelopes of a flow."""
        self._index()
        return self._flows.get(flow, [])

    def of_work(self, work_id: str) -> list[int]:
        """The envelopes of the works with this id."""
        self._index()
        return self._works.get(work_id, [])

    def pop(self) -> None:
        """Drops the last envelope: its job is undone."""
        row = self.rows.pop()
        if len(self.rows) < self._indexed:
            self._indexed -= 1
            for index, key in ((self._ids, row[1]), (self._flows, row[2]), (self._works, row[3])):
                if key is not None:
                    index[key].pop()  # type: ignore[index]

    def drop(self, last_seq: int) -> None:
        """Drops the envelopes up to sequence `last_seq`: the indexes have them."""
        del self.rows[: bisect_left(self.rows, (last_seq + 1,))]  # a shorter tuple sorts first
        self._clear_indexes()

    def load(self, db: sqlite3.Connection, after_seq: int, key_of: Callable[[str], int]) -> None:
        """Reads the envelopes after sequence `after_seq` of a store that is being opened."""
        rows = db.execute(_LOAD, (after_seq,))
        self.rows = [(seq, key_of(message_id), flow, work_id) for seq, message_id, flow, work_id in rows]
        self._clear_indexes()

    def _clear_indexes(self) -> None:
        self._indexed = 0
        self._ids: dict[int, list[int]] = {}
        self._flows: dict[int, list[int]] = {}
        self._works: dict[str, list[int]] = {}

    def _index(self) -> None:
        rows, ids, flows, works = self.rows, self._ids, self._flows, self._works
        for position in range(self._indexed, len(rows)):
            seq, id_key, flow, work_id = rows[position]
            ids.setdefault(id_key, []).append(seq)
            flows.setdefault(flow, []).append(seq)
            if work_id is not None:
                works.setdefault(work_id, []).append(seq)
        self._indexed = len(rows)
