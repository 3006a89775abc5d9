"""The end of a former identity: when nothing is left to do under it, it leaves the bus, and its key is put aside."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from aghbus.daemon.state.context import Core
from aghbus.daemon.state.keys import put_aside
from aghbus.protocol.api.status import FormerIdentity
from aghbus.store.audit import events as audit
from aghbus.store.engine.transaction import Transaction
from aghbus.store.errors import StoreUnavailable
from aghbus.store.host.key_files import KeyFileError
from aghbus.store.tables import identities

_log = logging.getLogger("aghbus.node")

_LOOK: Final = 2.0  # seconds between two looks at the works that are open under former identities; there are seldom any


class Retirement:
    """Watches over the former identities of a running daemon."""

    def __init__(self, core: Core, on_retired: Callable[[str], None]) -> None:
        """`on_retired` takes a former peer id off the bus."""
        self._core = core
        self._on_retired = on_retired

    async def run(self) -> None:
        """Retire what has nothing left to do, until there is none or it is cancelled."""
        while self._core.identities.former or self._core.identities.unusable:
            await asyncio.sleep(_LOOK)
            try:
                await self.look()
            except StoreUnavailable:
                continue  # the store's own state says why

    async def look(self) -> None:
        """Once. Raises StoreUnavailable."""
        for peer_id in await self._core.store.write(self._retire):
            self._core.counters.add("identities.retired")
            _log.info("a former identity has retired peer=%s", peer_id)
            key = self._core.identities.forget(peer_id)
            self._on_retired(peer_id)
            if key is None or key.path is None:
                continue
            try:
                _log.info("the key of a former identity is put aside file=%s", put_aside(key.path))
            except KeyFileError as error:
                _log.warning("the key of a former identity stays where it is cause=%s hint=%s", error, error.hint)

    def _retire(self, tx: Transaction) -> list[str]:
        now_ms = self._core.clock.millis()
        idle = identities.retire_idle(tx, self._core.us, now_ms)
        for peer_id in idle:
            audit.note_policy(tx, now_ms, "identity_retired", peer_id)
        return idle


async def former_identities(core: Core) -> list[FormerIdentity]:
    """The former identities as `aghctl status` shows them."""
    return [
        FormerIdentity(
            peer_id=one.peer_id,
            since_ms=one.since_ms,
            open_works=one.open_works,
            unsent=one.unsent,
            problem=core.identities.unusable.get(one.peer_id),
        )
        for one in await identities.read_former(core.store.reader, core.us)
    ]


def problems(former: list[FormerIdentity]) -> list[str]:
    """Sentences for the operator about those under which nothing can be done."""
    return [
        f"{one.open_works} open work{' belongs' if one.open_works == 1 else 's belong'} to our former peer id {one.peer_id}, "
        f"which cannot finish {'it' if one.open_works == 1 else 'them'}: {one.problem}"
        for one in former
        if one.problem is not None and one.open_works
    ]
