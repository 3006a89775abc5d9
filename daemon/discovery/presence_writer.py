"""Persisting discovery asynchronously: envelope ids and peers, batched into one write (docs/adr/0004)."""

import asyncio
from typing import Final

from aghbus.daemon.state.presence import PresenceTable
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.tables import peers

INTERVAL: Final = 30.0
"""Seconds between two writes, the default interval of greets: a crash loses what came since the last one."""

BATCH: Final = 4_096
"""Pending ids that are written before the interval is over: some milliseconds of the event loop."""

CAPACITY: Final = 20_000
"""Pending ids: a store that cannot write must not exhaust the memory."""


class PresenceWriteBehind:
    """Discovery on its way into the store: the ids of messages, and the changes of the presence table."""

    def __init__(
        self, store: Store, presence: PresenceTable, *, interval: float = INTERVAL, capacity: int = CAPACITY
    ) -> None:
        """`interval` is in seconds; ids beyond `capacity` are not remembered."""
        self._interval = interval
        self._capacity = capacity
        self._store = store
        self._presence = presence
        self._ids = store.memory.dedup.pending
        self._timer: asyncio.TimerHandle | None = None

    def __contains__(self, key: int) -> bool:
        """Whether the id with this key is pending."""
        return key in self._ids

    @property
    def pending(self) -> int:
        """The number of pending ids."""
        return len(self._ids)

    def remember(self, key: int, until: int) -> None:
        """Keep an envelope's key for deduplication until Unix second `until`."""
        if len(self._ids) < self._capacity:
            self._ids[key] = until
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval, self.flush)
        if len(self._ids) == BATCH:
            self.flush()

    def flush(self) -> None:
        """Write what is pending with the next transaction."""
        self._stop_timer()
        self._store.write_deferred(self._write)

    def close(self) -> None:
        """As `flush`, with the exact time of each peer's last message."""
        self._stop_timer()
        self._store.write_deferred(lambda tx: self._write(tx, exact=True))

    def _stop_timer(self) -> None:
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None

    def _write(self, tx: Transaction, *, exact: bool = False) -> None:
        ids = dict(self._ids)
        self._ids.clear()
        tx.undo.append(lambda: self._ids.update(ids))
        changes = self._presence.take_changes(exact=exact)
        tx.undo.append(lambda: self._presence.put_back(changes))
        for key, until in ids.items():
            tx.memory.dedup.remember(tx, key, until)
        if changes.dropped:
            peers.drop(tx, changes.dropped)
        for peer in changes.peers:
            peers.seen(tx, peer)
