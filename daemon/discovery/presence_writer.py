"""What discovery keeps of what it hears: ids and peers, committed behind, those of a while in one job (docs/adr/0004)."""

import asyncio
from typing import Final

from aghbus.daemon.state.context import Core
from aghbus.store.engine.transaction import Transaction
from aghbus.store.tables import peers

Place = tuple[str, str, str]  # workspace, channel, peer id

_WHILE: Final = 0.1  # seconds, ours: under a flood of questions a commit costs more than they do
_MOST: Final = 20_000  # of either that wait at most: a store that cannot write must not cost us the memory


class Heard:
    """Ids and peers on their way into the store. A crash may lose what is here: it can be heard again."""

    def __init__(self, core: Core) -> None:
        self._core = core
        self._keys: dict[bytes, int] = {}
        self._places: dict[Place, None] = {}
        self._timer: asyncio.TimerHandle | None = None

    def __contains__(self, key: bytes) -> bool:
        """Whether an envelope of this key was heard, and the store does not know yet."""
        return key in self._keys

    def remember(self, key: bytes, until: int) -> None:
        """An envelope's key, until Unix second `until`."""
        if len(self._keys) < _MOST:
            self._keys[key] = until
            self._soon()

    def save(self, place: Place) -> None:
        """The peer as the roster has it then: what waits for the store holds no cards, which may be large."""
        if len(self._places) < _MOST:
            self._places[place] = None
            self._soon()

    def flush(self) -> None:
        """Have what is here committed with the next group."""
        if self._timer is not None:
            self._timer.cancel()
            self._timer = None
        if self._keys or self._places:
            self._core.behind(self._write)

    def _soon(self) -> None:
        if self._timer is None:
            self._timer = asyncio.get_running_loop().call_later(_WHILE, self.flush)

    def _write(self, tx: Transaction) -> None:
        keys, self._keys = self._keys, {}
        places, self._places = self._places, {}
        tx.after_rollback(lambda: self._put_back(keys, places))
        for key, until in keys.items():
            tx.memory.dedup.remember(tx, key, until)
        roster = self._core.roster
        if gone := roster.take_gone():
            peers.drop(tx, gone)
        for place in places:
            if (peer := roster.unsaved(*place)) is not None:
                peers.seen(tx, peer)

    def _put_back(self, keys: dict[bytes, int], places: dict[Place, None]) -> None:
        self._keys = keys | self._keys
        self._places = places | self._places
