"""The local API: opening the console, a listener for a browser on this machine (docs/console.md)."""

from typing import Annotated

from msgspec import Meta

from aghbus.protocol.api.base import RequestModel, ResponseModel


class ConsoleRequest(RequestModel):
    """How the console is opened."""

    write: bool = False  # the page may act, not only read
    # of its listener on 127.0.0.1; null: that of the console which is open, else a free one
    port: Annotated[int, Meta(ge=1, le=65535)] | None = None


class ConsoleResponse(ResponseModel):
    """An open console, and a ticket that admits one browser tab."""

    host: str  # a loopback address
    port: int  # that it listens on
    ticket: str  # is exchanged for a token once
    expires_in: float  # seconds that the ticket is good for
    write: bool  # the page may act, not only read
