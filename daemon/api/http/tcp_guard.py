"""Who may come in over TCP: whoever has the token, calls us by our own name, and is no web page.

On the Unix socket the file's mode and the kernel's word about the other end are the boundary. A TCP port on loopback is
open to every user and every browser of the machine: the token keeps users out, the checks of `Host` and `Origin` keep
out web pages, even those whose name was rebound to 127.0.0.1.
"""

import hmac
from typing import Final

from aghbus.daemon.api.http.asgi import App, Receive, Scope, Send, header, reply
from aghbus.daemon.api.http.errors import error_body

MIN_TOKEN_CHARACTERS: Final = 16
"""Ours: shorter ones can be guessed over a socket that answers ten thousand times a second."""


class LoopbackGuard:
    """An ASGI application in front of another one: it answers 401 and 403 itself, and passes on the rest."""

    def __init__(self, app: App, *, token: str, host: str, port: int) -> None:
        """`host` and `port` are what we listen on; `localhost` is taken as a name for it too."""
        self._app = app
        self._token = token.encode()
        name = f"[{host}]" if ":" in host else host
        self._authorities = frozenset({f"{name}:{port}".encode(), f"localhost:{port}".encode()})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        """Serve one request (ASGI 3)."""
        problem = self._problem(scope)
        if problem is not None:
            await reply(send, 403, error_body("forbidden", *problem))
        elif not self._knows_token(scope):
            body = error_body(
                "unauthorized", "authorization: the bearer token is missing or wrong", "see api.token_file"
            )
            await reply(send, 401, body, [(b"www-authenticate", b"Bearer")])
        else:
            await self._app(scope, receive, send)

    def _problem(self, scope: Scope) -> tuple[str, str] | None:
        hosts = header(scope, b"host")
        if len(hosts) != 1 or hosts[0].lower() not in self._authorities:
            return "host: is not the address that this API listens on", "call it by the address of api.tcp"
        if header(scope, b"origin"):  # only browsers send it, and no page of ours exists
            return "origin: web pages may not call this API", "leave the Origin header out"
        return None

    def _knows_token(self, scope: Scope) -> bool:
        given = header(scope, b"authorization")
        if len(given) != 1:
            return False
        scheme, _, token = given[0].partition(b" ")
        return scheme.lower() == b"bearer" and hmac.compare_digest(token.strip(), self._token)
