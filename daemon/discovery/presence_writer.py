"""Persisting discovery asynchronously: envelope ids and peers, batched into one write (docs/adr/0004)."""

import asyncio
from typing import Final

from aghbus.daemon.state.presence import PresenceTable
from aghbus.store.engine.database import Store
from aghbus.store.engine.transaction import Transaction
from aghbus.store.tables import peers

PeerKey = tuple[str, str, str]  # workspace, channel, peer id

INTERVAL: Final = 0.1
"""Seconds between two writes: under a flood of questions a commit costs more than they do."""

CAPACITY: Final = 20_000
"""Pending ids, and pending peers: a store that cannot write must not exhaust the memory."""


class PresenceWriteBehind:
    """Ids and peers on their way into the store. A crash may lose them: the next greet brings them again."""

    def __init__(
        self, store: Store, presence: PresenceTable, *, interval: float = INTERVAL, capacity: int = CAPACITY
    ) -> None:
        """`interval` is in seconds; more than `capacity` ids or peers are dropped."""
        self._interval = interval
        self._capacity = capacity
        self._store = store
        self._presence = presence
        self._ids: dict[bytes, int] = {}
        self._peers: dict[PeerKey, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __contains__(self, key: bytes) -> bool:
        """Whether the id with this key is pending."""
        return key in self._ids

    @property
    def pending(self) -> int:
        """The number of pending ids."""
        return len(self._ids)

    def remember(self, key: bytes, until: int) -> None:
        """Keep an envelope's key for deduplication until Unix second `until`."""
        if len(self._ids) < self._capacity:
            self._ids[key] = until
            self._schedule()

    def save(self, peer: PeerKey) -> None:
        """Save the peer's entry of the presence table. Only its key is kept here: cards may be large."""
        if len(self._peers) < self._capacity:
            self._peers[peer] = None
            self._schedule()

    def flush(self) -> None:
        """Write everything pending with the next transaction."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._ids or self._peers:
            self._store.write_deferred(self._write)

    def _schedule(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(self._interval, self.flush)

    def _write(self, tx: Transaction) -> None:
        ids, self._ids = self._ids, {}
        pending, self._peers = self._peers, {}
        tx.after_rollback(lambda: self._put_back(ids, pending))
        for key, until in ids.items():
            tx.memory.dedup.remember(tx, key, until)
        if dropped := self._presence.take_dropped():
            peers.drop(tx, dropped)
        for peer_key in pending:
            if (peer := self._presence.unsaved(*peer_key)) is not None:
                peers.seen(tx, peer)

    def _put_back(self, ids: dict[bytes, int], pending: dict[PeerKey, None]) -> None:
        self._ids = ids | self._ids
        self._peers = pending | self._peers
