"""Reads the audit log from outside: verifies it, and exports its rows. Nothing here trusts a stored hash.

Works on the file of a daemon that runs, and of one that does not. docs/audit.md says what a verified log proves.
"""

from collections.abc import Callable, Iterator
from contextlib import contextmanager
from hashlib import sha256
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from aghbus.store.audit.events import PRUNED, ROWS_MISSING
from aghbus.store.engine.audit_chain import (
    EMPTY,
    AuditHead,
    AuditLine,
    link,
    parse_line,
    read_head_file,
    recorded_head,
    recorded_pruning,
)
from aghbus.store.engine.database import open_to_inspect
from aghbus.store.engine.sql import Connection, OperationalError
from aghbus.store.errors import StoreDamaged, StoreUnopenable

PROGRESS_ROWS: Final = 100_000  # rows between two calls of `progress`
_STORING_EVENTS: Final = frozenset({"send", "receive", "reject"})
_NOT_STORED: Final = frozenset({"refused", "again", "expired", "dead"})  # outcomes that say nothing of the stored bytes
_PAGE_ROWS: Final = 1000  # rows of an export that are read at once: some hundred kilobytes
_MAX_FINDINGS: Final = 20  # sentences in a report
Progress = Callable[[int], None]


class AuditRow(NamedTuple):
    """A row as stored; `parsed` is its line decoded, None when this program did not write it."""

    n: int
    line: bytes
    hash: bytes
    parsed: AuditLine | None


class RecordedEnds(NamedTuple):
    """The ends of the log as table `meta` records them: the newest row, and the newest that retention removed."""

    newest: AuditHead
    pruned: AuditHead


class AuditReport(msgspec.Struct, kw_only=True):
    """The result of a verification. `rows` counts the rows, `found` the defects; `findings` are sentences about the
    first of them. `notes` say what could not be checked."""

    rows: int = 0
    last: str = str(EMPTY)
    pruned_through: int = 0
    found: int = 0
    findings: list[str] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)

    @property
    def intact(self) -> bool:
        """Whether no defect was found."""
        return self.found == 0

    def add(self, sentence: str) -> None:
        """Counts a defect."""
        self.found += 1
        if len(self.findings) < _MAX_FINDINGS:
            self.findings.append(sentence)


class AuditReader:
    """One consistent view of the log in a store, until `export` ends it. Made by `open_audit_log`."""

    def __init__(self, db: Connection, filed: AuditHead | None) -> None:
        """Use `open_audit_log`. `filed` is the row that the sidecar file names."""
        self._db = db
        self._filed = filed

    def recorded_ends(self) -> RecordedEnds:
        """The ends of the log, as recorded in the store."""
        return RecordedEnds(recorded_head(self._db), recorded_pruning(self._db))

    def rows(self) -> Iterator[AuditRow]:
        """The rows in order, one at a time."""
        for n, line, stored in self._db.execute("SELECT n, line, hash FROM audit ORDER BY n"):
            yield AuditRow(n, line, stored, _parse(line))

    def export(self, after: int, warn: Callable[[str], None]) -> Iterator[AuditRow]:
        """The rows after row `after` to the newest of now, in order, for a consumer of any speed.

        They are read in pages, without a transaction: else the WAL of a running daemon would grow meanwhile. Rows
        that are pruned between two pages are missing; `warn` gets a sentence about them.
        """
        newest, pruned = self.recorded_ends()
        self._db.execute("COMMIT")
        at = max(after, pruned.n)
        while at < newest.n:
            page = self._db.execute(
                "SELECT n, line, hash FROM audit WHERE n > ? AND n <= ? ORDER BY n LIMIT ?", (at, newest.n, _PAGE_ROWS)
            ).fetchall()
            first = page[0][0] if page else newest.n + 1
            if first != at + 1:
                warn(
                    f"{_span(at + 1, first - 1)} missing: pruned meanwhile, unless `aghctl audit verify` says otherwise"
                )
            for n, line, stored in page:
                yield AuditRow(n, line, stored, _parse(line))
            at = page[-1][0] if page else newest.n

    def verify(self, kept: AuditHead | None, progress: Progress) -> AuditReport:
        """Compares every row with the one before it, and the first and last rows of the log with the records about them.

        `kept` is a head that the operator keeps elsewhere. `progress` is called with the number of verified rows
        now and then.
        """
        verification = _Verification(self.recorded_ends(), self._filed, kept)
        for row in self.rows():
            verification.check_row(row)
            if verification.report.rows % PROGRESS_ROWS == 0:
                progress(verification.report.rows)
        return verification.finish()


@contextmanager
def open_audit_log(path: Path) -> Iterator[AuditReader]:
    """The log in the store at `path`, as of now. Raises StoreError when there is none, or none that can be read."""
    filed = read_head_file(
        path
    )  # before the store: that of a running daemon is never newer than the store read after it
    db = open_to_inspect(path)
    try:
        db.execute("BEGIN")
        try:
            db.execute("SELECT 1 FROM audit").fetchone()
            recorded_head(db), recorded_pruning(db)
        except OperationalError:
            raise StoreUnopenable(path, "has no audit log yet", hint="start the daemon once: it makes one") from None
        except ValueError:
            raise StoreDamaged(
                path, "does not record both ends of its audit log", hint="another program has written in it"
            ) from None
        yield AuditReader(db, filed)
    finally:
        db.close()


class _Verification:
    """Goes through the rows in order."""

    def __init__(self, recorded: RecordedEnds, filed: AuditHead | None, kept: AuditHead | None) -> None:
        self.report = AuditReport(pruned_through=recorded.pruned.n)
        self._recorded = recorded
        self._filed = filed
        self._kept = kept
        self._at = recorded.pruned
        self._kept_seen = kept == recorded.pruned
        self._last_pruning: str | None = None

    def check_row(self, row: AuditRow) -> None:
        self.report.rows += 1
        if row.n != self._at.n + 1:
            self.report.add(f"{_span(self._at.n + 1, row.n - 1)} missing, and row {row.n} cannot be compared")
        elif row.parsed is None or row.parsed.n != row.n or link(self._at.hash, row.line) != row.hash:
            self.report.add(
                f"row {row.n} does not follow from its contents and row {self._at.n}: one was changed or moved"
            )
        self._note_policy(row)
        self._at = AuditHead(row.n, row.hash)

    def _note_policy(self, row: AuditRow) -> None:
        line = row.parsed
        if line is not None and line.event == "policy" and line.outcome == PRUNED:
            self._last_pruning = line.reason
        if line is not None and line.event == "policy" and line.outcome == ROWS_MISSING:
            self.report.add(f"row {row.n} says that rows were missing at a start: {line.reason}")
        self._kept_seen = self._kept_seen or self._kept == (row.n, row.hash)
        if self._filed is not None and row.n == self._filed.n and row.hash != self._filed.hash:
            self.report.add(f"row {row.n} is not the one that the sidecar file names")

    def finish(self) -> AuditReport:
        """Compares both ends, and the head that the operator kept."""
        report, newest, pruned = self.report, self._recorded.newest, self._recorded.pruned
        report.last = str(self._at)
        if self._at.n < newest.n:
            report.add(f"{_span(self._at.n + 1, newest.n)} missing: the newest that the store records is {newest.n}")
        elif self._at != newest:
            report.add(
                f"the store records row {newest.n} as the newest, but the log ends with {self._at.n} or another hash"
            )
        expected = str(pruned) if pruned.n else None
        if expected != self._last_pruning:
            report.add(f"the log begins after row {pruned.n}, but its own last row about pruning does not say so")
        if self._filed is not None and self._filed.n > self._at.n:
            report.add(f"{_span(self._at.n + 1, self._filed.n)} missing: the sidecar file names {self._filed.n}")
        if self._filed is None and self._at.n:
            report.notes.append("no sidecar file: a removal of the newest rows would not be detected")
        self._check_kept()
        return report

    def _check_kept(self) -> None:
        kept = self._kept
        if kept is None or self._kept_seen:
            return
        if kept.n < self._recorded.pruned.n:
            self.report.add(
                f"row {kept.n}, whose hash you kept, was pruned since: there is nothing to compare; keep newer heads"
            )
        else:
            self.report.add(f"row {kept.n} with the hash that you kept is not in the log: it was cut or rewritten")


def _parse(line: bytes) -> AuditLine | None:
    try:
        return parse_line(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _span(first: int, last: int) -> str:
    return f"row {first} is" if first == last else f"rows {first} to {last} are"


def as_object(row: AuditRow) -> dict[str, Any]:
    """The row for export: its fields by name and its hash in hexadecimal; of a line that this program did not write,
    its bytes as text."""
    line = row.parsed
    fields = {"line": row.line.decode(errors="backslashreplace")} if line is None else msgspec.structs.asdict(line)
    return {**fields, "n": row.n, "hash": row.hash.hex()}


def unlike_audited(db: Connection) -> set[int]:
    """Sequences of stored envelopes whose bytes have another digest than the audit log recorded when they were stored.

    Envelopes without such a row (the log was off, or pruned) are not compared.
    """
    same: set[int] = set()
    unlike: set[int] = set()
    for (line,) in db.execute("SELECT line FROM audit ORDER BY n"):
        entry = _parse(line)
        if entry is None or entry.event not in _STORING_EVENTS or entry.outcome in _NOT_STORED:
            continue
        for seq, raw in db.execute(
            "SELECT seq, raw FROM envelopes WHERE msg_id = ? AND sender = ?", (entry.msg_id, entry.sender)
        ):
            (same if sha256(raw).hexdigest() == entry.digest else unlike).add(seq)
    return unlike - same
