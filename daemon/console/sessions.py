"""Who may use the console: tickets that admit a browser tab once, and the sessions of the tabs.

A session outlives a restart of the daemon: the file keeps the digest of its token, never the token.
"""

import contextlib
import hashlib
import secrets
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

import msgspec

TICKET_SECONDS: Final = 300.0
"""How long a ticket is good for: a person may have to start `ssh -L` first."""
UNUSED_SECONDS: Final = 900.0
"""How long a session lives without a request. The page asks at least every minute while it is open."""
_NOTED_EVERY: Final = 60.0  # seconds: how old the file's times of use may be
_TOKEN_BYTES: Final = 32
_MAX_TICKETS: Final = 16


class Session(msgspec.Struct):
    """One browser tab."""

    digest: str  # SHA-256 of its token, in hex
    write: bool
    used: float  # Unix time of its last request, in seconds


class _Stored(msgspec.Struct):
    port: int
    sessions: list[Session]


class Sessions:
    """Tickets and sessions of one console, kept in a file while there are sessions."""

    def __init__(self, file: Path, now: Callable[[], float] = time.time) -> None:
        """`now` is the Unix time in seconds."""
        self._file = file
        self._now = now
        self._tickets: dict[str, tuple[float, bool]] = {}  # until when, and whether it may write
        self._sessions: dict[str, Session] = {}
        self._noted = 0.0

    def restore(self) -> int | None:
        """Read the sessions of an earlier run that are in use; the port they used, None when there are none."""
        try:
            stored = msgspec.json.decode(self._file.read_bytes(), type=_Stored)
        except (OSError, msgspec.DecodeError):
            return None
        self._sessions = {one.digest: one for one in stored.sessions}
        self._expire()
        return stored.port if self._sessions else None

    def ticket(self, *, write: bool) -> str:
        """A new ticket, good for TICKET_SECONDS."""
        if len(self._tickets) >= _MAX_TICKETS:
            del self._tickets[next(iter(self._tickets))]
        ticket = secrets.token_urlsafe(_TOKEN_BYTES)
        self._tickets[_digest(ticket)] = (self._now() + TICKET_SECONDS, write)
        return ticket

    def begin(self, ticket: str, port: int) -> tuple[str, Session] | None:
        """Use a ticket up: a new session with its token; None for a ticket that is unknown, used or too old."""
        until, write = self._tickets.pop(_digest(ticket), (0.0, False))
        if self._now() >= until:
            return None
        token = secrets.token_urlsafe(_TOKEN_BYTES)
        session = Session(_digest(token), write, self._now())
        self._sessions[session.digest] = session
        self._note(port)
        return token, session

    def find(self, token: str, port: int) -> Session | None:
        """The session of a token, which is in use from now on."""
        session = self._sessions.get(_digest(token))
        if session is not None:
            session.used = self._now()
            if session.used - self._noted >= _NOTED_EVERY:
                self._note(port)
        return session

    def is_used(self) -> bool:
        """Whether a session or a ticket is good. Forgets the others."""
        self._expire()
        now = self._now()
        return bool(self._sessions) or any(until > now for until, _ in self._tickets.values())

    def end(self) -> None:
        """Forget all of them."""
        self._tickets.clear()
        self._sessions.clear()
        with contextlib.suppress(OSError):
            self._file.unlink(missing_ok=True)

    def _expire(self) -> None:
        oldest = self._now() - UNUSED_SECONDS
        self._sessions = {digest: one for digest, one in self._sessions.items() if one.used > oldest}

    def _note(self, port: int) -> None:
        self._noted = self._now()
        with contextlib.suppress(OSError):  # then the tabs need new tickets after a restart
            self._file.write_bytes(msgspec.json.encode(_Stored(port, [*self._sessions.values()])))


def _digest(secret: str) -> str:
    return hashlib.sha256(secret.encode()).hexdigest()
