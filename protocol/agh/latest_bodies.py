"""The bodies of greet and whois that each peer sent last: they are repeated all the time, and mostly unchanged."""

from typing import Any, Final, Generic, NamedTuple, TypeVar

from msgspec import Raw

B = TypeVar("B")

MAX_BYTES: Final = 8 * 1024 * 1024
"""Of the members as JSON: an unknown sender may greet under many names with large cards."""

_ENTRY_BYTES: Final = 512  # of an entry beside its JSON, for many small cards

Key = tuple[str, str, bool]
"""Sender, kind, and whether it is a response."""


class KnownBody(NamedTuple, Generic[B]):
    """The members `body` and `ext` of a valid envelope, as bytes and as values. The values are shared: do not change them."""

    raw_body: Raw
    raw_ext: Raw
    body: B
    ext: dict[str, Any] | None


class LatestBodies(Generic[B]):
    """What was read last, by key. Those that came first are dropped beyond `max_bytes`."""

    def __init__(self, max_bytes: int = MAX_BYTES) -> None:
        self._max_bytes = max_bytes
        self._bytes = 0
        self._known: dict[Key, KnownBody[B]] = {}
        self.get: Final = self._known.get

    def put(self, key: Key, known: KnownBody[B]) -> None:
        """Remember the last one of this key."""
        self._drop(key)
        self._known[key] = known
        self._bytes += _size(known)
        while self._bytes > self._max_bytes:
            self._drop(next(iter(self._known)))

    def _drop(self, key: Key) -> None:
        last = self._known.pop(key, None)
        if last is not None:
            self._bytes -= _size(last)


def _size(known: KnownBody[Any]) -> int:
    return len(bytes(known.raw_body)) + len(bytes(known.raw_ext)) + _ENTRY_BYTES
