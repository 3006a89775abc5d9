"""What the page sends to its listener, and gets from it, beside the API."""

from typing import Annotated

from msgspec import Meta

from aghbus.protocol.api.base import RequestModel, ResponseModel


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
