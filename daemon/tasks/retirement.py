"""Retiring former identities: one without open works and unsent messages leaves the bus, and its key file is renamed."""

import asyncio
import logging
from collections.abc import Callable
from typing import Final

from aghbus.daemon.base.logs import event
from aghbus.daemon.state.context import DaemonContext
from aghbus.daemon.state.identity import Identity
from aghbus.daemon.state.keys import retire_key_file
from aghbus.host.key_files import KeyFileError
from aghbus.protocol.api.status import FormerIdentity
from aghbus.store.audit import events as audit
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.errors import StoreUnavailable
from aghbus.store.tables import identities

_log = logging.getLogger("aghbus.node")

_INTERVAL: Final = 2.0  # seconds between two checks for open works of former identities


class Retirement:
    """Retires the former identities of a running daemon."""

    def __init__(self, context: DaemonContext, store: Store, on_retired: Callable[[str], None]) -> None:
        """`on_retired` takes a former peer id off the bus."""
        self._store = store
        self._identity = context.identity
        self._clock = context.clock
        self._counters = context.counters
        self._on_retired = on_retired

    async def run(self) -> None:
        """Check every two seconds, until no former identity is left or it is cancelled."""
        while self._identity.former or self._identity.unusable:
            await asyncio.sleep(_INTERVAL)
            try:
                await self.check()
            except StoreUnavailable:
                continue  # the store reports why

    async def check(self) -> None:
        """Retire idle identities, once. Raises StoreUnavailable."""
        for peer_id in await self._store.write(self._retire):
            self._counters.add("identities.retired")
            event(_log, logging.INFO, "a former identity has retired", peer=peer_id)
            key = self._identity.forget(peer_id)
            self._on_retired(peer_id)
            if key is None or key.path is None:
                continue
            try:
                renamed = retire_key_file(key.path)
                event(_log, logging.INFO, "the key file of a former identity was renamed", file=renamed)
            except KeyFileError as error:
                sentence = "the key file of a former identity could not be renamed"
                event(_log, logging.WARNING, sentence, cause=error, hint=error.hint)

    def _retire(self, tx: Transaction) -> list[str]:
        now_ms = self._clock.millis()
        idle = identities.retire_idle(tx, self._identity.self_id, now_ms)
        for peer_id in idle:
            audit.note_policy(tx, now_ms, "identity_retired", peer_id)
        return idle


async def former_identities(store: Store, identity: Identity) -> list[FormerIdentity]:
    """The former identities for `aghctl status`."""
    return [
        FormerIdentity(
            peer_id=one.peer_id,
            since_ms=one.since_ms,
            open_works=one.open_works,
            unsent=one.unsent,
            problem=identity.unusable.get(one.peer_id),
        )
        for one in await identities.read_former(store.reader, identity.self_id)
    ]


def problems(former: list[FormerIdentity]) -> list[str]:
    """Sentences for the operator about former identities that cannot act."""
    return [
        f"{one.open_works} open work{' belongs' if one.open_works == 1 else 's belong'} to our former peer id {one.peer_id}, "
        f"which cannot finish {'it' if one.open_works == 1 else 'them'}: {one.problem}"
        for one in former
        if one.problem is not None and one.open_works
    ]
