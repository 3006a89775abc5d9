"""Verifies the ledger of a store, and the stored envelopes against it. Nothing here trusts a stored hash.

docs/audit.md says what a verified ledger proves.
"""

from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from aghbus.protocol.agh.decoding import decoder
from aghbus.store.audit.events import PRUNED, REMOVED, AuditEvent
from aghbus.store.audit.reader import AuditReader, LedgerEntry, spell
from aghbus.store.audit.records import SELECT_RECORDS, Ranges, decode_ranges, in_sequence, ranges_of, record_of, without
from aghbus.store.engine.backup.epoch import RESTORED
from aghbus.store.engine.commit.ledger import (
    COMMITS_MISSING,
    EMPTY,
    RECORD_COLUMNS,
    KeptHead,
    Record,
    as_pruned,
    content_of,
    entry_hash,
)
from aghbus.store.engine.sql import Connection, checksum_of

PROGRESS_ENTRIES: Final = 100_000  # entries between two calls of `progress`
_MAX_FINDINGS: Final = 20  # sentences in a report
# Columns that an envelope's bytes repeat, with the members that they have there.
_MEMBERS: Final = {
    "workspace_id": "workspace_id",
    "channel": "channel",
    "kind": "kind",
    "msg_id": "id",
    "sender": "from",
    "recipient": "to",
    "surface": "surface",
    "work_id": "work_id",
}
# What an event says of the trust rule that it names: whether it is in force from then on.
_RULE_EVENTS: Final = {
    "trust.added": True,
    "trust.first_use": True,
    "trust.addressed": True,
    "trust.removed": False,
    "trust.unused": False,
}
_SELECT: Final = SELECT_RECORDS.replace(
    "e.raw FROM", f"{', '.join(f'e.{c}' for c in (*_MEMBERS, 'container'))}, e.checksum, e.raw FROM"
)
_decode: Final = decoder(dict[str, Any])
Progress = Callable[[int], None]


class AuditReport(msgspec.Struct, kw_only=True):
    """The result of a verification. `commits` counts the entries, `envelopes` those that are stored, `found` the defects;
    `findings` are sentences about the first of them. `lost` are sentences of the ledger itself about commits that were lost
    earlier. `notes` say what could not be checked."""

    commits: int = 0
    envelopes: int = 0
    last: str = str(EMPTY)
    pruned_through: int = 0
    found: int = 0
    findings: list[str] = msgspec.field(default_factory=list)
    lost: list[str] = msgspec.field(default_factory=list)
    notes: list[str] = msgspec.field(default_factory=list)

    @property
    def intact(self) -> bool:
        """Whether no defect was found and no commit was lost."""
        return self.found == 0 and not self.lost

    def add(self, sentence: str) -> None:
        """Counts a defect."""
        self.found += 1
        if len(self.findings) < _MAX_FINDINGS:
            self.findings.append(sentence)


def verify(reader: AuditReader, kept: KeptHead | None, progress: Progress) -> AuditReport:
    """Compares every entry with the one before it, every stored envelope with its entry, and the ends of the ledger with the
    records about them.

    `kept` is a head that the operator keeps elsewhere. `progress` is called with the number of verified entries now and then.
    """
    verification = _Verification(reader, kept)
    for entry in reader.entries():
        verification.check_entry(entry)
        if verification.report.commits % PROGRESS_ENTRIES == 0:
            progress(verification.report.commits)
    return verification.finish()


class _Envelopes:
    """The stored envelopes in sequence; takes those of one entry after another."""

    def __init__(self, db: Connection, after: int, report: AuditReport) -> None:
        self._rows = iter(db.execute(f"{_SELECT} WHERE e.seq > ? ORDER BY e.seq", (after,)))
        self._next: tuple[Any, ...] | None = next(self._rows, None)
        self._report = report

    def take(self, through: int | None) -> list[Record]:
        """The records of those up to `through`, or of all that are left."""
        return list(self._take(through))

    def _take(self, through: int | None) -> Iterator[Record]:
        while self._next is not None and (through is None or self._next[0] <= through):
            row, self._next = self._next, next(self._rows, None)
            self._report.envelopes += 1
            size = len(RECORD_COLUMNS)
            *columns, container, checksum, raw = row[size:]
            if not _matches(columns, container, raw) or checksum not in (None, checksum_of(raw)):
                self._report.add(f"envelope {row[0]}: its columns are not those of its bytes")
            yield record_of((*row[:size], raw))


def _matches(columns: list[Any], container: str | None, raw: bytes) -> bool:
    try:
        document = _decode(raw)
    except (msgspec.MsgspecError, UnicodeDecodeError):
        return False
    place = {"thread": "thread_id", "direct": "direct_id"}.get(str(document.get("surface")))
    expected = [document.get(member) for member in _MEMBERS.values()]
    return columns == expected and container == (document.get(place) if place else None)


class _Verification:
    """Goes through the entries in order."""

    def __init__(self, reader: AuditReader, kept: KeptHead | None) -> None:
        self.report = AuditReport(pruned_through=reader.pruned.n)
        self._reader = reader
        self._kept = kept
        self._at = reader.pruned
        self._kept_seen = kept == reader.pruned[:2]
        self._last_pruning: str | None = None
        self._envelopes = _Envelopes(reader.db, reader.pruned.last_seq, self.report)
        self._gone: Ranges = []  # sequences whose envelopes are not stored
        self._rules: dict[str, bool] = {}  # trust rules that the ledger names, and whether they are in force
        self._removed: Ranges = []  # sequences that retention removed, as the ledger says

    def check_entry(self, entry: LedgerEntry) -> None:
        self.report.commits += 1
        events = entry.audit_events()
        lost = [event for event in events or () if _is_policy(event, COMMITS_MISSING)]
        self.report.lost += [f"entry {entry.n} says that commits were missing at a start: {one.reason}" for one in lost]
        restores = [event.reason for event in events or () if _is_policy(event, RESTORED)]
        self.report.notes += [f"entry {entry.n}: the store was restored {how}" for how in restores]
        if entry.n != self._at.n + 1 and not lost:
            self.report.add(f"{spell('entry', self._at.n + 1, entry.n - 1)} missing")
        contents = (entry.n, entry.at_ms, entry.last_seq, entry.content, entry.events)
        if events is None or entry_hash(self._at.hash, *contents) != entry.hash:
            self.report.add(
                f"entry {entry.n} does not follow from its contents and entry {self._at.n}: one was changed or moved"
            )
        for event in events or ():
            self._note_policy(event)
        self._check_envelopes(entry)
        self._kept_seen = self._kept_seen or self._kept == (entry.n, entry.hash)
        self._at = entry.head

    def _note_policy(self, event: AuditEvent) -> None:
        if _is_policy(event, PRUNED):
            self._last_pruning = event.reason
        elif _is_policy(event, REMOVED):
            try:
                self._removed += decode_ranges(event.reason or "")
            except ValueError:
                self.report.add(f"an event about removed envelopes cannot be read: {event.reason}")
        elif event.event == "policy" and event.outcome in _RULE_EVENTS:
            # a pin of first use is spelled `pin NICKNAME=KEY`, a rule of the operator as the columns of its row
            self._rules[(event.reason or "").replace("=", " ")] = _RULE_EVENTS[event.outcome]

    def _check_envelopes(self, entry: LedgerEntry) -> None:
        stored, removed = self._envelopes.take(entry.last_seq), entry.removed_records()
        first, last, of = self._at.last_seq + 1, entry.last_seq, f"of entry {entry.n}"
        if entry.removed is not None and not (stored and removed):
            self.report.add(f"entry {entry.n} has records of removed envelopes without need, or that cannot be read")
        if entry.content is None:
            if stored:
                self.report.add(f"{_names(stored)} {of}: the ledger does not name them")
            return
        if not stored:
            self._gone.append((first, last))
            return
        records = in_sequence([*stored, *(removed or [])])
        self._gone += ranges_of(record[0] for record in removed or [])
        missing = list(without([(first, last)], ranges_of(record[0] for record in records)))
        if missing:
            self.report.add(f"{spell('envelope', *missing[0])} missing {of}, which has others")
        elif removed is None or content_of(records) != entry.content:
            self.report.add(f"{_names(stored)} {of}: not as stored; at least one was changed, added or removed")

    def finish(self) -> AuditReport:
        """Checks the ends, and whether retention removed what is gone."""
        report = self.report
        report.last = str(self._at)
        left = self._envelopes.take(None)
        if left:
            report.add(f"{_names(left)}: stored after the end of the ledger, which is entry {self._at.n}")
        for first, last in without(self._gone, self._removed):
            report.add(
                f"{spell('envelope', first, last)} missing, and the ledger does not say that retention removed any"
            )
        if self._last_pruning != (as_pruned(self._reader.pruned) if self._reader.pruned.n else None):
            report.add(
                f"the ledger begins after entry {self._reader.pruned.n}, but its own last event about pruning does not say so"
            )
        self._check_rules()
        self._check_watermark()
        self._check_kept()
        return report

    def _check_rules(self) -> None:
        """Compares the trust rules with the events about them. Those of pruned entries are unknown."""
        rows = self._reader.db.execute("SELECT rule, subject, who FROM trust_rules")
        stored = {" ".join(filter(None, row)) for row in rows}
        unknown = {rule for rule in stored if rule not in self._rules} if self._reader.pruned.n else set()
        in_force = {rule for rule, is_made in self._rules.items() if is_made}
        for rule in sorted(stored - in_force - unknown):
            self.report.add(f"trust rule {rule}: stored, but by the ledger it was not made, or removed")
        for rule in sorted(in_force - stored):
            self.report.add(f"trust rule {rule}: made by the ledger, but not stored")
        if unknown:
            self.report.notes.append(
                f"{len(unknown)} trust rules are not in the ledger: they may be older than its start"
            )

    def _check_watermark(self) -> None:
        watermark = self._reader.watermark
        if watermark is None:
            if self._at.n:
                self.report.notes.append(
                    "no readable .mark file: a removal of the newest entries would not be detected"
                )
            return
        named = watermark.head
        if named.n > self._at.n:
            self.report.add(f"{spell('entry', self._at.n + 1, named.n)} missing: the .mark file names {named.n}")
            return
        row = self._reader.db.execute("SELECT hash FROM ledger WHERE n = ?", (named.n,)).fetchone()
        if row is not None and row[0] != named.hash:
            self.report.add(f"entry {named.n} is not the one that the .mark file names")

    def _check_kept(self) -> None:
        kept = self._kept
        if kept is None or self._kept_seen:
            return
        if kept[0] < self._reader.pruned.n:
            self.report.add(
                f"entry {kept[0]}, whose hash you kept, was pruned since: there is nothing to compare; keep newer heads"
            )
        else:
            self.report.add(
                f"entry {kept[0]} with the hash that you kept is not in the ledger: it was cut or rewritten"
            )


def _is_policy(event: AuditEvent, outcome: str) -> bool:
    return event.event == "policy" and event.outcome == outcome


def _names(records: list[Record]) -> str:
    first, last = records[0][0], records[-1][0]
    return f"envelope {first}" if first == last else f"envelopes {first} to {last}"
