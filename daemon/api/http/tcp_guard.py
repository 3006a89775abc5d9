"""Access over TCP: a client needs the token and our own address as `Host`, and must not be a web page.

A client proves that it knows the token, after the daemon has proved it (protocol/api/tcp_proof.py), or sends it as a bearer
token.

On the Unix socket the file's mode and the peer credentials of the kernel are the boundary. A TCP port on loopback is
open to every user and every browser of the machine: the token keeps users out, the checks of `Host` and `Origin` keep
out web pages, even those whose name was rebound to 127.0.0.1.
"""

import hmac
import secrets
from collections.abc import Coroutine
from typing import Any, Final

from aghbus.daemon.api.http.errors import error_body
from aghbus.daemon.api.http.exchange import Application, Exchange
from aghbus.protocol.api.tcp_proof import NONCE_BYTES, SCHEME, is_nonce, proof

MIN_TOKEN_CHARACTERS: Final = 32
"""128 bits as hex digits. The daemon proves its token to everybody who asks (`_answer`): shorter ones can be guessed offline."""


class LoopbackGuard:
    """An application in front of another one: it answers 401 and 403 itself, and passes on the rest."""

    def __init__(self, application: Application, *, token: str, host: str, port: int) -> None:
        """`host` and `port` are the listening address; `localhost` is accepted as its name too."""
        self._application = application
        self.change_token(token)
        self._address = (host, port)
        name = f"[{host}]" if ":" in host else host
        self._authorities = frozenset({f"{name}:{port}".encode(), f"localhost:{port}".encode()})

    def change_token(self, token: str) -> None:
        """Take another token from now on; what clients proved with the former one counts no more."""
        self._token = token
        self._proved = f"{SCHEME} {secrets.token_hex(8)}"  # in the session of a connection

    def __call__(self, exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        """Serve one request."""
        problem = self._problem(exchange)
        if problem is not None:
            exchange.respond(403, error_body("forbidden", *problem))
        elif self._is_challenged(exchange):
            self._answer(exchange)
        elif not self._knows_token(exchange):
            message = "authorization: the token is missing or wrong"
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

    def _is_challenged(self, exchange: Exchange) -> bool:
        scheme, value = _authorization(exchange)
        return scheme == SCHEME.lower() and is_nonce(value.removeprefix("nonce="))

    def _answer(self, exchange: Exchange) -> None:
        """Prove that we know the token, and remember what the client must prove on this connection."""
        client, daemon = _authorization(exchange)[1].removeprefix("nonce="), secrets.token_hex(NONCE_BYTES)
        exchange.session[self._proved] = proof(self._token, "client", self._address, client, daemon)
        ours = proof(self._token, "daemon", self._address, client, daemon)
        body = error_body("unauthorized", "authorization: now prove that you know the token", "see docs/api.md")
        exchange.respond(401, body, [(b"www-authenticate", f"{SCHEME} nonce={daemon}, proof={ours}".encode())])

    def _knows_token(self, exchange: Exchange) -> bool:
        scheme, value = _authorization(exchange)
        if scheme == "bearer":
            return hmac.compare_digest(value.encode(), self._token.encode())
        wanted = exchange.session.get(self._proved)
        return scheme == SCHEME.lower() and wanted is not None and hmac.compare_digest(value, f"proof={wanted}")


def _authorization(exchange: Exchange) -> tuple[str, str]:
    """Scheme in lower case and value of the only Authorization header; two empty strings where there is none."""
    given = exchange.headers.get(b"authorization", ())
    if len(given) != 1 or not given[0].isascii():
        return "", ""
    scheme, _, value = given[0].decode("ascii").partition(" ")
    return scheme.lower(), value.strip()
