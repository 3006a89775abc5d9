"""A publisher over a real store, in front of a simulated peer."""

import asyncio
from collections.abc import AsyncIterator, Callable, Sequence
from contextlib import asynccontextmanager
from hashlib import sha256
from pathlib import Path

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.config.settings import RetrySettings, Settings
from aghbus.daemon.nats.carrier import Carried
from aghbus.daemon.nats.link import InboundMessage, Link
from aghbus.daemon.send.publisher import Publisher
from aghbus.daemon.wiring import DaemonParts, Replacements
from aghbus.protocol.agh.delivery.acks import Ack, encode_ack
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.tables import outbox
from aghbus.store.tables.outbox import Outgoing
from tests.support.links import no_broker
from tests.support.makers import BOB, US, say, sending
from tests.support.wiring import daemon_context, daemon_parts


def committed(message_id: str, raw: bytes) -> Ack:
    """The acknowledgement of an envelope with these bytes."""
    return Ack(message_id, "committed", None, sha256(raw).hexdigest())


class Hand(Clock):
    """A clock that only the test moves."""

    def __init__(self) -> None:
        self.now = 1_800_000_000.0

    def millis(self) -> int:
        return int(1000 * self.now)

    def monotonic(self) -> float:
        return self.now


class Up(Link):
    """A link that counts as up, without any server."""

    def __init__(self) -> None:
        super().__init__(no_broker, name="test")
        self.state = "up"


class Wire:
    """A carrier in front of one peer, which listens from copy number `from_copy` on and answers what it gets.

    The broker says of each copy before that that nobody listens. `handing` is called before each copy. A peer that does not
    acknowledge (`acknowledges`) answers nothing.
    """

    def __init__(self, from_copy: float = float("inf"), *, acknowledges: bool = True) -> None:
        self.from_copy = from_copy
        self.acknowledges = acknowledges
        self.copies = 0
        self.got: list[int] = []
        self.batches: list[list[int]] = []
        self.handing: Callable[[int], None] = lambda _copy: None
        self.answered: Callable[[InboundMessage], object] = lambda _message: None

    def hand_over(self, _row: Outgoing) -> bool:
        return False

    async def confirm(self) -> None:
        pass

    async def carry(self, rows: Sequence[Outgoing]) -> Carried:
        self.batches.append([row.seq for row in rows])
        for row in rows:
            self.handing(self.copies)
            listening = self.copies >= self.from_copy
            self.copies += 1
            reply = f"_INBOX.test.{row.seq}"
            if listening:
                self.got += [row.seq] if row.seq not in self.got else []
                if self.acknowledges:
                    self.answered(InboundMessage(reply, encode_ack(committed(row.message_id, row.raw)), "", None))
            else:
                self.answered(InboundMessage(reply, b"", "", {"Status": "503"}))
            await asyncio.sleep(0)
        return Carried([row.seq for row in rows], [])


@asynccontextmanager
async def publishing(
    folder: Path,
    wire: Wire,
    clock: Clock | None = None,
    link: Link | None = None,
    retry_after: float = 0.1,
    ceiling: float = 0.1,
) -> AsyncIterator[tuple[Publisher, DaemonParts]]:
    """The publisher with its two tasks over a real store, in front of a peer that is known to acknowledge, or not to."""
    store = await Store.open(folder / "store.db", synchronous="normal")
    retry = RetrySettings(first=retry_after, ceiling=max(retry_after, ceiling))
    settings = Settings(name="ops", peer_id=US, retry=retry)
    parts = daemon_parts(daemon_context(settings, clock), store, link or Up(), Replacements(carrier=wire))
    parts.presence.note_acknowledging(BOB, wire.acknowledges)
    publisher = parts.publisher
    wire.answered = parts.ack_receiver.receive
    tasks = [asyncio.create_task(main()) for main in (publisher.run, publisher.retry, parts.clock_changes.run)]
    try:
        yield publisher, parts
    finally:
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)
        await store.close()


async def send(publisher: Publisher, parts: DaemonParts, count: int) -> list[int]:
    """So many messages to the peer; their sequences."""
    seqs: list[int] = []
    for _ in range(count):
        envelope = say(sender=US, to=BOB, ts=parts.clock.seconds())

        def job(tx: Transaction) -> list[Outgoing]:
            seq = sending(envelope)(tx).seq  # noqa: B023 - awaited at once
            assert seq is not None
            return outbox.load_queued(tx, seq - 1, 1)

        rows = await parts.store.write(job)
        publisher.enqueue(rows)
        seqs += [row.seq for row in rows]
    return seqs
