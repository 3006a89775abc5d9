"""Recently written values, kept in memory so that the next message that needs them does not query the file."""

from functools import partial
from itertools import islice
from typing import Final, TypeVar

import msgspec

from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.protocol.api.works import Role
from aghbus.store.engine.unit_of_work import UnitOfWork, put_back

K = TypeVar("K")
V = TypeVar("V")

_GENERATION: Final = 2_048  # entries: of works about two MiB in both generations


class CachedWork(msgspec.Struct, frozen=True):
    """A work, its row, our role in it, the `trace_id` of its opening, and the sequences of its first and its latest
    envelope. `has_deadline`: whether it ever had one. `others_bytes`: of its messages, if one of others opened it."""

    work: WorkView
    row: int
    role: Role
    trace_id: str | None
    opened_seq: int
    last_seq: int
    has_deadline: bool = False
    others_bytes: int | None = None


class Addressed(msgspec.Struct, frozen=True):
    """The destination of an own envelope, and its digest."""

    workspace_id: str
    message_id: str
    sender: str
    recipient: str
    subject: str
    digest: str


class GenerationalCache(dict[K, V]):
    """The latest values by key, as the file has them or will have them with the commit. A key that is not cached may
    be in the file. Only `put` adds values.

    The older half is dropped at once when the cache is full. That costs the same however many entries there are, where
    evicting the oldest entry of a dictionary one by one does not.
    """

    __slots__ = ("_size",)

    def __init__(self, size: int = _GENERATION) -> None:
        """`size` is that of one half, in entries."""
        super().__init__()
        self._size = size

    def put(self, tx: UnitOfWork, key: K, value: V) -> None:
        """Caches `value`, unless the job that calls is undone."""
        tx.undo.append(partial(put_back, self, key, self.get(key)))
        self.pop(key, None)
        if len(self) >= 2 * self._size:
            for oldest in list(islice(self, self._size)):
                del self[oldest]
        self[key] = value

    def forget(self, key: K) -> None:
        """Drops `key`: the file has to be queried again."""
        self.pop(key, None)
