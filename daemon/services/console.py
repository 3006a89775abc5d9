"""Opening the console, which `daemon/console` serves."""

from collections.abc import Awaitable, Callable

from aghbus.protocol.api.console import ConsoleRequest, ConsoleResponse
from aghbus.protocol.base.errors import Unavailable

Opener = Callable[[ConsoleRequest], Awaitable[ConsoleResponse]]


class ConsoleService:
    """The operation of the API. `opener` is set once the API has started."""

    opener: Opener | None = None

    async def open_console(self, request: ConsoleRequest) -> ConsoleResponse:
        """Open the console, if it is not open, and make a ticket."""
        if self.opener is None:
            raise Unavailable("the daemon is starting", hint="try again")
        return await self.opener(request)
