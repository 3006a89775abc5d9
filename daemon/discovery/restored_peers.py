"""Peers whose store was restored from a backup, as their greets say: they may not know works with us any more."""

import logging
from collections.abc import Mapping
from functools import partial
from typing import Any, Final

from aghbus.daemon.base.background import BackgroundTasks
from aghbus.daemon.state.context import DaemonContext
from aghbus.protocol.agh.delivery.restored import Restored, restored_in
from aghbus.store.audit import events as audit
from aghbus.store.engine.backup.epoch import spell
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.tables import outbox

MAX_NOTED: Final = 1_000  # peers whose last epoch is remembered
_NOTE_EVERY: Final = 600.0  # seconds between two entries about one peer in the audit log


class RestoredPeers:
    """Reports open works that a restored peer may have forgotten: a problem while it greets so, an entry in the audit log."""

    def __init__(self, context: DaemonContext, store: Store, background: BackgroundTasks) -> None:
        self._store = store
        self._clock = context.clock
        self._background = background
        self._counters = context.counters
        self._log_limiter = context.log_limiter
        self._asking: set[str] = set()
        self._noted: dict[str, tuple[str, float]] = {}  # by peer: its epoch, and the monotonic second of the entry

    def greeted(self, peer_id: str, ext: Mapping[str, Any]) -> None:
        """A greet of `peer_id` announces an epoch: count the works that it may not know any more."""
        restored = restored_in(ext)
        if restored is None or not restored.matters(self._clock.millis()):
            return
        if peer_id not in self._asking and not self._background.busy:
            self._asking.add(peer_id)
            self._background.spawn(self._check(peer_id, restored))

    async def _check(self, peer_id: str, restored: Restored) -> None:
        try:
            since_ms, until_ms = restored.backup_ms, restored.restored_ms
            count = await outbox.open_works_between(self._store.reader, peer_id, since_ms, until_ms)
        finally:
            self._asking.discard(peer_id)
        key = f"restored.{peer_id}"
        if not count:
            self._counters.solved(key)
            return
        when = f"{peer_id} was restored at {spell(until_ms)} from a backup of {spell(restored.backup_ms)}"
        works = f"{count} open works" if count > 1 else "1 open work"
        sentence = f"{when}: it may not know {works} with us any more; open again or cancel what it does not answer"
        self._counters.problem(key, sentence, self._clock.monotonic())
        self._note(peer_id, restored.epoch, sentence, count)

    def _note(self, peer_id: str, epoch: str, sentence: str, count: int) -> None:
        now = self._clock.monotonic()
        noted = self._noted.get(peer_id)
        if noted is not None and (noted[0] == epoch or now - noted[1] < _NOTE_EVERY):
            return
        if len(self._noted) >= MAX_NOTED:
            del self._noted[next(iter(self._noted))]
        self._noted[peer_id] = epoch, now
        self._log_limiter.event(logging.WARNING, "restored", "a peer was restored", peer=peer_id, works=count)
        self._store.write_deferred(partial(_record, at_ms=self._clock.millis(), sentence=sentence), start_commit=True)


def _record(tx: Transaction, at_ms: int, sentence: str) -> None:
    audit.note_policy(tx, at_ms, "peer_restored", sentence)
