"""Peers whose store is new or was restored from a backup, as their greets say: they may not know works with us any more."""

import logging
from collections.abc import Callable, Mapping
from functools import partial
from typing import Any, Final, TypeVar

from aghbus.daemon.base.background import BackgroundTasks
from aghbus.daemon.state.context import DaemonContext
from aghbus.protocol.agh.delivery.restored import Restored, restored_in
from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.store.audit import events as audit
from aghbus.store.engine.backup.epoch import spell
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.errors import StoreUnavailable
from aghbus.store.tables import outbox
from aghbus.store.tables.outbox import OpenWork, Outgoing
from aghbus.store.tables.works.lifecycle import last_heard, load

T = TypeVar("T")
MAX_NOTED: Final = 10_000  # peers whose last epoch is remembered
_ASKED_TOGETHER: Final = 100  # works in one job
_ASK_EVERY: Final = 60.0  # seconds between two rounds of questions to a peer
_NOTE_EVERY: Final = 600.0  # seconds between two entries about one peer in the audit log


class RestoredPeers:
    """Asks a peer with another store for the works that it may have forgotten, and reports those of a restored one: a problem
    while it greets so, an entry in the audit log."""

    def __init__(
        self,
        context: DaemonContext,
        store: Store,
        background: BackgroundTasks,
        ask: Callable[[Transaction, WorkView], list[Outgoing]],
        enqueue: Callable[[list[Outgoing]], object],
    ) -> None:
        """`ask` sends the target of a work a message that it refuses if it does not know the work; `enqueue` publishes it."""
        self._store = store
        self._clock = context.clock
        self._background = background
        self._counters = context.counters
        self._log_limiter = context.log_limiter
        self._ask = ask
        self._enqueue = enqueue
        self._asking: set[str] = set()
        self._asked: dict[str, tuple[str, float]] = {}  # by peer: its epoch, and the monotonic second of the questions
        self._noted: dict[str, tuple[str, float]] = {}  # by peer: its epoch, and the monotonic second of the entry

    def greeted(self, peer_id: str, ext: Mapping[str, Any]) -> None:
        """A greet of `peer_id` announces an epoch: look for works that it may not know any more."""
        restored = restored_in(ext)
        if restored is None or not restored.matters(self._clock.millis()):
            return
        if restored.is_new and not self._may_ask(peer_id, restored.epoch):
            return  # nothing is reported before it has answered
        if peer_id not in self._asking and not self._background.busy:
            self._asking.add(peer_id)
            self._background.spawn(self._check(peer_id, restored))

    async def _check(self, peer_id: str, restored: Restored) -> None:
        try:
            until_ms = 1000 * restored.held_through
            works = await outbox.open_works_between(self._store.reader, peer_id, restored.backup_ms, until_ms)
            if self._may_ask(peer_id, restored.epoch):
                ours = [work for work in works if work.role == "initiator"]
                await self._ask_for(ours, restored.restored_ms // 1000)
                _remember(self._asked, peer_id, (restored.epoch, self._clock.monotonic() if ours else -_ASK_EVERY))
        except StoreUnavailable:
            return  # its next greet is as good
        finally:
            self._asking.discard(peer_id)
        if not restored.is_new:
            self._report(peer_id, restored, sum(work.opened_ms <= restored.restored_ms for work in works))

    def _may_ask(self, peer_id: str, epoch: str) -> bool:
        """Whether the peer was not asked in this epoch, nor lately: anybody can announce epochs under a name without a key."""
        asked = self._asked.get(peer_id)
        return asked is None or (asked[0] != epoch and self._clock.monotonic() - asked[1] >= _ASK_EVERY)

    async def _ask_for(self, works: list[OpenWork], since: int) -> None:
        for start in range(0, len(works), _ASKED_TOGETHER):
            await self._store.write(partial(self._ask_some, some=works[start : start + _ASKED_TOGETHER], since=since))

    def _ask_some(self, tx: Transaction, some: list[OpenWork], since: int) -> None:
        """Those in which the peer has said nothing after `since`, by its clock: it knows the others."""
        for each in some:
            work = load(tx, each.workspace_id, each.channel, each.work_id)
            if work is not None and not work.is_terminal and last_heard(tx, work) <= since:
                tx.after_commit(partial(self._enqueue, self._ask(tx, work)))

    def _report(self, peer_id: str, restored: Restored, count: int) -> None:
        key = f"restored.{peer_id}"
        if not count:
            self._counters.solved(key)
            return
        when = f"{peer_id} was restored at {spell(restored.restored_ms)} from a backup of {spell(restored.backup_ms)}"
        works = f"{count} open works" if count > 1 else "1 open work"
        sentence = f"{when}: it may not know {works} with us any more; those that it does not know end"
        self._counters.problem(key, sentence, self._clock.monotonic())
        self._note(peer_id, restored.epoch, sentence, count)

    def _note(self, peer_id: str, epoch: str, sentence: str, count: int) -> None:
        now = self._clock.monotonic()
        noted = self._noted.get(peer_id)
        if noted is not None and (noted[0] == epoch or now - noted[1] < _NOTE_EVERY):
            return
        _remember(self._noted, peer_id, (epoch, now))
        self._log_limiter.event(logging.WARNING, "restored", "a peer was restored", peer=peer_id, works=count)
        self._store.write_deferred(partial(_record, at_ms=self._clock.millis(), sentence=sentence), start_commit=True)


def _remember(noted: dict[str, T], peer_id: str, value: T) -> None:
    if len(noted) >= MAX_NOTED:
        del noted[next(iter(noted))]
    noted[peer_id] = value


def _record(tx: Transaction, at_ms: int, sentence: str) -> None:
    audit.note_policy(tx, at_ms, "peer_restored", sentence)
