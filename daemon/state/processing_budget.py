"""The budget of processor time that the messages of all peers together may take (docs/limits.md).

It is checked before a message is parsed as soon as it is half used, and in any case before anything is stored or answered.
"""

import re
from typing import Final

from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.config.settings import Settings
from aghbus.daemon.state.standing import SHARES, Standing, Standings
from aghbus.protocol.agh.decoding import processing_cost
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.base.rate_limit import SharedBucket

# Processor time in microseconds at least, before a message is parsed; `processing_cost` is what it spends (docs/limits.md).
MESSAGE: Final = 100.0
"""A small message from its arrival to its commit."""
BYTE: Final = 0.05
"""Each byte of it."""
PARSED: Final = 25.0
"""A message that is rejected after it was parsed."""
REFUSED: Final = 5.0
"""A message that is rejected before it is parsed."""

BURST: Final = 10.0
"""Seconds of the budget that may be used at once."""

_SENDER: Final = re.compile(rb'"from"[ \t\n\r]*:[ \t\n\r]*"([a-z0-9._@-]{1,161})"')
_LOOK: Final = 4096  # bytes at both ends in which the sender is looked for


class ProcessingBudget:
    """One budget for all names, in microseconds. `strained`: it is half used, and messages are to be checked by `admits` before
    they are parsed."""

    def __init__(self, settings: LiveSettings, standings: Standings) -> None:
        self.strained = False
        self._standings = standings
        self._percent = 0
        self._configure(settings.current)
        settings.on_change(self._configure)

    def _configure(self, settings: Settings) -> None:
        if settings.limits.processor_percent != self._percent:
            self._percent = settings.limits.processor_percent
            rate = 10_000.0 * self._percent  # microseconds a second
            self.bucket = SharedBucket(BURST * rate, rate)

    def admits(self, raw: bytes, standing: Standing, now: float) -> bool:
        """Whether bytes of a sender of this standing are worth parsing. If not, a little is spent."""
        if self.bucket.affords(MESSAGE + BYTE * len(raw), now, SHARES[standing]):
            return True
        self.bucket.drain(REFUSED, now, SHARES[standing])
        return False

    def spend(self, envelope: Envelope, now: float) -> bool:
        """Spend the cost of a message; False when its sender has to leave the rest to others."""
        cost = processing_cost(envelope.raw, signed=envelope.proof is not None)
        if self.bucket.spend(cost, now, SHARES["unknown"]):
            self.strained = False
            return True
        self.strained = True
        standing = self.standing(envelope.sender, signed=envelope.proof is not None)
        if self.bucket.spend(cost, now, SHARES[standing]):
            return True
        self.bucket.drain(
            PARSED + BYTE * len(envelope.raw), now, SHARES["known"]
        )  # it looked like one of a known sender
        return False

    def spend_refused(self, raw: bytes, now: float) -> None:
        """Spend the cost of bytes that are no valid envelope. They have no sender, so it is that of an unknown one."""
        cost = processing_cost(raw, signed=False)
        self.strained = not self.bucket.affords(2 * cost, now, SHARES["unknown"])
        self.bucket.drain(cost, now, SHARES["unknown"])

    def standing(self, sender: str, *, signed: bool) -> Standing:
        """The standing before verification: a known handle counts as verified, because wrong signatures have their own budget."""
        if not self._standings.is_known(sender):
            return "unknown"
        return "verified" if signed and "@" in sender else "known"


def claimed_sender(raw: bytes) -> str:
    """The sender that bytes seem to name, found without parsing them; empty when none is found. It may be no valid peer id.

    It only decides whether they are parsed, and what is parsed is checked again under its real sender.
    """
    found = _SENDER.search(raw, 0, _LOOK) or _SENDER.search(raw, max(0, len(raw) - _LOOK))
    if found is None:
        return ""
    return found[1].decode()
