"""How long clients may take."""

from dataclasses import dataclass
from typing import Final


@dataclass(frozen=True, slots=True)
class HttpTimeouts:
    """Seconds. A body of a megabyte takes a millisecond on one machine; a client that needs longer than `body` counts as stuck."""

    head: float = 10.0  # from the first byte of a request to the end of its headers
    idle: float = 75.0  # a connection kept alive without a request
    body: float = 30.0  # from the headers to the end of the body
    silence: float = 15.0  # on an event stream before a comment; the figure that the HTML standard recommends


TIMEOUTS: Final = HttpTimeouts()
