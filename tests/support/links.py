"""Links to test brokers, or to none, and a subscriber."""

import asyncio
import contextlib
from collections.abc import AsyncIterator, Callable

from aghbus.daemon.broker.embedded import BrokerError
from aghbus.daemon.nats.link import InboundMessage, Link
from aghbus.daemon.nats.options import NatsOptions
from tests.support.natsutil import NatsServer


def to(*servers: NatsServer) -> Callable[[], asyncio.Future[NatsOptions]]:
    """A resolver for `servers`, asked anew each time, as the link does."""

    def resolve() -> asyncio.Future[NatsOptions]:
        answer: asyncio.Future[NatsOptions] = asyncio.get_running_loop().create_future()
        answer.set_result(NatsOptions(servers=tuple(server.url for server in servers)))
        return answer

    return resolve


@contextlib.asynccontextmanager
async def up(link: Link) -> AsyncIterator[Link]:
    link.start()
    try:
        assert await link.wait_up(15), link.last_error
        yield link
    finally:
        await link.close(2)


async def no_broker() -> NatsOptions:
    """A resolver that finds no broker."""
    raise BrokerError("resolve", "this test has no broker", "")


class Inbox:
    """A subscriber that keeps what it gets."""

    def __init__(self) -> None:
        self.messages: list[InboundMessage] = []

    def __call__(self, message: InboundMessage) -> None:
        self.messages.append(message)

    @property
    def texts(self) -> list[bytes]:
        return [message.data for message in self.messages]
