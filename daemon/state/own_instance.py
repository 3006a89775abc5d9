"""This run of the daemon, which greets announce: two daemons with one peer id are told apart by it (docs/operations.md).

Copies of one store, or of one key, may run at the same time. Of two that hear each other the one that was started later takes no
messages, until the other one is gone.
"""

import hmac
import re
import secrets
from typing import Any, Final, Literal

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.protocol.agh.discovery import COPY_KEY, INSTANCE_KEY
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.handover import LEAVING_KEY

INTERVALS: Final = 3
"""Greets of the other daemon that may be missed before it counts as gone."""
_FORM: Final = re.compile("[0-9]{13}-[0-9a-f]{16}")

Finding = Literal["ours", "unrelated", "later", "earlier"]


class OwnInstance:
    """The instance of this run, and the other one with our peer id."""

    def __init__(self, clock: Clock, settings: LiveSettings, secret: bytes) -> None:
        """`secret` is that of the store, which its copies share."""
        started = 0 if settings.current.take_over else clock.millis()
        self.text: Final = f"{started:013d}-{secrets.token_hex(8)}"
        self._clock = clock
        self._settings = settings
        self._secret = secret
        self._since = clock.seconds()
        self._gives_way_until = float("-inf")

    @property
    def gives_way(self) -> bool:
        """Whether another daemon with our peer id was started before this one, and has greeted recently."""
        return self._clock.monotonic() < self._gives_way_until

    def extension(self, message_id: str, ts: int) -> dict[str, Any]:
        """The members of `ext` that announce the instance in this message."""
        return {INSTANCE_KEY: self.text, COPY_KEY: self._mac(message_id, ts, self.text)}

    def compare(self, envelope: Envelope) -> Finding:
        """Note a message that was sent under our peer id, but not by this run. `ours`: an earlier run may have sent it.

        `earlier` and `later`: by a daemon with a copy of our store or key that was started before or after this one.
        """
        ext = envelope.extensions()
        other = ext.get(INSTANCE_KEY)
        if not isinstance(other, str) or not _FORM.fullmatch(other):
            return "ours" if envelope.ts <= self._since else "unrelated"
        if other == self.text or (envelope.ts <= self._since and other < self.text):
            return "ours"
        if not self._is_copy(envelope, ext, other):
            return "unrelated"
        if other > self.text:
            return "later"
        leaves = ext.get(LEAVING_KEY) is True
        seconds = 0.0 if leaves else INTERVALS * self._settings.current.discovery.interval
        self._gives_way_until = self._clock.monotonic() + seconds
        return "earlier"

    def _is_copy(self, envelope: Envelope, ext: dict[str, Any], other: str) -> bool:
        if "@" in envelope.sender:  # its signature was verified with our key
            return True
        mac = ext.get(COPY_KEY)
        expected = self._mac(envelope.id, envelope.ts, other)
        return isinstance(mac, str) and mac.isascii() and hmac.compare_digest(mac, expected)

    def _mac(self, message_id: str, ts: int, instance: str) -> str:
        return hmac.digest(self._secret, f"{message_id} {ts} {instance}".encode(), "sha256").hex()[:32]
