"""An envelope that arrived, as a message of a format: noted as crossed, and in the format's log."""

from collections.abc import Iterator, Mapping, Sequence
from typing import Any, Final, NamedTuple

import msgspec

from aghbus.daemon.artifacts.store import Artifacts, Unreachable
from aghbus.daemon.bridge.adapters import Formats, agents
from aghbus.daemon.bridge.format_log import keep_record
from aghbus.daemon.bridge.large_messages import fetch
from aghbus.daemon.jetstream.api import PREFIX
from aghbus.daemon.state.context import Core
from aghbus.protocol.adapters.attachments import not_fetched
from aghbus.protocol.adapters.model import Agents, Arrival, Finding, Handed, Place
from aghbus.protocol.api.bridge import BridgeMessage, Format
from aghbus.protocol.envelope import Envelope, parse
from aghbus.protocol.errors import ProtocolError
from aghbus.protocol.lifecycle import WorkView
from aghbus.store.engine.transaction import Transaction
from aghbus.store.tables import bridge_messages as bridge
from aghbus.store.tables import works
from aghbus.store.tables.bridge_messages import Kept, StoreMemory

_PORTION_BYTES: Final = (
    262_144  # ours, of envelopes turned into messages in one job: some milliseconds, or one large one
)


class Arrived(NamedTuple):
    """A stored envelope, read again, with the message that was fetched for it and why one could not be."""

    kept: Kept
    envelope: Envelope
    carried: Any = None
    findings: tuple[Finding, ...] = ()


def _parsed(kept: Kept) -> Envelope | None:
    """The envelope of stored bytes. It was fresh when it came: its own time is the one to read it at."""
    times = msgspec.json.decode(kept.raw, type=_Times)
    now = times.ts if times.expires_at is None else min(times.ts, times.expires_at - 1)
    try:
        return parse(kept.raw, now)
    except ProtocolError:
        return None  # written by a version with other rules


def portions(arrived: Sequence[Arrived]) -> Iterator[list[Arrived]]:
    """`arrived` in order, as much at a time as one transaction may read without holding up the daemon."""
    portion: list[Arrived] = []
    size = 0
    for item in arrived:
        if portion and size + len(item.kept.raw) > _PORTION_BYTES:
            yield portion
            portion, size = [], 0
        portion.append(item)
        size += len(item.kept.raw)
    if portion:
        yield portion


class Arrivals:
    """Reads stored envelopes again, and turns them into messages inside a transaction."""

    def __init__(self, core: Core, formats: Formats, artifacts: Artifacts) -> None:
        self._core = core
        self._formats = formats
        self._artifacts = artifacts

    async def read(self, name: str, kept: Kept) -> Arrived | None:
        """The envelope, with the message of format `name` that it refers to where it carries none. None when it can no longer
        be read.

        Raises Unreachable: nothing is known of that message, which a moment later may be had. That the server refuses us
        the artifact store is a finding, since it lasts.
        """
        envelope = _parsed(kept)
        if envelope is None:
            return None
        try:
            message, findings = await fetch(self._artifacts, name, envelope.extensions())
        except Unreachable as error:
            if not self._core.denied.refuses(PREFIX, self._core.clock.monotonic()):
                raise
            message, findings = None, (not_fetched(error.message),)
        return Arrived(kept, envelope, message, findings)

    def is_ours(self, kept: Kept, kinds: frozenset[str]) -> bool:
        """Whether our agent may get it: directed to us, or said to everybody, or by which our daemon ended work that nobody
        answered; never what the lifecycle refused."""
        if kept.kind not in kinds or kept.outcome in ("ignored", "rejected"):
            return False
        if kept.direction != "in":
            return bool(kept.own_end)
        return kept.recipient in self._core.identities or (
            kept.recipient is None and kept.kind in ("say", "capability")
        )

    def hand(
        self, tx: Transaction, name: Format, arrived: Arrived, known: Mapping[str, Agents], now: int | None = None
    ) -> BridgeMessage | None:
        """The message for our agent, noted as arrived; None when the envelope says nothing to agents of this format.

        `known` is the agent map by channel, `now` Unix seconds (None: the clock).
        """
        kept = arrived.kept
        work = None
        if kept.work_id is not None:
            work = works.load(tx, kept.workspace_id, kept.channel, kept.work_id)
        handed = self._handed(tx, name, arrived, work, known, now)
        if handed is None or handed.message is None:
            return None
        bridge.remember(
            tx,
            kept,
            name,
            "in",
            message=handed.message,
            foreign_id=handed.foreign_id,
            scope=handed.scope,
            native=handed.native,
        )
        if handed.record is not None:
            keep_record(
                tx,
                name,
                "in",
                handed.record,
                at_ms=kept.received_ms,
                seq=kept.seq,
                message_id=handed.foreign_id,
                answers=not kept.own_end,  # nobody answered: the question's own time to live goes on
            )
        return BridgeMessage(
            seq=kept.seq,
            format=name,
            message=handed.message,
            findings=[*arrived.findings, *handed.findings],
            native=handed.native,
            envelope_id=kept.message_id,
            kind=kept.kind,
            sender=arrived.envelope.sender,
            trust=kept.trust,
            channel=kept.channel,
            work_id=kept.work_id,
            work_state=kept.state_after if work is None else work.state,
            work_role=None if work is None else works.role(tx, work.workspace_id, work.channel, work.work_id),
        )

    def _handed(
        self,
        tx: Transaction,
        name: str,
        arrived: Arrived,
        work: WorkView | None,
        known: Mapping[str, Agents],
        now: int | None,
    ) -> Handed | None:
        """The message as the adapter makes it, from the work as it was after the envelope."""
        core, kept = self._core, arrived.kept
        if work is not None and kept.state_after is not None:
            work = msgspec.convert({**msgspec.structs.asdict(work), "state": kept.state_after}, type(work))
        arrival = Arrival(envelope=arrived.envelope, work=work, outcome=kept.outcome, carried=arrived.carried)
        us = core.identities.receiving(arrived.envelope)
        place = Place(
            us=us,
            workspace_id=kept.workspace_id,
            channel=kept.channel,
            now=core.clock.seconds() if now is None else now,
            ttl=core.settings.defaults.directed_ttl,
            agents=known[kept.channel] if us == core.us else agents(core, kept.channel, us),
        )
        memory = StoreMemory(tx, name, kept.workspace_id, kept.channel, us)
        try:
            return self._formats.of(name).hand_out(arrival, place, memory)
        except Exception:  # a defect of ours in one envelope must not stop all that follow it
            core.counters.add("internal_errors")
            core.log.exception("an envelope could not be handed out format=%s seq=%d", name, kept.seq)
            return None


class _Times(msgspec.Struct):
    ts: int
    expires_at: int | None = None
