"""Direct rooms: who is in, and which pair an opaque id belongs to (spec section 4)."""

from typing import Final

import msgspec

from aghbus.protocol.envelope import Envelope
from aghbus.protocol.errors import NotTarget
from aghbus.protocol.identifiers import direct_id, pair_of

Pair = tuple[str, str]
_NO_ROOM: Final = "is not a room of this sender and this peer"


class Binding(msgspec.Struct, frozen=True):
    """Which pair a direct_id of a channel stands for. `authoritative` when the id is derived from that very pair."""

    pair: Pair
    authoritative: bool


def admit(envelope: Envelope, us: str, bound: Binding | None) -> Binding:
    """The binding under which a direct envelope from another peer is let in; equal to `bound` when nothing changes.

    Raises NotTarget when it may not: addressed to somebody else, an id bound to another pair, or an undirected envelope
    in a room that is not derived from `(from, us)`. Nothing of it may be stored or answered then.
    """
    if envelope.to not in (None, us) or envelope.sender == us:
        raise NotTarget(_NO_ROOM, "direct_id")
    pair = pair_of(envelope.sender, us)
    derived = envelope.container == direct_id(envelope.workspace_id, envelope.channel, *pair)
    if derived:
        return Binding(pair, authoritative=True)
    if envelope.to is None or (bound is not None and bound.pair != pair):
        raise NotTarget(_NO_ROOM, "direct_id")
    return bound or Binding(pair, authoritative=False)
