"""The cost of a message from the connection's bytes to the subscriber: nats-py's parser, queue and task beside our parser.

    python -m bench.micro.nats_parse --rounds 9 --messages 20000

Both ways in turn in one process, without a broker; the bytes come in pieces of 32 KiB, as the library reads them. Medians; only
the ratios mean anything. See docs/adr/0007-messages-parsed-by-ourselves.md.
"""

from __future__ import annotations

import argparse
import asyncio
import gc
import statistics
import time
from typing import TYPE_CHECKING, Any

import uvloop
from nats.aio.client import Client
from nats.aio.subscription import Subscription

from aghbus.daemon.nats.client import NatsClient
from aghbus.daemon.nats.events import InboundMessage, LinkEvent
from aghbus.daemon.nats.subscription import Subscription as OurSubscription

if TYPE_CHECKING:
    from collections.abc import Callable

    from nats.aio.msg import Msg

_PIECE = 32_768
_SUBJECT = b"agh.network.v0.ws_local.default.peer.b3BzQDAxMjM0NTY3ODlhYmNkZWY"
_REPLY = b"_INBOX.b3BzQDAxMjM0NTY3ODlhYmNkZWY.ack.0123456789abcdef01234567"
_HEADERS = b"NATS/1.0\r\nNats-Msg-Id: ws_local ops msg_1\r\n\r\n"


def lines(size: int, count: int, *, headers: bool) -> list[bytes]:
    """`count` messages of `size` bytes, each with its own reply subject as envelopes have, in pieces."""
    payload = b"x" * size
    if headers:
        head = len(_HEADERS), len(_HEADERS) + size
        parts = [
            b"HMSG %b 7 %b.%d %d %d\r\n%b%b\r\n" % (_SUBJECT, _REPLY, seq, *head, _HEADERS, payload)
            for seq in range(count)
        ]
    else:
        parts = [b"MSG %b 7 %b.%d %d\r\n%b\r\n" % (_SUBJECT, _REPLY, seq, size, payload) for seq in range(count)]
    whole = b"".join(parts)
    return [whole[at : at + _PIECE] for at in range(0, len(whole), _PIECE)]


async def _ignored(_error: Exception) -> None:
    pass


def through_the_library(received: list[InboundMessage]) -> tuple[Client, Callable[[], None]]:
    """As it was: a queue and a task for each subscription, which calls our function."""

    async def deliver(message: Msg) -> None:
        received.append(InboundMessage(message.subject, message.data, message.reply, message.headers))

    client = Client()
    handle = Subscription(client, 7, "t", cb=deliver)
    client._subs[7] = handle
    handle._start(_ignored)  # type: ignore[no-untyped-call] # the library's gap
    return client, handle._stop_processing


def direct(received: list[InboundMessage]) -> tuple[Client, Callable[[], None]]:
    """As it is: the parser calls the subscription."""

    def report(event: LinkEvent) -> None:
        raise AssertionError(event)

    client = NatsClient(require_tls=False)
    subscription = OurSubscription("t", received.append, report, lambda _subscription: None)
    client.receivers[7] = subscription
    return client, lambda: None


WAYS: dict[str, Any] = {"library": through_the_library, "direct": direct}


async def measure(way: str, pieces: list[bytes], count: int) -> float:
    """Microseconds of a message."""
    received: list[InboundMessage] = []
    client, end = WAYS[way](received)
    gc.collect()
    started = time.process_time()
    for piece in pieces:
        await client._ps.parse(piece)
        await asyncio.sleep(0)  # as reading does: the library's tasks have their turn
    while len(received) < count:
        await asyncio.sleep(0)
    taken = time.process_time() - started
    end()
    await asyncio.sleep(0)
    return taken / count * 1_000_000


async def run(rounds: int, messages: int) -> None:
    """Prints a line for each kind of message."""
    for size, headers, count in ((600, False, messages), (600, True, messages), (100_000, False, messages // 50)):
        pieces = lines(size, count, headers=headers)
        found: dict[str, list[float]] = {way: [] for way in WAYS}
        for _ in range(rounds):
            for way in WAYS:
                found[way].append(await measure(way, pieces, count))
        medians = {way: statistics.median(each) for way, each in found.items()}
        shown = ", ".join(
            f"{way} {medians[way]:.2f} µs ({min(each):.2f}-{max(each):.2f})" for way, each in found.items()
        )
        ratio = medians["direct"] / medians["library"]
        print(f"{size} bytes{' and headers' if headers else ''}: {shown}, ratio {ratio:.2f}", flush=True)


def main() -> None:
    """The command line."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--messages", type=int, default=20_000)
    args = parser.parse_args()
    with asyncio.Runner(loop_factory=uvloop.new_event_loop) as runner:
        runner.run(run(args.rounds, args.messages))


if __name__ == "__main__":
    main()
