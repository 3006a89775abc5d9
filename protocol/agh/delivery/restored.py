"""What follows from a store that was restored from a backup, or is new: its daemon has forgotten what it processed after the
backup, or everything.

A restore begins an epoch, and so does a new store (`backup_ms` is 0). While it matters, the daemon announces it in the `ext`
of its greets:

    "aghbus.restored": {"epoch": "5b1f…", "backup_ms": 1776366200000, "restored_ms": 1776452600000}

An opening that was sent before the restore may have been processed before, so it is held for the operator. The protocol
accepts a `ts` up to REPLAY_AGE seconds in the future (spec section 5 step 3): a peer with such a clock may have written
one that is that much later than the restore. docs/backup.md.
"""

from collections.abc import Mapping
from typing import Annotated, Any, Final

import msgspec

from aghbus.protocol.agh.limits import MAX_LIFETIME, REPLAY_AGE

RESTORED_KEY: Final = "aghbus.restored"
_Epoch = Annotated[str, msgspec.Meta(pattern="^[0-9a-f]{1,32}$")]
_Millis = Annotated[int, msgspec.Meta(ge=0, le=2**53)]


class Restored(msgspec.Struct, frozen=True):
    """The epoch of a restored store: a random id, the time of the newest commit in the backup, and that of the restore, both
    in Unix milliseconds by the clock of its daemon."""

    epoch: _Epoch
    backup_ms: _Millis
    restored_ms: _Millis

    @property
    def is_new(self) -> bool:
        """Whether the store began empty: for the first time, or because the former one is lost."""
        return self.backup_ms == 0

    @property
    def held_through(self) -> int:
        """The last `ts`, in Unix seconds, of an opening that may have been sent before the restore."""
        return self.restored_ms // 1000 + REPLAY_AGE

    @property
    def until_ms(self) -> int:
        """From then on no message that was sent before the restore is fresh."""
        return 1000 * (self.held_through + MAX_LIFETIME + 1)

    def matters(self, now_ms: int) -> bool:
        """Whether messages that were sent before the restore may still arrive."""
        return now_ms < self.until_ms

    def extension(self) -> dict[str, Any]:
        """The member of `ext` that announces the epoch."""
        return {RESTORED_KEY: {"epoch": self.epoch, "backup_ms": self.backup_ms, "restored_ms": self.restored_ms}}


def restored_in(ext: Mapping[str, Any]) -> Restored | None:
    """The epoch that the `ext` of a greet announces; None without one, or for a value outside the grammar."""
    try:
        return msgspec.convert(ext.get(RESTORED_KEY), Restored)
    except msgspec.ValidationError:
        return None
