"""Tokens of leases: that of the inbox, of workers and of sessions of agent hosts name who holds a message, and since when.

Any other text is a token, too (`inbox.LEASE`): then neither is known.
"""

import re
from typing import Final, NamedTuple

ENTROPY_BYTES: Final = 8
_TOKEN: Final = re.compile(r"lease_([A-Za-z0-9.-]{1,64})_([0-9a-f]{1,12})_[0-9a-f]{16}")


class Holder(NamedTuple):
    """Who holds a message, since Unix millisecond `since_ms`."""

    name: str
    since_ms: int


def lease_token(holder: str, now_ms: int, entropy: bytes) -> str:
    """A token for leases of `holder` (letters, digits, `.` and `-`) from now on; ENTROPY_BYTES random bytes."""
    return f"lease_{holder}_{now_ms:x}_{entropy.hex()}"


def holder_of(token: str | None) -> Holder | None:
    """What a token says of its holder; None when it says nothing."""
    found = None if token is None else _TOKEN.fullmatch(token)
    return None if found is None else Holder(found[1], int(found[2], 16))
