"""Opening and closing the console: a listener of its own, off until somebody asks for it, closed when nobody uses it."""

import asyncio
import logging
import time
from collections.abc import Callable
from pathlib import Path
from typing import Final

from aghbus.daemon.api.http.listeners import ListenError, listen_address
from aghbus.daemon.api.server import ApiServer, Listener
from aghbus.daemon.base.logs import event
from aghbus.daemon.console.sessions import TICKET_SECONDS, Sessions
from aghbus.host.locations import Locations
from aghbus.protocol.api.console import ConsoleRequest, ConsoleResponse
from aghbus.protocol.base.errors import Refused

_log = logging.getLogger("aghbus.daemon.console")

HOST: Final = "127.0.0.1"
LOOK_SECONDS: Final = 30.0
"""Seconds between two looks whether somebody uses it."""


class Console:
    """The console of one daemon."""

    def __init__(
        self,
        server: ApiServer,
        locations: Locations,
        *,
        now: Callable[[], float] = time.time,
        look_every: float = LOOK_SECONDS,
    ) -> None:
        """`server` has started. `now` is the Unix time in seconds, `look_every` the seconds between two looks for its use."""
        self._server, self._locations, self._look_every = server, locations, look_every
        self._sessions = Sessions(Path(locations.state_dir, "console.json"), now)
        self._listener: Listener | None = None
        self._looking: asyncio.TimerHandle | None = None

    async def restore(self) -> None:
        """Listen again if a tab used it before a restart."""
        if (port := self._sessions.restore()) is not None:
            try:
                await self._listen(port)
            except ListenError as error:
                event(_log, logging.WARNING, "the console is not open again", cause=error)

    async def open(self, request: ConsoleRequest) -> ConsoleResponse:
        """Listen, if it does not yet, and make a ticket. Raises Refused: the port is taken, or it listens on another one."""
        if self._listener is None:
            try:
                await self._listen(request.port or 0)
            except ListenError as error:
                raise Refused(error.message, code="conflict", hint=error.hint) from None
        assert self._listener is not None
        if request.port not in (None, self._listener.port):
            hint = f"use it, or wait until it closes: http://{HOST}:{self._listener.port}/"
            raise Refused(f"port: the console is open on port {self._listener.port}", code="conflict", hint=hint)
        ticket = self._sessions.ticket(write=request.write)
        return ConsoleResponse(
            host=HOST, port=self._listener.port, ticket=ticket, expires_in=TICKET_SECONDS, write=request.write
        )

    def stop(self) -> None:
        """The daemon stops: the server closes the listener, and the sessions go on after the next start."""
        if self._looking is not None:
            self._looking.cancel()

    async def _listen(self, port: int) -> None:
        from aghbus.daemon.console.guard import ConsoleGuard  # which most daemons never need
        from aghbus.daemon.console.neighbors import Neighbors

        server, locations = self._server, self._locations
        sock = listen_address("port", HOST, port)
        neighbors = Neighbors(locations, max_body=server.max_body)
        guard = ConsoleGuard(
            server.application,
            neighbors,
            self._sessions,
            server.draining,
            instance=locations.name,
            port=sock.getsockname()[1],
        )
        self._listener = await server.listen(guard, sock)
        event(_log, logging.INFO, "the console is open", address=f"{HOST}:{self._listener.port}")
        self._look_later()

    def _look_later(self) -> None:
        self._looking = asyncio.get_running_loop().call_later(self._look_every, self._look)

    def _look(self) -> None:
        """Close the listener when no tab is open."""
        assert self._listener is not None
        if self._listener.state.requests or self._sessions.is_used():
            self._look_later()
            return
        self._sessions.end()
        self._listener.close()
        self._listener = None
        event(_log, logging.INFO, "the console is closed: nobody uses it")
