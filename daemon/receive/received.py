"""A message from the broker on its way through the daemon, and its result."""

from typing import Final

import msgspec

from aghbus.daemon.nats.events import Settlement
from aghbus.daemon.state.lanes import Lane
from aghbus.protocol.agh.delivery.acks import Ack
from aghbus.protocol.agh.effects import Effects, Ignore, Quarantine
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.errors import ProtocolError
from aghbus.protocol.agh.partial_parse import Origin
from aghbus.protocol.agh.receipt_target import ReceiptTarget
from aghbus.store.apply_effects import Applied

EARLY: Final = "early"
"""Why a message was not taken whose predecessor was not processed."""


class ReceivedMessage(msgspec.Struct, frozen=True):
    """One message from the broker: a valid envelope, or the error, its origin, and the parts that a receipt needs.

    `own_id` is our peer id it is addressed to, `sender` is empty without a valid envelope, `reply` is where to acknowledge,
    `settled` the header of that name (protocol/agh/delivery/order.py). `key` is the `dedup_key` of a valid envelope, `copy` tells
    whether it was processed before, `tag` is the header of that name. `keep`: if it is no valid envelope, it goes to quarantine.
    """

    subject: str
    raw: bytes
    received_ms: int
    own_id: str
    settlement: Settlement | None = None
    envelope: Envelope | None = None
    sender: str = ""
    reply: str = ""
    settled: str = ""
    key: int = 0
    copy: bool = False
    tag: str = ""
    error: ProtocolError | None = None
    target: ReceiptTarget | None = None
    origin: Origin | None = None
    keep: bool = True


class Outcome(msgspec.Struct, frozen=True):
    """The result of one message in the transaction.

    `applied` is None when the message of this `lane` was rejected, for the reason `rejected`: a rate limit, `inbox` or a
    reason of InboxAdmission when that has no room, `memory`
    when the dedup window has no room for an id of that lifetime (store/engine/log/dedup.py), `EARLY` when its predecessor was not
    processed. `stored_only`: the store has applied all effects, and nothing else is to be done about them. `ack` is the
    acknowledgement, for a message that asks for one. `receipts` are published once and not stored.
    """

    message: ReceivedMessage
    effects: Effects
    applied: Applied | None = None
    rejected: str = ""
    stored_only: bool = False
    ack: Ack | None = None
    receipts: tuple[Envelope, ...] = ()
    lane: Lane = "other"


def result_of(effects: Effects) -> str:
    """What became of a valid envelope, in one word for the metrics."""
    for effect in effects:
        if type(effect) is Ignore:
            return "duplicate" if effect.why == "duplicate" else "ignored"
        if type(effect) is Quarantine:
            return "refused"
    return "accepted"
