"""Recently written values, kept in memory so that the next message that needs them does not query the file."""

from functools import partial
from typing import Final, Generic, TypeVar

from aghbus.store.engine.unit_of_work import UnitOfWork

K = TypeVar("K")
V = TypeVar("V")

_GENERATION: Final = 2_048  # entries: of works about two MiB in both generations


class GenerationalCache(Generic[K, V]):
    """The latest values by key, as the file has them or will have them with the commit. A key that is not cached may
    be in the file.

    Two generations: when the younger is full it takes the place of the older, which is dropped. That costs the same
    however many entries there are, where evicting the oldest entry of a dictionary one by one does not.
    """

    __slots__ = ("_old", "_size", "_young")

    def __init__(self, size: int = _GENERATION) -> None:
        """`size` is that of one generation, in entries."""
        self._size = size
        self._young: dict[K, V] = {}
        self._old: dict[K, V] = {}

    def get(self, key: K) -> V | None:
        """The value of `key`; None when it is not cached."""
        found = self._young.get(key)
        return self._old.get(key) if found is None else found

    def put(self, tx: UnitOfWork, key: K, value: V) -> None:
        """Caches `value`, unless the job that calls is undone."""
        tx.after_rollback(partial(self._restore, key, self.get(key)))
        self._set(key, value)

    def forget(self, key: K) -> None:
        """Drops `key`: the file has to be queried again."""
        self._young.pop(key, None)
        self._old.pop(key, None)

    def clear(self) -> None:
        """Drops every key."""
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
