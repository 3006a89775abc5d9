"""What is kept of the log in memory: its dictionaries, and the key of its ids."""

import sqlite3
from hashlib import blake2b
from typing import Final

from aghbus.store.engine import meta
from aghbus.store.engine.log.dictionaries import Streams, Verdicts

_IDENTITY_BYTES: Final = 8


class LogMemory:
    """The parts of the log in memory. A job's changes to them are undone with the job."""

    __slots__ = ("_identity", "streams", "verdicts")

    def __init__(self) -> None:
        self.streams = Streams()
        self.verdicts = Verdicts()
        self._identity = bytes(_IDENTITY_BYTES)

    def id_key(self, message_id: str) -> int:
        """The number by which a message id is indexed. It is keyed by the identity of the store, so that no sender can
        choose ids of the same number."""
        digest = blake2b(message_id.encode(), digest_size=8, key=self._identity).digest()
        return int.from_bytes(digest, "little", signed=True)

    def savepoint(self) -> tuple[int, int]:
        """How much of the open transaction is pending."""
        return len(self.streams.pending), len(self.verdicts.pending)

    def undo(self, streams: int, verdicts: int) -> None:
        """The state as it was at that savepoint, in the same transaction."""
        self.streams.undo(streams)
        self.verdicts.undo(verdicts)

    def committed(self) -> None:
        """The transaction is durable."""
        self.streams.committed()
        self.verdicts.committed()

    def load(self, db: sqlite3.Connection) -> None:
        """Reads the log of a store that is being opened."""
        self._identity = (meta.get(db, "identity") or 0).to_bytes(_IDENTITY_BYTES, "little")
        self.streams.load(db)
        self.verdicts.load(db)
