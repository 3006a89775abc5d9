"""The console closes its listener when no tab uses it."""

import asyncio
import socket
from pathlib import Path

from aghbus.daemon.console.console import Console
from aghbus.daemon.console.sessions import TICKET_SECONDS
from aghbus.host.locations import Locations
from aghbus.protocol.api.console import ConsoleRequest
from tests.support.api_harness import serving
from tests.support.natsutil import wait_until


class Hand:
    """A clock that only the test moves."""

    now = 1_800_000_000.0

    def __call__(self) -> float:
        return self.now


def refuses(port: int) -> bool:
    try:
        socket.create_connection(("127.0.0.1", port), 5).close()
    except ConnectionRefusedError:
        return True
    return False


async def test_an_unused_console_closes_its_listener_and_opens_again(tmp_path: Path) -> None:
    locations = Locations("ops", state_root=str(tmp_path), socket_dir=str(tmp_path), config_dir=str(tmp_path))
    clock = Hand()
    async with serving(tmp_path / "ops.sock") as api, asyncio.timeout(20):
        console = Console(api.server, locations, now=clock, look_every=0.01)
        port = (await console.open(ConsoleRequest())).port
        clock.now += TICKET_SECONDS - 1
        assert not refuses(port)  # its ticket is still good
        clock.now += 2
        await wait_until(lambda: refuses(port), what="the end of the listener")
        again = await console.open(ConsoleRequest())
        assert not refuses(again.port)
        console.stop()
