"""The API server: listeners, connections and their end, inside the daemon's own event loop."""

import asyncio
import logging
import socket
from collections.abc import Mapping
from pathlib import Path
from typing import Final

from aghbus.daemon.api.app import ApiApp, Mounted
from aghbus.daemon.api.handlers import Handler
from aghbus.daemon.api.http.cancellation import Draining
from aghbus.daemon.api.http.connection import ApiConnection, ListenerState
from aghbus.daemon.api.http.exchange import Application
from aghbus.daemon.api.http.listeners import BACKLOG, UnixListener, checked_token, listen_tcp, listen_unix
from aghbus.daemon.api.http.tcp_guard import LoopbackGuard
from aghbus.daemon.api.http.timeouts import TIMEOUTS, HttpTimeouts
from aghbus.daemon.base.logs import EventLimiter, event
from aghbus.protocol.agh.limits import MAX_ENVELOPE_BYTES
from aghbus.protocol.api.operation import AnyOperation

logger = logging.getLogger("aghbus.daemon.api")

MAX_BODY_BYTES: Final = MAX_ENVELOPE_BYTES + 65_536
"""Bytes of one request body: the largest envelope, and the other fields of the request."""

STALLED_GRACE: Final = 0.5
"""Seconds: how long a drain waits for a client that does not read."""

_FOREIGN_ATTEMPTS_PER_MINUTE: Final = 6  # log lines that processes of other users can provoke
_POLL: Final = 0.01  # seconds between two checks of the open connections while stopping


class Listener:
    """One listener of a server."""

    def __init__(self, state: ListenerState, server: asyncio.Server) -> None:
        self.state = state
        self._server = server

    @property
    def port(self) -> int:
        """That it listens on, of a TCP listener."""
        port: int = self._server.sockets[0].getsockname()[1]
        return port

    def close(self) -> None:
        """Accept no more connections, and end those that are idle."""
        self._server.close()
        for connection in list(self.state.connections):
            connection.shutdown()


class ApiServer:
    """The local API of one daemon. `start` it once, `stop` it once; both belong to the loop that runs them."""

    def __init__(
        self,
        handlers: Mapping[AnyOperation, Handler],
        *,
        socket_path: Path,
        private_folder: bool = False,
        socket_group: int | None = None,
        tcp: tuple[str, int] | None = None,
        token: str | None = None,
        max_body: int = MAX_BODY_BYTES,
        timeouts: HttpTimeouts = TIMEOUTS,
        mounted: Mapping[str, Mounted] | None = None,
    ) -> None:
        """`socket_path` is absolute; `private_folder`: its folder must be ours alone (`Locations.socket_dir_private`);
        `socket_group` is the id of a group whose members may use the socket, too.

        `tcp` is a loopback host and a port (0: any), which needs `token`. `max_body` in bytes. `mounted` serves other paths
        than those of the operations.
        """
        self._socket_path = socket_path
        self._private_folder = private_folder
        self._socket_group = socket_group
        self._tcp = tcp
        self._token = token
        self._timeouts = timeouts
        self._draining = Draining()
        self._max_body = max_body
        self._app = ApiApp(
            handlers,
            self._draining,
            max_body=max_body,
            timeouts=timeouts,
            mounted=mounted,
        )
        self._foreign_attempts = EventLimiter(logger, _FOREIGN_ATTEMPTS_PER_MINUTE)
        self._listeners: list[Listener] = []  # connections on TCP do not count on the socket
        self._unix: UnixListener | None = None
        self._guard: LoopbackGuard | None = None
        self.tcp_address: tuple[str, int] | None = None

    async def start(self) -> None:
        """Listen. Raises ListenError, after which no listener is left.

        `tcp_address` is then the host and port in use, None without TCP.
        """
        try:
            self._unix = await listen_unix(
                self._socket_path, private_folder=self._private_folder, group=self._socket_group
            )
            if self._tcp is not None:
                token, tcp = checked_token(self._token), listen_tcp(*self._tcp)
                host, port = tcp.getsockname()[:2]
                self.tcp_address = (host, port)
                self._guard = LoopbackGuard(self._app, token=token, host=host, port=port)
                await self.listen(self._guard, tcp)
            await self.listen(self._app, self._unix.socket)
        except BaseException:
            self._close_listeners()
            raise

    def change_token(self, token: str | None) -> None:
        """Take another token on TCP from now on. Raises ListenError for one that may not be used, which changes nothing."""
        if self._guard is not None:
            self._guard.change_token(checked_token(token))

    async def stop(self, deadline: float) -> None:
        """Take no more requests, finish those in flight within `deadline` seconds, and remove the socket.

        Streams end with a comment, waiting requests with 503. Requests that take longer are cancelled. No effect when not
        running.
        """
        loop = asyncio.get_running_loop()
        until, stalled_until = loop.time() + deadline, loop.time() + min(deadline, STALLED_GRACE)
        self._close_listeners()
        self._draining.set()
        while (self.connections or self.requests) and loop.time() < until:
            if loop.time() >= stalled_until:
                self._cut([connection for connection in self.connections if connection.stalled])
            await asyncio.sleep(_POLL)
        await self._cut_all()
        self._foreign_attempts.flush(everything=True)

    @property
    def connections(self) -> list[ApiConnection]:
        """The open connections of all listeners."""
        return [connection for one in self._listeners for connection in one.state.connections]

    @property
    def requests(self) -> "list[asyncio.Task[None]]":
        """The requests in progress."""
        return [task for one in self._listeners for task in one.state.requests]

    async def listen(self, application: Application, sock: socket.socket) -> Listener:
        """Accept on `sock`, which listens already, until `stop`, or until the listener is closed."""
        state = ListenerState(
            application,
            self._foreign_attempts,
            timeouts=self._timeouts,
            socket_group=self._socket_group,
        )
        loop = asyncio.get_running_loop()
        listener = Listener(state, await loop.create_server(state.connection, sock=sock, backlog=BACKLOG))
        self._listeners.append(listener)
        return listener

    @property
    def application(self) -> ApiApp:
        """The operations, without a check of who asks."""
        return self._app

    @property
    def draining(self) -> Draining:
        """Set when the daemon drains."""
        return self._draining

    @property
    def max_body(self) -> int:
        """Bytes of one request body."""
        return self._max_body

    def _close_listeners(self) -> None:
        if self._unix is not None:
            self._unix.remove()
        for listener in self._listeners:
            listener.close()
        if self._unix is not None:
            self._unix.socket.close()
        self._unix = None

    def _cut(self, connections: list[ApiConnection]) -> None:
        for connection in connections:
            connection.abort()

    async def _cut_all(self) -> None:
        """Close connections and cancel requests left at the deadline, so that the daemon can continue to its last commit."""
        left = self.connections
        tasks = self.requests
        if left or tasks:
            event(
                logger, logging.WARNING, "requests cut off at the deadline", connections=len(left), requests=len(tasks)
            )
        self._cut(left)
        await asyncio.sleep(0)  # the transports notify their connections, so that no task tries to respond
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
