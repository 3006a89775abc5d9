"""Links to test brokers, or to none, and a subscriber."""

import contextlib
from collections.abc import AsyncIterator, Callable, Coroutine

from aghbus.daemon.broker.embedded import BrokerError
from aghbus.daemon.nats.link import InboundMessage, Link
from aghbus.daemon.nats.options import NatsOptions
from tests.support.natsutil import NatsServer

Resolver = Callable[[], Coroutine[None, None, NatsOptions]]


def to(*servers: NatsServer) -> Resolver:
    """A resolver for `servers`, asked anew each time, as the link does."""

    async def resolve() -> NatsOptions:
        return NatsOptions(servers=tuple(server.url for server in servers))

    return resolve


def always(options: NatsOptions) -> Resolver:
    """A resolver whose answer is `options`."""

    async def resolve() -> NatsOptions:
        return options

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
