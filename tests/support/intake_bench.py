"""A real intake over a real store, without a broker."""

import json
import time
from collections.abc import AsyncIterator
from contextlib import asynccontextmanager
from pathlib import Path
from typing import Any

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.config.settings import Settings
from aghbus.daemon.discovery.discovery import Discovery
from aghbus.daemon.nats.carrier import CoreCarrier
from aghbus.daemon.nats.events import Settlement
from aghbus.daemon.nats.link import InboundMessage, Link
from aghbus.daemon.receive.intake import Intake
from aghbus.daemon.send.deadlines import Deadlines
from aghbus.daemon.send.publisher import Publisher
from aghbus.daemon.state.context import Core
from aghbus.daemon.state.presence import Roster
from aghbus.daemon.state.rate_limits import _BYTES
from aghbus.protocol.envelope import Envelope
from aghbus.protocol.identifiers import subject_for
from aghbus.protocol.trust.keys import SigningKey
from aghbus.protocol.trust.proof import EnvelopeSigner
from aghbus.store.engine.database import Store
from tests.support.links import no_broker

FRIEND = EnvelopeSigner(SigningKey(bytes(range(32))), "friend")


OTHER = EnvelopeSigner(SigningKey(bytes(range(1, 33))), "other")


class Settled(Settlement):
    """A stream's message, which notes what became of it."""

    def __init__(self) -> None:
        self.said = ""

    def ack(self) -> None:
        self.said = "ack"

    def nak(self, delay: float) -> None:
        self.said = "nak"


class Bench:
    """A real intake over a real store, without a broker: what arrives is offered and worked off by the test."""

    def __init__(self, core: Core, intake: Intake, store: Store) -> None:
        self.core = core
        self.intake = intake
        self.store = store
        self._number = 0

    async def offer(self, document: dict[str, Any], settlement: Settlement | None = None, reply: str = "") -> None:
        subject = subject_for("ws_local", "default", document["to"])
        self.intake.offer(InboundMessage(subject, json.dumps(document).encode(), reply, None, settlement))
        while self.intake.depth:
            await self.intake._work_queue_off()

    async def heard(self) -> None:
        """Until what was heard is committed."""
        self.intake._discovery.heard.flush()
        await self.store.write(lambda tx: None)

    def say(self, sender: str, **fields: Any) -> dict[str, Any]:
        self._number += 1
        return {
            "protocol": "agh-network/v0",
            "id": f"msg_{self._number}",
            "workspace_id": "ws_local",
            "kind": "say",
            "channel": "default",
            "surface": "thread",
            "thread_id": "thread_one",
            "from": sender,
            "to": "ops",
            "ts": int(time.time()),
            "body": {"text": "hello"},
            **fields,
        }

    def signed(self, signer: EnvelopeSigner, **fields: Any) -> dict[str, Any]:
        return signer(self.say(signer.handle, **fields))

    def forged(self, sender: str, **fields: Any) -> dict[str, Any]:
        """Under the name and key of `sender`'s last proof, with a signature that is not of this envelope."""
        document = self.say(sender, **fields)
        return {**document, "proof": self.signed(FRIEND)["proof"]}

    def note_verified(self) -> list[str]:
        """The ids of envelopes whose proofs are checked from now on."""
        asked: list[str] = []
        verify = self.core.flood._verifier

        def noted(envelope: Envelope) -> None:
            asked.append(envelope.id)
            verify(envelope)

        self.core.flood._verifier = noted
        return asked

    async def senders(self, direction: str = "in") -> list[str]:
        rows = await self.store.reader.execute_fetchall(
            "SELECT sender FROM envelopes WHERE direction = ? ORDER BY seq", [direction]
        )
        return [row[0] for row in rows]

    async def count(self, sql: str) -> int:
        ((number,),) = await self.store.reader.execute_fetchall(sql)
        return int(number)


class Still(Clock):
    """No time passes in which a budget could fill up again, however slow the machine is."""

    def monotonic(self) -> float:
        return 1000.0


@asynccontextmanager
async def bench(folder: Path, clock: Clock | None = None, **settings: Any) -> AsyncIterator[Bench]:
    store = await Store.open(folder / "store.db", synchronous="normal")
    link = Link(no_broker, name="test")
    core = Core(Settings(name="ops", peer_id="ops", **settings), clock or Clock(), store, link, Roster(30.0), 0)
    publisher = Publisher(core, CoreCarrier(link, "_INBOX.test"))
    intake = Intake(core, Discovery(core, "0", publisher.peer_is_back), publisher, Deadlines(core, publisher))
    try:
        yield Bench(core, intake, store)
    finally:
        await store.close()


def spent_by(forgery: dict[str, Any]) -> float:
    """The tokens that this costs, rounded up so far that no shorter name or number makes it another count."""
    return 1 + (len(json.dumps(forgery)) + 4) / _BYTES
