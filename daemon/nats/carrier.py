"""The carrier of core NATS: brings envelopes from the publisher to the broker, and confirms that the broker has them.

Envelopes are published into the connection's buffer and confirmed together by one PONG. A directed one has a reply subject for the
receiver's commit acknowledgement. The JetStream profile has its own carrier.
"""

import contextlib
from collections.abc import Sequence
from typing import Final, Protocol

import msgspec

from aghbus.daemon.base.failpoints import failpoint
from aghbus.daemon.nats.ack_inboxes import AckInboxes
from aghbus.daemon.nats.link import BadPublish, Link, LinkError, PayloadTooLarge
from aghbus.protocol.agh.delivery.acks import ANSWER_TO
from aghbus.protocol.agh.delivery.order import AFTER_SETTLED
from aghbus.protocol.agh.trust.tags import TAG
from aghbus.store.tables.outbox import Outgoing

_CONFIRM_WAIT: Final = 10.0  # seconds for the broker's PONG; then the link counts as lost


class Carried(msgspec.Struct, frozen=True):
    """The outcome of a batch: the broker has the `published` ones, and will never take the `impossible` ones, each with the reason.

    A message in neither list was not taken now, and may be tried again.
    """

    published: list[int]
    impossible: list[tuple[int, str]]


class Carrier(Protocol):
    """One way to the broker. Raises LinkError when the link is lost on the way: nothing of the batch is certain then."""

    async def carry(self, rows: Sequence[Outgoing]) -> Carried: ...

    def hand_over(self, row: Outgoing) -> bool:
        """Publish a first try without waiting. False: this carrier cannot do that, or not now; `carry` it."""

    async def confirm(self) -> None:
        """Return when the broker has everything that was handed over. Raises LinkError."""


class CoreCarrier:
    """Core NATS. The receivers' commit acknowledgements come to `acks`."""

    def __init__(self, link: Link, acks: AckInboxes) -> None:
        self._link = link
        self._acks = acks

    async def carry(self, rows: Sequence[Outgoing]) -> Carried:
        """All of `rows`, in order, confirmed by one round trip."""
        carried = Carried([], [])
        for row in rows:
            try:
                if row.attempts or not self.hand_over(row):
                    await self._publish(row)
                carried.published.append(row.seq)
            except (PayloadTooLarge, BadPublish) as error:
                carried.impossible.append((row.seq, str(error)))
        failpoint("publish.handed")
        await self.confirm()
        return carried

    def hand_over(self, row: Outgoing) -> bool:
        """Into the connection's buffer, which is written in the next turn of the loop."""
        headers = {TAG: row.tag} if row.tag else None
        try:
            return self._link.publish_nowait(row.subject, row.raw, headers, self._acks.reply(row), flush=False)
        except (LinkError, PayloadTooLarge, BadPublish):  # `carry` reports it
            return False

    async def confirm(self) -> None:
        """Wait for a PONG."""
        await self._link.flush(_CONFIRM_WAIT)

    async def _publish(self, row: Outgoing) -> None:
        """A retry, or a message that has to wait until the broker takes more, or that leaves no room for a header."""
        reply = self._acks.reply(row)
        headers = {TAG: row.tag} if row.tag else {}
        if reply and row.attempts:
            headers[ANSWER_TO] = reply
            if row.settled:
                headers[AFTER_SETTLED] = row.settled
        if headers:
            with contextlib.suppress(PayloadTooLarge):  # it may fit without the headers
                await self._link.publish(row.subject, row.raw, headers, reply=reply)
                return
        await self._link.publish(row.subject, row.raw, reply=reply)
