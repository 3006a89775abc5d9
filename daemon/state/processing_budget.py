"""The budget of processor time that the messages of all peers together may take (docs/limits.md).

It is checked before a message is parsed if others were just rejected, and in any case before anything is stored or answered.
"""

import re
from typing import Final

from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.config.settings import Settings
from aghbus.daemon.state.lanes import PARTS, Lane
from aghbus.protocol.agh.decoding import processing_cost
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.trust.keys import PUBLIC_BYTES, PublicKey, decode_base64url
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

_LEAST_SCALE: Final = 0.1  # of an estimate, however little was measured
MEASURED: Final = 250_000.0
"""Microseconds of estimated time, after which it is compared with the measured one."""
_SENDER: Final = re.compile(rb'"from"[ \t\n\r]*:[ \t\n\r]*"([a-z0-9._@-]{1,161})"')
_ID: Final = re.compile(rb'"id"[ \t\n\r]*:[ \t\n\r]*"([A-Za-z0-9._:-]{1,128})"')
_PUBLIC_KEY: Final = re.compile(rb'"pubkey"[ \t\n\r]*:[ \t\n\r]*"([A-Za-z0-9_-]{43})"')
_LOOK: Final = 4096  # bytes at both ends in which they are looked for


class ProcessingBudget:
    """One budget for all names, in microseconds. Estimates are multiplied by `scale`, which follows the measured cost."""

    def __init__(self, settings: LiveSettings) -> None:
        self.scale = 1.0
        self.estimated = 0.0  # microseconds since the last comparison
        self._busy_since = 0.0  # processor time of the daemon then, in seconds
        self._percent = 0
        self._configure(settings.current)
        settings.on_change(self._configure)

    def _configure(self, settings: Settings) -> None:
        if settings.limits.processor_percent != self._percent:
            self._percent = settings.limits.processor_percent
            rate = 10_000.0 * self._percent  # microseconds a second
            self.bucket = SharedBucket(BURST * rate, rate)

    def admits(self, raw: bytes, lane: Lane, now: float) -> bool:
        """Whether bytes of a sender of this lane are worth parsing. Nothing is spent."""
        return self.bucket.affords(self.scale * (MESSAGE + BYTE * len(raw)), now, PARTS[lane])

    def spend_dropped(self, now: float) -> None:
        """Spend the cost of bytes that are rejected before they are parsed."""
        self._drain(REFUSED, now)

    def spend_as_other(self, envelope: Envelope, now: float) -> bool:
        """Spend the cost of a message from what everybody may use; False when that is used up."""
        cost = self._cost(envelope)
        spent = self.bucket.spend(cost, now, PARTS["other"])
        if spent:
            self.estimated += cost
        return spent

    def spend(self, envelope: Envelope, lane: Lane, now: float) -> bool:
        """The same after it was refused there, for a message of `lane`. If it is refused again, the cost of parsing it is
        spent."""
        cost = self._cost(envelope)
        if lane != "other" and self.bucket.spend(cost, now, PARTS[lane]):
            self.estimated += cost
            return True
        self._drain(PARSED + BYTE * len(envelope.raw), now)
        return False

    def charge_others(self, envelope: Envelope, now: float) -> None:
        """The signature of a message is wrong: others pay for it, whatever lane it was taken in."""
        cost = self._cost(envelope)
        self.bucket.give_back(cost, now)
        self.bucket.drain(cost, now, PARTS["other"])

    def spend_refused(self, raw: bytes, now: float) -> bool:
        """Spend the cost of bytes that are no valid envelope; whether it is left for as many. They have no sender, so it is in the
        lane of others."""
        cost = processing_cost(raw, signed=False)
        self._drain(cost, now)
        return self.bucket.affords(self.scale * cost, now, PARTS["other"])

    def measure(self, busy: float) -> None:
        """Compare the estimates with `busy`, the processor time of the daemon in seconds, and adapt to it: its other work counts,
        too, so an estimate only falls."""
        ratio = 1e6 * (busy - self._busy_since) / self.estimated
        self.scale = min(1.0, max(_LEAST_SCALE, self.scale * (1.0 + ratio) / 2))
        self.estimated, self._busy_since = 0.0, busy

    def _cost(self, envelope: Envelope) -> float:
        return self.scale * processing_cost(envelope.raw, signed=envelope.proof is not None)

    def _drain(self, cost: float, now: float) -> None:
        self.estimated += self.scale * cost
        self.bucket.drain(self.scale * cost, now, PARTS["other"])


def claimed_sender(raw: bytes) -> str:
    """The sender that bytes seem to name, found without parsing them; empty when none is found. It may be no valid peer id.

    It only decides whether they are parsed, and what is parsed is checked again under its real sender.
    """
    return _find(_SENDER, raw)


def claimed_id(raw: bytes) -> str:
    """The id that bytes seem to have, in the same way."""
    return _find(_ID, raw)


def claimed_public_key(raw: bytes) -> PublicKey | None:
    """The public key of the proof that bytes seem to have, in the same way."""
    public = decode_base64url(_find(_PUBLIC_KEY, raw), PUBLIC_BYTES)
    return None if public is None else PublicKey(public)


def _find(pattern: re.Pattern[bytes], raw: bytes) -> str:
    found = pattern.search(raw, 0, _LOOK) or pattern.search(raw, max(0, len(raw) - _LOOK))
    return "" if found is None else found[1].decode()
