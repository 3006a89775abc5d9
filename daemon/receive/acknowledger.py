"""Acknowledging commits to the sender's daemon (protocol/agh/delivery/acks.py)."""

from collections.abc import Iterable
from functools import partial

from aghbus.daemon.base.background import BackgroundTasks
from aghbus.daemon.base.metrics import Counters
from aghbus.daemon.nats.link import Link, LinkError
from aghbus.daemon.receive.received import Outcome
from aghbus.daemon.state.identity import Identity
from aghbus.protocol.agh.delivery.acks import Ack, answer_messages, encode_ack, encode_signed_ack, may_answer
from aghbus.protocol.agh.effects import Quarantine
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.identifiers import subject_for


class Acknowledger:
    """Publishes an acknowledgement for each message directed at us whose sender's daemon asked for it."""

    def __init__(self, link: Link, identity: Identity, background: BackgroundTasks, counters: Counters) -> None:
        """`background` runs the acknowledgements that have to wait for the connection."""
        self._link = link
        self._identity = identity
        self._background = background
        self._counters = counters

    def acknowledge(self, outcomes: Iterable[Outcome]) -> None:
        """Acknowledge the commits of messages, or their final refusals.

        A refusal goes to a handle only for verified messages: otherwise a forged copy would make us refuse the real one.
        """
        signers = self._identity.signers
        acks: dict[tuple[str, str, str], list[tuple[str, Ack]]] = {}  # by inbox, our id and sender
        for outcome in outcomes:
            if (ack := outcome.ack) is None:
                continue
            envelope, reply = outcome.message.envelope, outcome.message.reply
            if envelope is None or not may_answer(reply):
                continue
            own_id, sender = envelope.to, envelope.sender
            if own_id is None or own_id not in signers or sender in signers:
                continue  # not for us; or our own, or of another daemon with our id, which is not committed here
            if "@" in sender and any(type(one) is Quarantine and one.trust is None for one in outcome.effects):
                continue
            inbox, _, token = reply.rpartition(".")
            acks.setdefault((inbox, own_id, sender), []).append((token, ack))
        answers: list[tuple[str, bytes]] = []
        for (inbox, own_id, sender), found in acks.items():
            signer, encode = signers[own_id], encode_ack
            if signer is not None:
                encode = partial(encode_signed_ack, sender=own_id, to=sender, signer=signer)
            answers += answer_messages(inbox, found, encode)
            self._counters["acks.sent"] += len(found)
        if answers:
            self._publish(answers)

    def publish_receipts(self, receipts: Iterable[Envelope]) -> None:
        """Publish receipts that are not stored: they are not repeated, and lost if the connection cannot take them now."""
        raws = [(subject_for(one.workspace_id, one.channel, one.to), one.raw) for one in receipts]
        self._counters["sent.receipt"] += len(raws)
        try:
            sent = self._link.publish_all_nowait(raws)
        except LinkError:
            sent = False
        self._counters.add("receipts.unstored" if sent else "receipts.unsent", len(raws))

    def _publish(self, answers: list[tuple[str, bytes]]) -> None:
        try:
            if self._link.publish_all_nowait(answers):
                return
        except LinkError:
            self._counters.add("acks.unsent", len(answers))  # the sender's daemon asks again
            return
        for reply, raw in answers:
            if self._background.busy:
                self._counters.add("acks.unsent")
            else:
                self._background.spawn(self._publish_later(reply, raw))

    async def _publish_later(self, reply: str, raw: bytes) -> None:
        try:
            await self._link.publish(reply, raw)
        except LinkError:
            self._counters.add("acks.unsent")
