"""Acknowledging commits to the sender's daemon (protocol/delivery/acks.py)."""

from aghbus.daemon.base.background import BackgroundTasks
from aghbus.daemon.base.metrics import Counters
from aghbus.daemon.nats.link import Link, LinkError
from aghbus.daemon.receive.decider import Outcome
from aghbus.daemon.state.identity import Identity
from aghbus.protocol.delivery.acks import encode_ack, encode_signed_ack, may_answer
from aghbus.protocol.effects import Quarantine


class Acknowledger:
    """Publishes one acknowledgement for each message directed at us whose sender's daemon asked for it."""

    def __init__(self, link: Link, identity: Identity, background: BackgroundTasks, counters: Counters) -> None:
        """`background` runs the acknowledgements that have to wait for the connection."""
        self._link = link
        self._identity = identity
        self._background = background
        self._counters = counters

    def acknowledge(self, outcome: Outcome) -> None:
        """Acknowledge the commit of a message, or its final refusal.

        A refusal goes to a handle only for verified messages: otherwise a forged copy would make us refuse the real one.
        """
        envelope, reply, ack = outcome.message.envelope, outcome.message.reply, outcome.ack
        if ack is None or envelope is None or envelope.to is None or not may_answer(reply):
            return
        if envelope.to not in self._identity or envelope.sender in self._identity:
            return  # not for us; or our own, or of another daemon with our id, which is not committed here
        if "@" in envelope.sender and any(type(one) is Quarantine and one.trust is None for one in outcome.effects):
            return
        self._counters.add("acks.sent")
        own_id, signer = envelope.to, self._identity.signer_of(envelope.to)
        if signer is None:
            self._publish(reply, encode_ack(ack))
        else:
            self._publish(reply, encode_signed_ack(ack, sender=own_id, to=envelope.sender, signer=signer))

    def _publish(self, reply: str, raw: bytes) -> None:
        try:
            if self._link.publish_nowait(reply, raw, flush=False):
                return
        except LinkError:
            self._counters.add("acks.unsent")  # the sender's daemon asks again
            return
        if self._background.busy:
            self._counters.add("acks.unsent")
        else:
            self._background.spawn(self._publish_later(reply, raw))

    async def _publish_later(self, reply: str, raw: bytes) -> None:
        try:
            await self._link.publish(reply, raw)
        except LinkError:
            self._counters.add("acks.unsent")
