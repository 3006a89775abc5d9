"""Numbers in place of ids: 64-bit hashes, keyed by the identity of the store, so that no sender can choose ids that meet."""

from hashlib import blake2b
from typing import Final

_IDENTITY_BYTES: Final = 8
_KEPT: Final = 8_192  # senders in memory


class MessageIds:
    """The hashes of one store; `open` gives it its identity."""

    __slots__ = ("_identity", "_senders")

    def __init__(self) -> None:
        self._identity = bytes(_IDENTITY_BYTES)
        self._senders: dict[tuple[str, str], int] = {}

    def open(self, identity: int) -> None:
        """Uses the identity of a store that is being opened."""
        self._identity = identity.to_bytes(_IDENTITY_BYTES, "little")
        self._senders.clear()

    def id_key(self, text: str) -> int:
        """The number by which the log indexes an id."""
        return int.from_bytes(blake2b(text.encode(), digest_size=8, key=self._identity).digest(), "little", signed=True)

    def sender_key(self, workspace_id: str, sender: str) -> int:
        """The number of a sender."""
        key = self._senders.get((workspace_id, sender))
        if key is None:
            if len(self._senders) >= _KEPT:
                self._senders.clear()
            key = self.id_key(f"{workspace_id}\0{sender}")  # neither holds NUL (spec section 1)
            self._senders[workspace_id, sender] = key
        return key

    def dedup_key(self, workspace_id: str, sender: str, message_id: str) -> int:
        """The number by which the dedup window remembers an id of this sender: both numbers, by XOR."""
        return self.id_key(message_id) ^ self.sender_key(workspace_id, sender)
