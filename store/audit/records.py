"""Records of stored envelopes, and ranges of sequences: what the ledger says of envelopes that are there and that are gone."""

from collections.abc import Iterable, Iterator
from hashlib import sha256
from operator import itemgetter
from typing import Any, Final

import msgspec

from aghbus.store.engine.commit.ledger import RECORD_COLUMNS, Record
from aghbus.store.engine.sql import Connection

Ranges = list[tuple[int, int]]
"""First and last sequence of each, ascending."""

SELECT_RECORDS: Final = f"SELECT {', '.join(f'e.{name}' for name in RECORD_COLUMNS)}, e.raw FROM envelopes AS e"  # noqa: S608 - constants
_Text = str | None
_RECORDS: Final = msgspec.json.Decoder(
    list[tuple[int, int, int, str, str, str, int, _Text, _Text, _Text, _Text, _Text, _Text, _Text, str]]
)


def record_of(row: tuple[Any, ...]) -> Record:
    """The record of a row of SELECT_RECORDS."""
    return (*row[:-1], sha256(row[-1]).hexdigest())


def records_of(db: Connection, seqs: Iterable[int]) -> list[Record]:
    """The records of the stored envelopes of these sequences, ascending."""
    wanted = msgspec.json.encode(list(seqs)).decode()
    sql = f"{SELECT_RECORDS} WHERE e.seq IN (SELECT value FROM json_each(?)) ORDER BY e.seq"  # noqa: S608 - constants
    return [record_of(row) for row in db.execute(sql, (wanted,))]


def records_between(db: Connection, first: int, last: int) -> list[Record]:
    """The records of the stored envelopes of sequence `first` to `last`, ascending."""
    rows = db.execute(f"{SELECT_RECORDS} WHERE e.seq BETWEEN ? AND ? ORDER BY e.seq", (first, last))
    return [record_of(row) for row in rows]


def decode_records(blob: bytes | None) -> list[Record]:
    """The records in column `removed`. Raises ValueError when this program did not write it."""
    return [] if blob is None else list(_RECORDS.decode(blob))


def encode_records(records: list[Record]) -> bytes:
    """The records as column `removed` has them."""
    return msgspec.json.encode(in_sequence(records))


def in_sequence(records: Iterable[Record]) -> list[Record]:
    """The records, ascending by their sequence."""
    return sorted(records, key=itemgetter(0))


def ranges_of(seqs: Iterable[int]) -> Ranges:
    """The ranges that hold exactly these sequences."""
    ranges: Ranges = []
    for seq in sorted(seqs):
        if ranges and ranges[-1][1] >= seq - 1:
            ranges[-1] = (ranges[-1][0], seq)
        else:
            ranges.append((seq, seq))
    return ranges


def encode_ranges(ranges: Ranges) -> str:
    """As text: `1-64 70-70`."""
    return " ".join(f"{first}-{last}" for first, last in ranges)


def decode_ranges(text: str) -> Ranges:
    """The ranges in `text`. Raises ValueError."""
    pairs = [part.split("-") for part in text.split()]
    return [(int(first), int(last)) for first, last in pairs]


def without(ranges: Ranges, others: Ranges) -> Iterator[tuple[int, int]]:
    """What is in `ranges` and in none of `others`, both in any order."""
    known, at = sorted(others), 0
    for first, last in sorted(ranges):
        start = first
        while at < len(known) and known[at][0] <= last:
            low, high = known[at]
            if low > start:
                yield start, low - 1
            start = max(start, high + 1)
            if high > last:
                break  # it may reach into the next of `ranges`
            at += 1
        if start <= last:
            yield start, last
