"""Access over TCP: a client needs the token and our own address as `Host`, and must not be a web page.

On the Unix socket the file's mode and the peer credentials of the kernel are the boundary. A TCP port on loopback is
open to every user and every browser of the machine: the token keeps users out, the checks of `Host` and `Origin` keep
out web pages, even those whose name was rebound to 127.0.0.1.
"""

import hmac
from collections.abc import Coroutine
from typing import Any, Final

from aghbus.daemon.api.http.errors import error_body
from aghbus.daemon.api.http.exchange import Application, Exchange

MIN_TOKEN_CHARACTERS: Final = 16
"""Shorter ones can be guessed over a socket that answers ten thousand times a second."""


class LoopbackGuard:
    """An application in front of another one: it answers 401 and 403 itself, and passes on the rest."""

    def __init__(self, application: Application, *, token: str, host: str, port: int) -> None:
        """`host` and `port` are the listening address; `localhost` is accepted as its name too."""
        self._application = application
        self._token = token.encode()
        name = f"[{host}]" if ":" in host else host
        self._authorities = frozenset({f"{name}:{port}".encode(), f"localhost:{port}".encode()})

    def __call__(self, exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        """Serve one request."""
        problem = self._problem(exchange)
        if problem is not None:
            exchange.respond(403, error_body("forbidden", *problem))
        elif not self._knows_token(exchange):
            message = "authorization: the bearer token is missing or wrong"
            body = error_body("unauthorized", message, "see api.token_file")
            exchange.respond(401, body, [(b"www-authenticate", b"Bearer")])
        else:
            return self._application(exchange)
        return None

    def _problem(self, exchange: Exchange) -> tuple[str, str] | None:
        hosts = exchange.headers.get(b"host", ())
        if len(hosts) != 1 or hosts[0].lower() not in self._authorities:
            return "host: is not the address that this API listens on", "call it by the address of api.tcp"
        if b"origin" in exchange.headers:  # only browsers send it, and aghbus has no web page
            return "origin: web pages may not call this API", "leave the Origin header out"
        return None

    def _knows_token(self, exchange: Exchange) -> bool:
        given = exchange.headers.get(b"authorization", ())
        if len(given) != 1:
            return False
        scheme, _, token = given[0].partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._token)
