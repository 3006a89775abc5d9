"""The Peer Card that each peer sent last: a greet repeats it every half minute, and mostly unchanged."""

from collections.abc import Callable
from typing import Final, Generic, TypeVar

C = TypeVar("C")

MAX_BYTES: Final = 8 * 1024 * 1024
"""Of the cards as JSON: an unknown sender may greet under many names with large cards."""

_ENTRY_BYTES: Final = 512  # of an entry beside its JSON, for many small cards


class LatestCards(Generic[C]):
    """Validated cards by sender. A card with the same bytes as the sender's last one is not read again."""

    def __init__(self, read: Callable[[bytes, str], C], max_bytes: int = MAX_BYTES) -> None:
        """`read` decodes and validates the card of a sender; the cards that came first are dropped beyond `max_bytes`."""
        self._read = read
        self._max_bytes = max_bytes
        self._bytes = 0
        self._cards: dict[str, tuple[bytes, C]] = {}

    def __call__(self, raw: bytes, sender: str) -> C:
        """The card in `raw`. Raises what `read` raises."""
        last = self._cards.get(sender)
        if last is not None and last[0] == raw:
            return last[1]
        card = self._read(raw, sender)
        self._drop(sender)
        self._cards[sender] = raw, card
        self._bytes += len(raw) + _ENTRY_BYTES
        while self._bytes > self._max_bytes:
            self._drop(next(iter(self._cards)))
        return card

    def _drop(self, sender: str) -> None:
        last = self._cards.pop(sender, None)
        if last is not None:
            self._bytes -= len(last[0]) + _ENTRY_BYTES
