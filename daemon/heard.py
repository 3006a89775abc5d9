"""What discovery keeps of what it hears: ids and peers, committed behind, those of a moment in one job (docs/adr/0004)."""

import asyncio
from typing import Any, Final

from aghbus.daemon.core import Core
from aghbus.protocol.envelope import Envelope
from aghbus.store import peers
from aghbus.store.dedup import key_of
from aghbus.store.transaction import Transaction

Place = tuple[str, str, str]  # workspace, channel, peer id

_MOST: Final = 20_000  # of either that wait at most: a store that cannot write must not cost us the memory


class Heard:
    """Ids and peers on their way into the store. A crash may lose what is here: it can be heard again."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._keys: list[tuple[bytes, int]] = []
        self._places: dict[Place, None] = {}
        self._job: asyncio.Future[Any] | None = None  # that takes what is here, once it begins

    def remember(self, envelope: Envelope, until: int) -> None:
        """Its id, until Unix second `until`."""
        if len(self._keys) < _MOST:
            self._keys.append((key_of(envelope), until))
            self._write_behind()

    def save(self, place: Place) -> None:
        """The peer as the roster has it then: what waits for the store holds no cards, which may be large."""
        if len(self._places) < _MOST:
            self._places[place] = None
            self._write_behind()

    def _write_behind(self) -> None:
        if self._job is None or self._job.done():
            self._job = self._core.behind(self._write)

    def _write(self, tx: Transaction) -> None:
        self._job = None  # what comes from here on goes with another
        keys, self._keys = self._keys, []
        places, self._places = self._places, {}
        tx.after_rollback(lambda: self._put_back(keys, places))
        for key, until in keys:
            tx.memory.dedup.remember(tx, key, until)
        roster = self._core.roster
        if gone := roster.take_gone():
            peers.drop(tx, gone)
        for place in places:
            if (peer := roster.unsaved(*place)) is not None:
                peers.seen(tx, peer)

    def _put_back(self, keys: list[tuple[bytes, int]], places: dict[Place, None]) -> None:
        self._keys = keys + self._keys
        self._places = places | self._places
