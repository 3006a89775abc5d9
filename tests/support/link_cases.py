"""Links for the tests of the NATS link."""

from __future__ import annotations

from typing import TYPE_CHECKING

from aghbus.daemon.nats.link import (
    InboundMessage,
)

if TYPE_CHECKING:
    pass


class Inbox:
    """A subscriber that keeps what it gets."""

    def __init__(self) -> None:
        self.messages: list[InboundMessage] = []

    def __call__(self, message: InboundMessage) -> None:
        self.messages.append(message)

    @property
    def texts(self) -> list[bytes]:
        return [message.data for message in self.messages]
