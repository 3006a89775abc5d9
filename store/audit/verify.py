"""Reading the audit log from outside: whether it is whole, and its rows for export. Nothing here trusts a stored hash.

Works on the file of a daemon that runs, and of one that does not. What a whole log proves and what it does not: docs/audit.md.
"""

import sqlite3
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Final, NamedTuple

import msgspec

from aghbus.store.audit.events import PRUNED, ROWS_MISSING, Numbered, link, noted_head, noted_pruning, parse_line
from aghbus.store.engine.audit_marker import NOTHING, AuditHead, read_audit_mark
from aghbus.store.engine.database import open_to_inspect
from aghbus.store.errors import StoreDamaged, StoreUnopenable

PROGRESS_ROWS: Final = 100_000  # ours, rows between two signs of life
_PIECE: Final = 1000  # ours, rows of an export that are read at once: some hundred kilobytes
_SHOWN: Final = 20  # findings that are told one by one
Progress = Callable[[int], None]


class Row(NamedTuple):
    """A row as stored; `says` is what its line says, None when it is no line of ours."""

    n: int
    line: bytes
    hash: bytes
    says: Numbered | None


class Standing(NamedTuple):
    """What the store notes about the log: its newest row, and the newest that retention removed."""

    last: AuditHead
    pruned: AuditHead


class Verdict(msgspec.Struct, kw_only=True):
    """What a check found. `rows` are those there, `findings` sentences about what is wrong, the first of them; `found` counts
    all. `notes` say what could not be checked."""

    rows: int = 0
    last: str = str(NOTHING)
    pruned_through: int = 0
    found: int = 0
    findings: list[str] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)

    @property
    def whole(self) -> bool:
        """Whether nothing is wrong."""
        return self.found == 0

    def add(self, sentence: str) -> None:
        """One finding."""
        self.found += 1
        if len(self.findings) < _SHOWN:
            self.findings.append(sentence)


class AuditReader:
    """One consistent view of the log in a store, until `export` gives it up. Made by `reading`."""

    def __init__(self, db: sqlite3.Connection, mark: AuditHead | None) -> None:
        """Use `reading`."""
        self._db = db
        self._mark = mark

    def standing(self) -> Standing:
        """What the store notes about the log."""
        return Standing(noted_head(self._db), noted_pruning(self._db))

    def rows(self) -> Iterator[Row]:
        """The rows in order, one at a time."""
        for n, line, stored in self._db.execute("SELECT n, line, hash FROM audit ORDER BY n"):
            yield Row(n, line, stored, _parse(line))

    def export(self, after: int, tell: Callable[[str], None]) -> Iterator[Row]:
        """The rows after row `after` to the newest of now, in order, for somebody who takes them as slowly as he likes.

        No view is held meanwhile, since the WAL of a running daemon would grow as long: they are read in pieces. What is pruned
        between two of these is missing; `tell` gets a sentence about it.
        """
        last, pruned = self.standing()
        self._db.execute("COMMIT")
        at = max(after, pruned.n)
        while at < last.n:
            piece = self._db.execute(
                "SELECT n, line, hash FROM audit WHERE n > ? AND n <= ? ORDER BY n LIMIT ?", (at, last.n, _PIECE)
            ).fetchall()
            first = piece[0][0] if piece else last.n + 1
            if first != at + 1:
                tell(
                    f"{_span(at + 1, first - 1)} missing: pruned meanwhile, unless `aghctl audit verify` says otherwise"
                )
            for n, line, stored in piece:
                yield Row(n, line, stored, _parse(line))
            at = piece[-1][0] if piece else last.n

    def verify(self, kept: AuditHead | None, progress: Progress) -> Verdict:
        """Every row against the one before it, and the ends of the log against what is noted of them.

        `kept` is a head that the operator noted elsewhere. `progress` is told how many rows are done, now and then.
        """
        walk = _Walk(self.standing(), self._mark, kept)
        for row in self.rows():
            walk.step(row)
            if walk.verdict.rows % PROGRESS_ROWS == 0:
                progress(walk.verdict.rows)
        return walk.end()


@contextmanager
def reading(path: Path) -> Iterator[AuditReader]:
    """The log in the store at `path`, as of now. Raises StoreError when there is none, or none that can be read."""
    mark = read_audit_mark(
        path
    )  # before the store: the mark of a running daemon is never ahead of what is read after it
    db = open_to_inspect(path)
    try:
        db.execute("BEGIN")
        try:
            db.execute("SELECT 1 FROM audit").fetchone()
            noted_head(db), noted_pruning(db)
        except sqlite3.OperationalError:
            raise StoreUnopenable(path, "has no audit log yet", hint="start the daemon once: it makes one") from None
        except ValueError:
            raise StoreDamaged(path, "does not note both ends of its audit log", hint="somebody wrote in it") from None
        yield AuditReader(db, mark)
    finally:
        db.close()


class _Walk:
    """A check on its way through the rows."""

    def __init__(self, standing: Standing, mark: AuditHead | None, kept: AuditHead | None) -> None:
        self.verdict = Verdict(pruned_through=standing.pruned.n)
        self._standing = standing
        self._mark = mark
        self._kept = kept
        self._at = standing.pruned
        self._kept_seen = kept == standing.pruned
        self._last_pruning: str | None = None

    def step(self, row: Row) -> None:
        self.verdict.rows += 1
        if row.n != self._at.n + 1:
            self.verdict.add(f"{_span(self._at.n + 1, row.n - 1)} missing, and row {row.n} cannot be compared")
        elif row.says is None or row.says.n != row.n or link(self._at.hash, row.line) != row.hash:
            self.verdict.add(
                f"row {row.n} does not follow from its contents and row {self._at.n}: one was changed or moved"
            )
        self._note(row)
        self._at = AuditHead(row.n, row.hash)

    def _note(self, row: Row) -> None:
        says = row.says
        if says is not None and says.event == "policy" and says.outcome == PRUNED:
            self._last_pruning = says.reason
        if says is not None and says.event == "policy" and says.outcome == ROWS_MISSING:
            self.verdict.add(f"row {row.n} tells of a start that missed something: {says.reason}")
        self._kept_seen = self._kept_seen or self._kept == (row.n, row.hash)
        if self._mark is not None and row.n == self._mark.n and row.hash != self._mark.hash:
            self.verdict.add(f"row {row.n} is not the one that the mark beside the store names")

    def end(self) -> Verdict:
        """What is noted of both ends, and by the operator."""
        verdict, last, pruned = self.verdict, self._standing.last, self._standing.pruned
        verdict.last = str(self._at)
        if self._at.n < last.n:
            verdict.add(f"{_span(self._at.n + 1, last.n)} missing: the newest that the store notes is {last.n}")
        elif self._at != last:
            verdict.add(f"the store notes row {last.n} as the newest, the log ends with {self._at.n} or another hash")
        expected = str(pruned) if pruned.n else None
        if expected != self._last_pruning:
            verdict.add(f"the log begins after row {pruned.n}, but its own last row about pruning does not say so")
        if self._mark is not None and self._mark.n > self._at.n:
            verdict.add(
                f"{_span(self._at.n + 1, self._mark.n)} missing: the mark beside the store names {self._mark.n}"
            )
        if self._mark is None and self._at.n:
            verdict.notes.append("no mark beside the store: newest rows that were removed together are not noticed")
        self._judge_kept()
        return verdict

    def _judge_kept(self) -> None:
        kept = self._kept
        if kept is None or self._kept_seen:
            return
        if kept.n < self._standing.pruned.n:
            self.verdict.add(
                f"row {kept.n}, whose hash you kept, was pruned since: nothing to compare; keep newer heads"
            )
        else:
            self.verdict.add(f"row {kept.n} with the hash that you kept is not in the log: it was cut or rewritten")


def _parse(line: bytes) -> Numbered | None:
    try:
        return parse_line(line)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return None


def _span(first: int, last: int) -> str:
    return f"row {first} is" if first == last else f"rows {first} to {last} are"


def as_object(row: Row) -> dict[str, Any]:
    """The row for export: its fields by name and its hash in hexadecimal; of a line that is none of ours, its bytes as text."""
    said = (
        {"line": row.line.decode(errors="backslashreplace")} if row.says is None else msgspec.structs.asdict(row.says)
    )
    return {**said, "n": row.n, "hash": row.hash.hex()}
