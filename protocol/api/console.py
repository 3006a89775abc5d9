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


class ConsoleTicket(RequestModel):
    """What the page sends to `POST /session` of the console."""

    ticket: Annotated[str, Meta(max_length=256)]  # from the fragment of its URL


class ConsoleSession(ResponseModel):
    """The session of one browser tab."""

    token: str  # for `Authorization: Bearer`
    instance: str  # the daemon that serves the page
    write: bool  # the tab may act, not only read


class ConsoleInstance(ResponseModel):
    """A daemon of the same user on this machine, whose API is below `/instances/NAME`."""

    name: str  # of the instance
    running: bool  # its socket takes connections


class ConsoleInstances(ResponseModel):
    """The daemons that the console shows."""

    instances: list[ConsoleInstance]  # by name
