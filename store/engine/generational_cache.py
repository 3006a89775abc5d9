"""What was written lately, kept in memory so that who needs it soon again does not ask the file."""

from __future__ import annotations

from functools import partial
from typing import TYPE_CHECKING, Final, Generic, NamedTuple, TypeVar

if TYPE_CHECKING:
    from aghbus.protocol.api.works import Role
    from aghbus.protocol.lifecycle import WorkView
    from aghbus.store.engine.transaction import Transaction

K = TypeVar("K")
V = TypeVar("V")

_GENERATION: Final = 2_048  # ours, entries: of works about two MiB in both generations


class RecentWork(NamedTuple):
    """A work, our part in it, the `trace_id` of its opening, and the sequences of its first and its latest envelope. `timed`:
    whether it has had a deadline."""

    work: WorkView
    role: Role
    trace_id: str | None
    opened_seq: int
    last_seq: int
    timed: bool = False


class Addressed(NamedTuple):
    """Where an envelope of ours goes to."""

    workspace_id: str
    message_id: str
    sender: str
    recipient: str
    subject: str


class Recent(Generic[K, V]):
    """The latest values by key, as the file has them or will with the commit. What is not in it may be in the file.

    Two generations: when the younger is full it takes the place of the older, which is forgotten. That costs the same however
    many there are, where evicting the oldest entry of a dictionary one by one does not.
    """

    __slots__ = ("_old", "_size", "_young")

    def __init__(self, size: int = _GENERATION) -> None:
        """`size` is that of one generation."""
        self._size = size
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """What is known under `key`."""
        found = self._young.get(key)
        return self._old.get(key) if found is None else found

    def put(self, tx: Transaction, key: K, value: V) -> None:
        """`value` from now on, unless the job that calls is undone."""
        tx.after_rollback(partial(self._restore, key, self.get(key)))
        self._set(key, value)

    def forget(self, key: K) -> None:
        """The file has to be asked again."""
        self._young.pop(key, None)
        self._old.pop(key, None)

    def clear(self) -> None:
        """The same for every key."""
        self._young.clear()
        self._old.clear()

    def _set(self, key: K, value: V) -> None:
        if len(self._young) >= self._size:
            self._old, self._young = self._young, {}
        self._young[key] = value

    def _restore(self, key: K, value: V | None) -> None:
        if value is None:
            self.forget(key)
        else:
            self._set(key, value)
