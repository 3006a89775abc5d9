"""The dictionaries of the log: each row names its flow and its verdict by a small number.

A known flow or verdict costs no query. Both are tuples in the order of the columns, because they are built for every
envelope; `Flow` and `Verdict` name the columns.
"""

import sqlite3
from functools import partial
from typing import Final, Generic, NamedTuple, TypeVar

from aghbus.store.engine.unit_of_work import BulkStatement, Rank, UnitOfWork, put_back

_KEPT: Final = 8_192  # flows in memory, if the tail has no more: some four MiB

V = TypeVar("V", bound=tuple[object, ...])
Values = tuple[object, ...]


class Flow(NamedTuple):
    """What one peer sends to one recipient in one container; `pair_a` and `pair_b` are the peers of a direct room."""

    workspace_id: str
    channel: str
    sender: str
    recipient: str | None
    surface: str | None
    container: str | None
    pair_a: str | None
    pair_b: str | None


class Verdict(NamedTuple):
    """What was decided about an envelope. `inbox` is 1 when it was delivered to the inbox."""

    direction: str
    kind: str
    trust: str
    inbox: int
    event: str | None
    outcome: str | None
    reason: str | None
    state_before: str | None
    state_after: str | None


def _insert(table: str, columns: tuple[str, ...]) -> BulkStatement:
    return BulkStatement.insert(table, ("id", *columns), rank=Rank.REFERENCED)


_INSERT_FLOW: Final = _insert("flows", Flow._fields)
_INSERT_VERDICT: Final = _insert("verdicts", Verdict._fields)
_FIND_FLOW: Final = """
SELECT EXISTS (SELECT 1 FROM flows WHERE messages > 0 AND container IS ?6), (
    SELECT id FROM flows WHERE messages > 0 AND workspace_id = ?1 AND channel = ?2 AND sender = ?3 AND recipient IS ?4
        AND surface IS ?5 AND container IS ?6 AND pair_a IS ?7 AND pair_b IS ?8 LIMIT 1)
"""
_FLOWS_AFTER: Final = f"""
SELECT id, {", ".join(Flow._fields)} FROM flows WHERE id IN (SELECT flow FROM log WHERE seq > ?)
"""  # noqa: S608 - constants
_CONTAINER: Final = Flow._fields.index("container")


class _Dictionary(Generic[V]):
    """Numbers of values, those of the open transaction included: `ids` of those in memory, `number` of any."""

    __slots__ = ("_insert", "_last", "_values", "ids")

    def __init__(self, insert: BulkStatement) -> None:
        self._insert = insert
        self.ids: dict[Values, int] = {}
        self._values: dict[int, Values] = {}
        self._last = 0

    def _add(self, tx: UnitOfWork, values: Values) -> int:
        self._last = number = self._last + 1
        tx.append(self._insert, (number, *values))
        tx.undo.append(partial(self._remove, number, values))
        self._keep(number, values)
        return number

    def _remove(self, number: int, values: Values) -> None:
        self._forget(values)
        self._last = number - 1

    def _keep(self, number: int, values: Values) -> None:
        self.ids[values] = number
        self._values[number] = values

    def _forget(self, values: Values) -> None:
        number = self.ids.pop(values, None)
        if number is not None:
            del self._values[number]


class Verdicts(_Dictionary[Verdict]):
    """All verdicts, in memory."""

    __slots__ = ()

    def __init__(self) -> None:
        super().__init__(_INSERT_VERDICT)

    def number(self, tx: UnitOfWork, values: Values) -> int:
        """The number of a verdict."""
        found = self.ids.get(values)
        return self._add(tx, values) if found is None else found

    def value(self, number: int) -> Verdict:
        """The verdict of this number."""
        return Verdict._make(self._values[number])

    def load(self, db: sqlite3.Connection) -> None:
        """Reads the verdicts of a store that is being opened."""
        for number, *values in db.execute(f"SELECT id, {', '.join(Verdict._fields)} FROM verdicts"):  # noqa: S608 - constants
            self._keep(number, tuple(values))
            self._last = max(self._last, number)


class Flows(_Dictionary[Flow]):
    """The flows of the tail (tail.py), which the index of the table may not have, and others that were used last, in memory; the
    rest is looked up in the table."""

    __slots__ = ("_new_containers",)

    def __init__(self) -> None:
        super().__init__(_INSERT_FLOW)
        self._new_containers: dict[object, bool] = {}  # of which the index has no flow, as far as they were looked up

    def number(self, tx: UnitOfWork, values: Values) -> int:
        """The number of a flow."""
        found = self.ids.get(values)
        return self._look_up(tx, values) if found is None else found

    def value(self, tx: UnitOfWork, number: int) -> Flow:
        """The flow of this number. Raises KeyError when its row is not in the table (any more)."""
        values = self._values.get(number)
        if values is None:
            sql = f"SELECT {', '.join(Flow._fields)} FROM flows WHERE id = ?"  # noqa: S608 - constants
            values = tx.db.execute(sql, (number,)).fetchone()
        if values is None:
            raise KeyError(number)
        return Flow._make(values)

    def forget(self, tx: UnitOfWork, number: int) -> None:
        """The row of this flow was removed."""
        if (values := self._values.get(number)) is not None:
            tx.undo.append(partial(put_back, self.ids, values, self.ids.get(values)))
            tx.undo.append(partial(put_back, self._values, number, self._values.get(number)))
            self._forget(values)

    def in_container(self, container: str) -> list[int]:
        """The flows in memory of a thread or a room."""
        return [number for number, values in self._values.items() if values[_CONTAINER] == container]

    def trim(self, tail: set[int]) -> None:
        """A segment was written: drops the oldest flows beyond _KEPT from memory, but those of the `tail`."""
        self._new_containers.clear()
        excess = max(0, len(self.ids) - _KEPT)
        for number in [one for one in self._values if one not in tail][:excess]:
            self._forget(self._values[number])

    def load(self, db: sqlite3.Connection, after_seq: int) -> None:
        """Finds the last number of a store that is being opened, and reads the flows of the envelopes after sequence
        `after_seq`."""
        (self._last,) = db.execute("SELECT coalesce(max(id), 0) FROM flows").fetchone()
        for number, *values in db.execute(_FLOWS_AFTER, (after_seq,)):
            self._keep(number, tuple(values))

    def _look_up(self, tx: UnitOfWork, values: Values) -> int:
        container = values[_CONTAINER]
        if container in self._new_containers:
            return self._add(tx, values)
        is_indexed, number = tx.db.execute(_FIND_FLOW, values).fetchone()
        if not is_indexed:
            tx.undo.append(partial(put_back, self._new_containers, container, self._new_containers.get(container)))
            self._new_containers[container] = True
        if number is None:
            return self._add(tx, values)
        self._keep(number, values)
        return int(number)
