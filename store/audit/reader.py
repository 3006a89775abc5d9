"""Reads the chain from outside, of a daemon that runs or of one that does not, and exports it."""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from aghbus.store.audit.events import AuditEntry
from aghbus.store.audit.records import decode_records, in_sequence, records_between
from aghbus.store.engine.commit.chain import RECORD_COLUMNS, Head, Record, pruned, stored_head
from aghbus.store.engine.commit.watermark import CommitWatermark, read_watermark
from aghbus.store.engine.database import open_to_inspect
from aghbus.store.engine.sql import Connection, OperationalError
from aghbus.store.errors import StoreDamaged, StoreUnopenable

_SELECT_LINKS: Final = "SELECT n, at_ms, last_seq, content, entries, removed, hash FROM chain"
_PAGE_ROWS: Final = 1000  # rows of an export that are read at once: some hundred kilobytes
_DIRECTIONS: Final = {"in": "receive", "observed": "receive", "out": "send"}
_HEADERS: Final = ("msg_id", "sender", "recipient", "channel", "kind", "work_id", "trust", "digest")
_HEADER_COLUMNS: Final = f"{', '.join(_HEADERS[:-1])}, digest(raw)"
_SELECT_HEADERS: Final = f"SELECT {_HEADER_COLUMNS} FROM envelopes WHERE seq"  # noqa: S608 - constants
_SELECT_EVENTS: Final = (
    f"SELECT seq, received_ms, direction, outcome, reason, {_HEADER_COLUMNS} FROM envelopes WHERE seq"  # noqa: S608 - constants
)
_NOTHING: Final = dict.fromkeys(("n", "seq", "at_ms", "event", "outcome", "reason", *_HEADERS, "hash"))
_decode_entries: Final = msgspec.json.Decoder(list[AuditEntry]).decode
Warn = Callable[[str], None]


class Link(NamedTuple):
    """A link as stored."""

    n: int
    at_ms: int
    last_seq: int
    content: bytes | None
    entries: bytes | None
    removed: bytes | None
    hash: bytes

    @property
    def head(self) -> Head:
        """The link without its contents."""
        return Head(self.n, self.hash, self.last_seq)

    def events(self) -> list[AuditEntry] | None:
        """The entries; None when this program did not write them."""
        try:
            return [] if self.entries is None else _decode_entries(self.entries)
        except (msgspec.MsgspecError, UnicodeDecodeError):
            return None

    def removed_records(self) -> list[Record] | None:
        """The records of removed envelopes; None when this program did not write them."""
        try:
            return decode_records(self.removed)
        except (msgspec.MsgspecError, ValueError):
            return None


class AuditReader:
    """One consistent view of the chain in a store, until `export` ends it. Made by `open_audit_log`."""

    def __init__(self, db: Connection, watermark: CommitWatermark | None) -> None:
        """Use `open_audit_log`. `watermark` was read before `db` was opened."""
        self.db: Final = db
        self.watermark: Final = watermark
        self.newest: Final = stored_head(db)
        self.pruned: Final = pruned(db)

    def links(self) -> Iterator[Link]:
        """The links in order, one at a time."""
        for row in self.db.execute(f"{_SELECT_LINKS} ORDER BY n"):
            yield Link(*row)

    def export(self, after: int, warn: Warn, *, links: bool = False) -> Iterator[dict[str, Any]]:
        """The events of the links after link `after` to the newest of now, in order, for a consumer of any speed. With
        `links` the links themselves, in the form that their hashes cover.

        They are read in pages, each in a transaction of its own: else the WAL of a running daemon would grow meanwhile.
        Links that are pruned between two pages are missing; `warn` gets a sentence about them.
        """
        self.db.create_function("digest", 1, lambda raw: sha256(raw).hexdigest(), deterministic=True)
        at, rows_of = max(after, self.pruned.n), _as_link if links else _as_events
        while at < self.newest.n:
            rows: list[dict[str, Any]] = []
            for link, first in self._links_after(at):
                if link.n != at + 1:
                    missing = spell("link", at + 1, link.n - 1)
                    warn(f"{missing} missing: pruned meanwhile, unless `aghctl audit verify` says otherwise")
                rows += rows_of(self.db, link, first)
                at = link.n
                if len(rows) >= _PAGE_ROWS:
                    break
            else:
                at = self.newest.n
            self.db.execute("COMMIT")
            yield from rows
            self.db.execute("BEGIN")

    def _links_after(self, n: int) -> Iterator[tuple[Link, int]]:
        """The links after `n` to the newest, each with the first sequence that is its own."""
        row = self.db.execute("SELECT last_seq FROM chain WHERE n <= ? ORDER BY n DESC LIMIT 1", (n,)).fetchone()
        through = pruned(self.db).last_seq if row is None else row[0]
        for columns in self.db.execute(f"{_SELECT_LINKS} WHERE n > ? AND n <= ? ORDER BY n", (n, self.newest.n)):
            link = Link(*columns)
            yield link, through + 1
            through = link.last_seq


@contextmanager
def open_audit_log(path: Path) -> Iterator[AuditReader]:
    """The chain in the store at `path`, as of now. Raises StoreError when there is none, or none that can be read."""
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
    """`link 3 is`, `links 3 to 5 are`."""
    return f"{what} {first} is" if first == last else f"{what}s {first} to {last} are"


def _as_link(db: Connection, link: Link, first: int) -> list[dict[str, Any]]:
    records = in_sequence([*(link.removed_records() or []), *records_between(db, first, link.last_seq)])
    known = link.content is not None and len(records) == link.last_seq - first + 1
    return [
        {
            "n": link.n,
            "at_ms": link.at_ms,
            "last_seq": link.last_seq,
            "content": None if link.content is None else link.content.hex(),
            "records": records if known else None,
            "entries": None if link.entries is None else msgspec.json.decode(link.entries),
            "hash": link.hash.hex(),
        }
    ]


def _as_events(db: Connection, link: Link, first: int) -> list[dict[str, Any]]:
    rows = [
        _of_envelope(*row)
        for row in db.execute(f"{_SELECT_EVENTS} BETWEEN ? AND ? ORDER BY seq", (first, link.last_seq))
    ]
    rows += [_of_record(record) for record in link.removed_records() or []]
    if link.content is not None and not rows:
        gone = f"{link.last_seq - first + 1} envelopes, sequence {first} to {link.last_seq}"
        rows.append({"at_ms": link.at_ms, "event": "removed", "outcome": "removed", "reason": gone})
    entries = link.events()
    if entries is None:
        rows.append({"at_ms": link.at_ms, "event": "unreadable", "outcome": "unreadable"})
    for entry in entries or []:
        fields = msgspec.structs.asdict(entry)
        rows.append({**fields, **_headers(db, entry.seq)} if entry.seq is not None else fields)
    return [{**_NOTHING, **row, "n": link.n, "hash": link.hash.hex()} for row in rows]


def _of_envelope(*row: Any) -> dict[str, Any]:
    fields = dict(zip(("seq", "at_ms", "direction", "outcome", "reason", *_HEADERS), row, strict=True))
    named = _named(fields.pop("direction"), fields["outcome"])
    return {**fields, **named}


def _of_record(record: Record) -> dict[str, Any]:
    """What is known of an envelope that was removed while others of its link are still stored."""
    fields = dict(zip((*RECORD_COLUMNS, "digest"), record, strict=False))
    kept = {name: fields[name] for name in ("seq", "reason", "kind", "trust", "digest")}
    return {**kept, "at_ms": fields["received_ms"], **_named(fields["direction"], fields["outcome"])}


def _named(direction: str, outcome: str | None) -> dict[str, str]:
    event = "reject" if outcome == "rejected" else _DIRECTIONS.get(direction, direction)
    return {"event": event, "outcome": outcome or "kept"}


def _headers(db: Connection, seq: int) -> dict[str, Any]:
    row = db.execute(f"{_SELECT_HEADERS} = ?", (seq,)).fetchone()
    return {} if row is None else dict(zip(_HEADERS, row, strict=True))
