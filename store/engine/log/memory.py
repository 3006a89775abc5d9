"""What is kept of the log in memory: the keys of its ids, its dictionaries, and its tail."""

import sqlite3
from typing import Final

import msgspec

from aghbus.store.engine.log.dedup import MessageIds
from aghbus.store.engine.log.dictionaries import Flows, Verdicts
from aghbus.store.engine.log.segments import last_indexed
from aghbus.store.engine.log.tail import Tail

_AT_HAND: Final = 64  # envelopes of one work that are read on the event loop


class LogMemory:
    """The parts of the log in memory. A job's changes to them are undone with the job."""

    __slots__ = ("flows", "ids", "tail", "verdicts")

    def __init__(self) -> None:
        self.ids = MessageIds()
        self.flows = Flows()
        self.verdicts = Verdicts()
        self.tail = Tail()

    def of_id(self, message_id: str) -> tuple[int, str]:
        """The parameters of SEQS_OF_ID."""
        key = self.ids.id_key(message_id)
        return key, as_json(self.tail.of_id(key))

    def of_work(self, work_id: str) -> tuple[str, str]:
        """The parameters of SEQS_OF_WORK."""
        return work_id, as_json(self.tail.of_work(work_id))

    def is_at_hand(self, work_id: str, opened_seq: int) -> bool:
        """Whether a work that was opened by envelope `opened_seq` has few envelopes, all of them recent: the disk need not be
        waited for."""
        rows = self.tail.rows
        return bool(rows) and opened_seq >= rows[0][0] and len(self.tail.of_work(work_id)) <= _AT_HAND

    def load(self, db: sqlite3.Connection) -> None:
        """Reads the log of a store that is being opened, whose identity `ids` has."""
        indexed = last_indexed(db)
        self.flows.load(db, indexed)
        self.verdicts.load(db)
        self.tail.load(db, indexed, self.ids.id_key)

    def drop_tail(self, last_seq: int) -> None:
        """Drops what a segment up to sequence `last_seq` has. Between transactions."""
        self.tail.drop(last_seq)
        self.flows.trim({flow for _, _, flow, _ in self.tail.rows})


def as_json(seqs: list[int]) -> str:
    """Sequences as a parameter of json_each."""
    return msgspec.json.encode(seqs).decode()
