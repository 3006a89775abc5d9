"""Reads the ledger from outside, of a daemon that runs or of one that does not, and exports it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from aghbus.store.audit.events import AuditEvent
from aghbus.store.audit.records import decode_records, in_sequence, records_between
from aghbus.store.engine.commit.ledger import RECORD_COLUMNS, Head, Record, pruned, stored_head
from aghbus.store.engine.commit.watermark import CommitWatermark, read_watermark
from aghbus.store.engine.database import open_to_inspect
from aghbus.store.engine.sql import Connection, OperationalError
from aghbus.store.errors import StoreDamaged, StoreUnopenable

_SELECT_ENTRIES: Final = "SELECT n, at_ms, last_seq, content, events, removed, hash FROM ledger"
_PAGE_ROWS: Final = 1000  # rows of an export that are read at once: some hundred kilobytes
_DIRECTIONS: Final = {"in": "receive", "observed": "receive", "out": "send"}
_HEADERS: Final = ("msg_id", "sender", "recipient", "channel", "kind", "work_id", "trust", "digest")
_HEADER_COLUMNS: Final = f"{', '.join(_HEADERS[:-1])}, digest(raw)"
_SELECT_HEADERS: Final = f"SELECT {_HEADER_COLUMNS} FROM envelopes WHERE seq"  # noqa: S608 - constants
_SELECT_EVENTS: Final = (
    f"SELECT seq, received_ms, direction, outcome, reason, {_HEADER_COLUMNS} FROM envelopes WHERE seq"  # noqa: S608 - constants
)
_NOTHING: Final = dict.fromkeys(("n", "seq", "at_ms", "event", "outcome", "reason", *_HEADERS, "hash"))
_decode_events: Final = msgspec.json.Decoder(list[AuditEvent]).decode
Warn = Callable[[str], None]


class LedgerEntry(NamedTuple):
    """An entry as stored."""

    n: int
    at_ms: int
    last_seq: int
    content: bytes | None
    events: bytes | None
    removed: bytes | None
    hash: bytes

    @property
    def head(self) -> Head:
        """The entry without its contents."""
        return Head(self.n, self.hash, self.last_seq)

    def audit_events(self) -> list[AuditEvent] | None:
        """The events; None when this program did not write them."""
        try:
            return [] if self.events is None else _decode_events(self.events)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def removed_records(self) -> list[Record] | None:
        """The records of removed envelopes; None when this program did not write them."""
        try:
            return decode_records(self.removed)
        except (msgspec.MsgspecError, ValueError):
            return None


class AuditReader:
    """One consistent view of the ledger in a store, until `export` ends it. Made by `open_audit_log`."""

    def __init__(self, db: Connection, watermark: CommitWatermark | None) -> None:
        """Use `open_audit_log`. `watermark` was read before `db` was opened."""
        self.db: Final = db
        self.watermark: Final = watermark
        self.newest: Final = stored_head(db)
        self.pruned: Final = pruned(db)

    def entries(self) -> Iterator[LedgerEntry]:
        """The entries in order, one at a time."""
        for row in self.db.execute(f"{_SELECT_ENTRIES} ORDER BY n"):
            yield LedgerEntry(*row)

    def export(self, after: int, warn: Warn, *, entries: bool = False) -> Iterator[dict[str, Any]]:
        """The events of the entries after entry `after` to the newest of now, in order, for a consumer of any speed. With
        `entries` the entries themselves, in the form that their hashes cover.

        They are read in pages, each in a transaction of its own: else the WAL of a running daemon would grow meanwhile.
        Entries that are pruned between two pages are missing; `warn` gets a sentence about them.
        """
        self.db.create_function("digest", 1, lambda raw: sha256(raw).hexdigest(), deterministic=True)
        at, rows_of = max(after, self.pruned.n), _as_entry if entries else _as_events
        while at < self.newest.n:
            rows: list[dict[str, Any]] = []
            for entry, first in self._entries_after(at):
                if entry.n != at + 1:
                    missing = spell("entry", at + 1, entry.n - 1)
                    warn(f"{missing} missing: pruned meanwhile, unless `aghctl audit verify` says otherwise")
                rows += rows_of(self.db, entry, first)
                at = entry.n
                if len(rows) >= _PAGE_ROWS:
                    break
            else:
                at = self.newest.n
            self.db.execute("COMMIT")
            yield from rows
            self.db.execute("BEGIN")

    def _entries_after(self, n: int) -> Iterator[tuple[LedgerEntry, int]]:
        """The entries after `n` to the newest, each with the first sequence that is its own."""
        row = self.db.execute("SELECT last_seq FROM ledger WHERE n <= ? ORDER BY n DESC LIMIT 1", (n,)).fetchone()
        through = pruned(self.db).last_seq if row is None else row[0]
        for columns in self.db.execute(f"{_SELECT_ENTRIES} WHERE n > ? AND n <= ? ORDER BY n", (n, self.newest.n)):
            entry = LedgerEntry(*columns)
            yield entry, through + 1
            through = entry.last_seq


@contextmanager
def open_audit_log(path: Path) -> Iterator[AuditReader]:
    """The ledger in the store at `path`, as of now. Raises StoreError when there is none, or none that can be read."""
    watermark = read_watermark(path)  # first: that of a running daemon is never newer than the store read after it
    db = open_to_inspect(path)
    try:
        db.execute("BEGIN")
        try:
            reader = AuditReader(db, watermark)
        except OperationalError:
            raise StoreUnopenable(path, "has no audit log yet", hint="start the daemon once: it makes one") from None
        except ValueError:
            raise StoreDamaged(
                path, "does not record where its audit log begins", hint="another program has written in it"
            ) from None
        yield reader
    finally:
        db.close()


def spell(what: str, first: int, last: int) -> str:
    """`entry 3 is`, `entries 3 to 5 are`."""
    if first == last:
        return f"{what} {first} is"
    return f"{what.removesuffix('y') + 'ies' if what.endswith('y') else what + 's'} {first} to {last} are"


def _as_entry(db: Connection, entry: LedgerEntry, first: int) -> list[dict[str, Any]]:
    records = in_sequence([*(entry.removed_records() or []), *records_between(db, first, entry.last_seq)])
    known = entry.content is not None and len(records) == entry.last_seq - first + 1
    return [
        {
            "n": entry.n,
            "at_ms": entry.at_ms,
            "last_seq": entry.last_seq,
            "content": None if entry.content is None else entry.content.hex(),
            "records": records if known else None,
            "events": None if entry.events is None else msgspec.json.decode(entry.events),
            "hash": entry.hash.hex(),
        }
    ]


def _as_events(db: Connection, entry: LedgerEntry, first: int) -> list[dict[str, Any]]:
    rows = [
        _of_envelope(*row)
        for row in db.execute(f"{_SELECT_EVENTS} BETWEEN ? AND ? ORDER BY seq", (first, entry.last_seq))
    ]
    rows += [_of_record(record) for record in entry.removed_records() or []]
    if entry.content is not None and not rows:
        gone = f"{entry.last_seq - first + 1} envelopes, sequence {first} to {entry.last_seq}"
        rows.append({"at_ms": entry.at_ms, "event": "removed", "outcome": "removed", "reason": gone})
    events = entry.audit_events()
    if events is None:
        rows.append({"at_ms": entry.at_ms, "event": "unreadable", "outcome": "unreadable"})
    for event in events or []:
        fields = msgspec.structs.asdict(event)
        rows.append({**fields, **_headers(db, event.seq)} if event.seq is not None else fields)
    return [{**_NOTHING, **row, "n": entry.n, "hash": entry.hash.hex()} for row in rows]


def _of_envelope(*row: Any) -> dict[str, Any]:
    fields = dict(zip(("seq", "at_ms", "direction", "outcome", "reason", *_HEADERS), row, strict=True))
    named = _named(fields.pop("direction"), fields["outcome"])
    return {**fields, **named}


def _of_record(record: Record) -> dict[str, Any]:
    """What is known of an envelope that was removed while others of its entry are still stored."""
    fields = dict(zip((*RECORD_COLUMNS, "digest"), record, strict=False))
    kept = {name: fields[name] for name in ("seq", "reason", "kind", "trust", "digest")}
    return {**kept, "at_ms": fields["received_ms"], **_named(fields["direction"], fields["outcome"])}


def _named(direction: str, outcome: str | None) -> dict[str, str]:
    event = "reject" if outcome == "rejected" else _DIRECTIONS.get(direction, direction)
    return {"event": event, "outcome": outcome or "kept"}


def _headers(db: Connection, seq: int) -> dict[str, Any]:
    row = db.execute(f"{_SELECT_HEADERS} = ?", (seq,)).fetchone()
    return {} if row is None else dict(zip(_HEADERS, row, strict=True))
