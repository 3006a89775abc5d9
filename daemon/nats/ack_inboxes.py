"""The inboxes where receivers acknowledge our messages, and a bound on what they can make us do there.

Everybody who gets a directed message of ours learns its reply subject, and may publish there as fast as the broker carries it.
So the recipients are spread over several inboxes with random roots. Each publish allows a few answers on its inbox. Beyond them the
inbox is replaced by one with another root: the broker has no subscriber for the flood any more, and it costs us nothing.
Acknowledgements on their way to the old inbox are lost, and come with the next try of their message. The others are not affected.
"""

import secrets
from collections.abc import Callable
from typing import Final

from aghbus.daemon.nats.link import InboundMessage, Link
from aghbus.protocol.agh.delivery.acks import LIST
from aghbus.store.tables.outbox import Outgoing

INBOXES: Final = 16
"""Inboxes of one daemon. A flood delays acknowledgements of a sixteenth of the other peers, by one retry."""
AT_FIRST: Final = 64
"""Answers that a new inbox takes before the first publish."""
_PER_PUBLISH: Final = 4  # a receiver answers each copy once; a stream may deliver it again
_AT_MOST: Final = 8_192  # a stream delivers everything again that a receiver had not settled


class AckInboxes:
    """All of one daemon. `reply` names the subject for each publish; `open` subscribes them."""

    def __init__(self, link: Link, prefix: str, on_flood: Callable[[], None] = lambda: None) -> None:
        """Their subjects begin with `prefix`. `on_flood` is called when one is replaced."""
        self._inboxes = [_Inbox(link, prefix, on_flood) for _ in range(INBOXES)]

    def open(self, deliver: Callable[[InboundMessage], int]) -> None:
        """Subscribe; `deliver` gets the messages, and returns how many answers to count for one. The last token of a subject is
        a sequence in the outbox."""
        for inbox in self._inboxes:
            inbox.open(deliver)

    def reply(self, row: Outgoing) -> str:
        """The reply subject of one publish; empty for a broadcast, which nobody acknowledges."""
        if row.recipient is None:
            return ""
        inbox = self._inboxes[hash(row.recipient) % INBOXES]  # no peer knows the secret of the interpreter's hash
        if inbox.left < _AT_MOST:
            inbox.left += _PER_PUBLISH
        return f"{inbox.root}.{row.seq}"


class _Inbox:
    """One inbox. `left` counts the answers that it still takes."""

    def __init__(self, link: Link, prefix: str, on_flood: Callable[[], None]) -> None:
        self._link = link
        self._prefix = prefix
        self._on_flood = on_flood
        self.renew()

    def renew(self) -> None:
        self.root = f"{self._prefix}.{LIST}.{secrets.token_hex(12)}"
        self.left = AT_FIRST

    def open(self, deliver: Callable[[InboundMessage], int]) -> None:
        """Subscribe, and again under another root when too much comes."""

        def take(message: InboundMessage) -> None:
            if self.left > 0:
                self.left -= deliver(message)
            elif message.subject.startswith(self.root):  # else it was on its way when the inbox was replaced
                subscription.unsubscribe()
                self.renew()
                self.open(deliver)
                self._on_flood()

        subscription = self._link.subscribe(f"{self.root}.*", take)
