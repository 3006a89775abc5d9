"""Leases of the sessions of agent hosts. A lease lasts as long as its session is reported, and its token names the session."""

import re
import secrets
from contextlib import suppress
from typing import Final, NamedTuple

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.services.inbox import InboxService
from aghbus.protocol.api.inbox import InboxLeaseRequest
from aghbus.protocol.api.leases import ENTROPY_BYTES, holder_of, lease_token
from aghbus.protocol.base.errors import NotFound, Refused

SESSION: Final = re.compile(r"[A-Za-z0-9-]{1,64}")
"""The id of a session that can hold leases."""
FIRST_SECONDS: Final = 90.0
"""How long a new lease lasts: until the session's next report but two."""
LONGEST_SECONDS: Final = 3600.0
"""Seconds: a message that was fetched longer ago comes again, because the session may have forgotten it."""


class Held(NamedTuple):
    """Messages that one session holds, None: a consumer that is no session. `since_ms`: the oldest lease, 0 if unknown."""

    session: str | None
    messages: int
    since_ms: int


class SessionLeases:
    """The leases of all sessions of one daemon. They survive its restart, because all is in the token."""

    def __init__(self, clock: Clock, inbox: InboxService) -> None:
        self._clock = clock
        self._inbox = inbox

    def new_token(self, session: str) -> str:
        """A token for leases of `session`."""
        return lease_token(session, self._clock.millis(), secrets.token_bytes(ENTROPY_BYTES))

    async def keep(self, session: str, seconds: float) -> None:
        """Renew the leases of a session for so many seconds; 0 returns its messages as if they had never been leased."""
        for seq, lease in self._inbox.store.memory.inbox.leases():
            owner, since_ms = _owner(lease)
            if owner == session and not seconds:
                self._inbox.give_back(seq, lease)
            elif owner == session and self._clock.millis() - since_ms < LONGEST_SECONDS * 1000:
                with suppress(NotFound, Refused):  # acknowledged meanwhile
                    await self._inbox.lease(seq, InboxLeaseRequest(lease=lease, visibility=max(1.0, seconds)))

    def of_others(self, session: str) -> list[Held]:
        """What other consumers than `session` hold, by consumer."""
        found: dict[str | None, Held] = {}
        for _, lease in self._inbox.store.memory.inbox.leases():
            owner, since_ms = _owner(lease)
            if owner is None or owner != session:
                held = found.get(owner, Held(owner, 0, since_ms))
                found[owner] = Held(owner, held.messages + 1, min(held.since_ms, since_ms))
        return list(found.values())


def _owner(lease: str) -> tuple[str | None, int]:
    """The session that a token names, and when its lease began."""
    found = holder_of(lease)
    return (None, 0) if found is None or SESSION.fullmatch(found.name) is None else found
