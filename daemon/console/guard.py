"""What a browser may ask for: the files of the page, a session for a ticket, and the APIs of this user's daemons.

No cookie: those of 127.0.0.1 go to every port, so the tab sends its token in a header. `Host` and `Origin` must be those of
the page itself, so that neither another page nor a name that was rebound to 127.0.0.1 gets anything.
"""

import re
from collections.abc import Coroutine
from typing import Any, Final

import msgspec

from aghbus.daemon.api import parsing
from aghbus.daemon.api.http.body import read_body
from aghbus.daemon.api.http.cancellation import Draining
from aghbus.daemon.api.http.errors import HttpRefusal, error_body, incident, request_error_body, status_of
from aghbus.daemon.api.http.exchange import Application, ClientDisconnected, Exchange
from aghbus.daemon.api.http.timeouts import TIMEOUTS
from aghbus.daemon.console.messages import ConsoleSession, ConsoleTicket
from aghbus.daemon.console.neighbors import Neighbors
from aghbus.daemon.console.pages import Pages
from aghbus.daemon.console.sessions import Session, Sessions
from aghbus.protocol.base.errors import RequestError

_HOST: Final = re.compile(rb"(?:127\.0\.0\.1|localhost)(?::[0-9]{1,5})?")  # another port: `ssh -L`
_OF_INSTANCE: Final = re.compile(r"/instances/([^/]+)(/.*)")
_READING: Final = frozenset({"/v1/whois"})  # POST, because they have a body
_NEVER: Final = frozenset({"/v1/console"})  # a page opens no other page with more rights
_MAX_BODY: Final = 4_096  # of a request for a session
_NO_SESSION: Final = (
    "unauthorized",
    "authorization: this tab has no session, or it has ended",
    "open a new one: aghctl console",
)


class ConsoleGuard:
    """The application of the console's listener."""

    def __init__(
        self,
        application: Application,
        neighbors: Neighbors,
        sessions: Sessions,
        draining: Draining,
        *,
        instance: str,
        port: int,
    ) -> None:
        """`application` is the API of this daemon, called `instance`; `port` is that of the listener."""
        self._application = application
        self._neighbors = neighbors
        self._sessions = sessions
        self._draining = draining
        self._instance = instance
        self._port = port
        self._pages = Pages()

    def __call__(self, exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        """Serve one request."""
        try:
            _check_origin(exchange)
            if self._pages.serve(exchange):
                return None
            if exchange.path == "/session":
                return self._guarded(exchange, self._begin(exchange))
            session = self._session(exchange)
            if exchange.path == "/instances" and exchange.method == "GET":
                return self._guarded(exchange, self._list(exchange))
            if (found := _OF_INSTANCE.fullmatch(exchange.path)) is None:
                raise HttpRefusal(404, "unknown_path", f"{exchange.path}: no such path", "see docs/console.md")
            name, path = found.groups()
            _check_rights(exchange.method, path, session)
            exchange.path = path
            if name == self._instance:
                return self._application(exchange)
            target = path.encode() + (b"?" + exchange.query if exchange.query else b"")
            return self._guarded(exchange, self._neighbors.forward(exchange, name, target, self._draining))
        except HttpRefusal as error:
            _refuse(exchange, error)
        return None

    async def _begin(self, exchange: Exchange) -> None:
        """Exchange a ticket for a token."""
        if exchange.method != "POST":
            raise HttpRefusal(405, "method_not_allowed", "session: takes POST", headers=[(b"allow", b"POST")])
        request = parsing.request(await read_body(exchange, limit=_MAX_BODY, seconds=TIMEOUTS.body), ConsoleTicket)
        begun = self._sessions.begin(request.ticket, self._port)
        if begun is None:
            raise HttpRefusal(401, "unauthorized", "ticket: is unknown, used, or too old", "get one: aghctl console")
        token, session = begun
        answer = ConsoleSession(token=token, instance=self._instance, write=session.write)
        exchange.respond(201, msgspec.json.encode(answer))

    async def _list(self, exchange: Exchange) -> None:
        exchange.respond(200, msgspec.json.encode(await self._neighbors.list()))

    def _session(self, exchange: Exchange) -> Session:
        given = exchange.headers.get(b"authorization", ())
        scheme, _, token = given[0].decode("latin-1").partition(" ") if len(given) == 1 else ("", "", "")
        session = self._sessions.find(token.strip(), self._port) if scheme.lower() == "bearer" else None
        if session is None:
            raise HttpRefusal(401, *_NO_SESSION)
        return session

    async def _guarded(self, exchange: Exchange, serving: Coroutine[Any, Any, None]) -> None:
        try:
            await serving
        except HttpRefusal as error:
            _refuse(exchange, error)
        except RequestError as error:
            exchange.respond(status_of(error), request_error_body(error))
        except ClientDisconnected:
            pass
        except Exception as error:
            exchange.respond(500, incident(error, exchange.method, exchange.path))


def _check_origin(exchange: Exchange) -> None:
    hosts, origins = exchange.headers.get(b"host", ()), exchange.headers.get(b"origin", ())
    if len(hosts) != 1 or _HOST.fullmatch(hosts[0].lower()) is None:
        raise HttpRefusal(403, "forbidden", "host: is not a name of this machine", "open http://127.0.0.1:PORT/")
    if any(origin.lower() != b"http://" + hosts[0].lower() for origin in origins):
        raise HttpRefusal(403, "forbidden", "origin: other pages may not use the console")
    if any(value not in (b"same-origin", b"none") for value in exchange.headers.get(b"sec-fetch-site", ())):
        if exchange.method == "GET" and exchange.path == "/":
            return  # a link to the page, which itself shows nothing without a session
        raise HttpRefusal(403, "forbidden", "sec-fetch-site: other pages may not use the console")


def _check_rights(method: str, path: str, session: Session) -> None:
    if path in _NEVER:
        raise HttpRefusal(403, "forbidden", f"{path}: is not open to the page", "run aghctl console")
    if method != "GET" and path not in _READING and not session.write:
        hint = "open one that may act: aghctl console --write"
        raise HttpRefusal(403, "forbidden", f"{method} {path}: this console is read-only", hint)


def _refuse(exchange: Exchange, error: HttpRefusal) -> None:
    exchange.respond(error.status, error_body(error.code, error.message, error.hint), error.headers)
