"""Direct rooms: membership, and the pair of peers that an opaque room id belongs to (spec section 4)."""

import msgspec

from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.errors import NotTarget
from aghbus.protocol.agh.identifiers import direct_id, pair_of

Pair = tuple[str, str]


class Binding(msgspec.Struct, frozen=True):
    """The pair of peers of a direct_id; `authoritative` if the id is derived from that pair."""

    pair: Pair
    authoritative: bool


def admit(envelope: Envelope, self_id: str, bound: Binding | None) -> Binding:
    """The binding of the room of a direct envelope from another peer to us or to nobody; equal to `bound` when nothing changes.

    Raises NotTarget for an id that is bound to another pair, and for an undirected envelope in a room that is not derived
    from `(from, self_id)`. Such an envelope is neither stored nor answered.
    """
    pair = pair_of(envelope.sender, self_id)
    derived = envelope.container == direct_id(envelope.workspace_id, envelope.channel, *pair)
    if derived:
        return Binding(pair, authoritative=True)
    if envelope.to is None or (bound is not None and bound.pair != pair):
        raise NotTarget("is not a room of this sender and this peer", "direct_id")
    return bound or Binding(pair, authoritative=False)
