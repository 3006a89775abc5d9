"""Ends works of AgentOS that were not answered within the ttl of their message (adapters.md, agentos)."""

from dataclasses import dataclass
from functools import partial
from typing import Any, Final

import msgspec

from aghbus.daemon.base.metrics import Counters
from aghbus.daemon.bridge.format_log import FORMAT_WITH_TIMEOUTS, due_at, expire
from aghbus.daemon.send.closing import WorkCloser
from aghbus.daemon.send.sender import Batch
from aghbus.protocol.agh.bodies import receipt_body
from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.protocol.formats.agentos.rules import RECOVERABLE
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.tables.bridge import log as bridge_log
from aghbus.store.tables.bridge import messages as bridge
from aghbus.store.tables.bridge.log import BridgeLogEntry
from aghbus.store.tables.envelopes import raw_of
from aghbus.store.tables.works import lifecycle

_TIMEOUT: Final = "TIMEOUT"  # the schema's error code


@dataclass(frozen=True, slots=True, eq=False)
class UnansweredMessages:
    """Handles due rows of the message log.

    The ttl counts from the last message of the asker on the work. When it has passed, the daemon of the asker ends the work;
    the daemon of the target does so `GRACE_MS` later. It does not pass while the target waits for the answer to a question.
    """

    closer: WorkCloser
    counters: Counters

    def handle(self, tx: Transaction, batch: Batch, entry: BridgeLogEntry, now_ms: int) -> None:
        """End the work of a due message, and set the status of its row."""
        work = _work_of(tx, entry)
        asked_ms = None if work is None or work.is_terminal else _asked_again_ms(tx, work, now_ms)
        due_ms = None if asked_ms is None else due_at(entry.direction, entry.waits, asked_ms)
        if due_ms is not None and due_ms > now_ms:
            bridge_log.set_due(tx, entry.id, due_ms)
            return
        ended = work is not None and not work.is_terminal and self._end(tx, batch, work, entry)
        if ended or entry.direction == "out" or _ended_unanswered(tx, work):
            expire(tx, entry)
        else:
            bridge_log.set_due(tx, entry.id, None)

    def _end(self, tx: Transaction, batch: Batch, work: WorkView, entry: BridgeLogEntry) -> bool:
        kind, body = _closing(work, entry)
        rows = self.closer.close_unanswered(tx, work, kind, body)
        if rows:
            batch.add(kind, rows)
            tx.after_commit(partial(self.counters.add, "bridge.ttl_passed"))
        return bool(rows)


def _work_of(tx: Transaction, entry: BridgeLogEntry) -> WorkView | None:
    envelope = bridge.load_envelope(tx, entry.seq) if entry.seq else None
    if envelope is None or envelope.work_id is None:
        return None
    return lifecycle.load(tx, envelope.workspace_id, envelope.channel, envelope.work_id)


def _ended_unanswered(tx: Transaction, work: WorkView | None) -> bool:
    """Whether a receipt ended the work because no answer came in time."""
    if work is None or work.terminal_id is None or work.terminal_sender is None:
        return False
    raw = raw_of(tx, work.workspace_id, work.terminal_id, work.terminal_sender)
    return raw is not None and msgspec.json.decode(raw)["body"].get("reason_code") == "expired"


def _asked_again_ms(tx: Transaction, work: WorkView, now_ms: int) -> int | None:
    """When the asker answered the last question of the target, in Unix milliseconds: `now_ms` while the answer is awaited, None
    without a question."""
    if work.state == "needs_input":
        return now_ms
    history = bridge.StoredMessageHistory(tx, FORMAT_WITH_TIMEOUTS, work.workspace_id, work.channel, work.target)
    said = history.answered(work)
    last = None if said == work.opening_id else bridge.envelope_by_id(tx, work.workspace_id, said, work.initiator)
    return None if last is None else last.received_ms


def _closing(work: WorkView, entry: BridgeLogEntry) -> tuple[str, dict[str, Any]]:
    """Kind and body by which our side ends the work: the asker cancels, the target fails."""
    why = f"not answered within its ttl of {entry.waits} s"
    if entry.direction == "out":
        return "receipt", receipt_body(work.opening_id, "canceled", "expired", why)
    fault = {"code": _TIMEOUT, "details": None, "recoverable": RECOVERABLE[_TIMEOUT]}
    return "trace", {"state": "failed", "message": why, "result": {"error": fault}}
