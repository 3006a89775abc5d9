"""How daemon and client prove to each other on TCP that they know the token, without sending it (docs/api.md, "Access").

    client  Authorization: Aghbus-Mutual nonce=C              to any path, without a body
    daemon  401, WWW-Authenticate: Aghbus-Mutual nonce=D, proof=HMAC("daemon")
    client  Authorization: Aghbus-Mutual proof=HMAC("client")  with each request on this connection

HMAC is HMAC-SHA256 in hex, keyed by the token, over the lines `aghbus-api/v1`, the side, the daemon's address as
`HOST:PORT` and both nonces. The address keeps another process from passing the proofs of a daemon on another port on.
"""

import hmac
import re
from typing import Final, Literal

SCHEME: Final = "Aghbus-Mutual"
NONCE_BYTES: Final = 16
_NONCE: Final = re.compile(r"[0-9a-f]{32}")


def is_nonce(text: str) -> bool:
    """Whether `text` is a nonce: NONCE_BYTES in hex."""
    return _NONCE.fullmatch(text) is not None


def proof(token: str, side: Literal["daemon", "client"], address: tuple[str, int], client: str, daemon: str) -> str:
    """The proof of one side, in hex. `address` is the daemon's numeric host and port, `client` and `daemon` are the nonces."""
    lines = ("aghbus-api/v1", side, f"{address[0]}:{address[1]}", client, daemon)
    return hmac.new(token.encode(), "\n".join(lines).encode(), "sha256").hexdigest()


def challenge_of(value: str) -> tuple[str, str] | None:
    """Nonce and proof of a WWW-Authenticate header of this scheme; None for any other."""
    found = re.fullmatch(rf"{SCHEME} nonce=([0-9a-f]{{32}}), proof=([0-9a-f]{{64}})", value)
    return None if found is None else (found[1], found[2])
