"""Effects: the decisions of `protocol.receive` and `protocol.send`, as values for the daemon to perform.

Effects that change the store (RecordId, StoreEnvelope, Bind, Open, Advance, Deliver, Hold, Queue, Requeue, Quarantine) are
applied in one transaction. `PeerIdConflict` is always the only effect. `Quarantine` and `Ignore` come first and can only be
followed by an answer to the sender (Requeue, Queue).

No effect has subclasses, so hot paths may compare `type(effect) is StoreEnvelope`, in a fifth of the time of `isinstance`.
"""

from typing import Literal

import msgspec

from aghbus.protocol.agh.bodies import PeerCard
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.lifecycle import Transition, WorkView
from aghbus.protocol.agh.rooms import Binding
from aghbus.protocol.agh.trust.trust import Trust

Direction = Literal["in", "out", "observed"]


class Ignore(msgspec.Struct, frozen=True):
    """Drop the envelope and count it under `why` (`own`, `private_room`, `discovery_of_others`, `duplicate`, `stale`, `busy`)."""

    why: str


class Early(msgspec.Struct, frozen=True):
    """Do not take the envelope yet: its predecessor has not been processed (delivery/order.py). Always the only effect."""


class PeerIdConflict(msgspec.Struct, frozen=True):
    """Another daemon uses our peer id: report a problem (spec section 5 step 7)."""

    envelope: Envelope


class Quarantine(msgspec.Struct, frozen=True):
    """Keep an envelope that steps 1 to 7 refused in the bounded quarantine, with its reason; change nothing else.

    `trust` is the result of verification if local policy or routing refused the envelope after it.
    """

    reason: str
    detail: str
    trust: Trust | None = None


class RecordId(msgspec.Struct, frozen=True):
    """Record the id for deduplication until `until` (Unix seconds)."""

    until: int


class StoreEnvelope(msgspec.Struct, frozen=True):
    """Store the envelope and the lifecycle's verdict (None without a work); `pair` are the peers of its direct room."""

    direction: Direction
    trust: Trust
    verdict: Transition | None = None
    pair: tuple[str, str] | None = None


class Bind(msgspec.Struct, frozen=True):
    """Store a new or changed binding of a direct room."""

    binding: Binding


class Open(msgspec.Struct, frozen=True):
    """Create a work."""

    work: WorkView


class Advance(msgspec.Struct, frozen=True):
    """Update our copy of a work from `before` to `after`, and add a row to its history."""

    before: WorkView
    after: WorkView


class Queue(msgspec.Struct, frozen=True):
    """Put an envelope of our own into the outbox in the same transaction, with the effects of sending it.

    If `automatic`, it counts against the rate limit of automatic receipts to the envelope's `to`.
    """

    envelope: Envelope
    effects: tuple["Effect", ...]
    automatic: bool = True


class Requeue(msgspec.Struct, frozen=True):
    """Publish the terminal trace or receipt of a work again, with the same bytes, before the refusal (spec section 5); to a peer
    that may drop these, `Queue` has it as a new message.

    With `missed` only if it expired or was given up: an unanswered one is sent again anyway.
    """

    workspace_id: str
    message_id: str
    missed: bool = False


class Deliver(msgspec.Struct, frozen=True):
    """Put the envelope into the agent's inbox."""


class Hold(msgspec.Struct, frozen=True):
    """Put the opening of a work into the inbox as dead: it may have been carried out before the restore at Unix millisecond
    `restored_ms` (docs/backup.md). The operator makes it ready."""

    restored_ms: int


class Discovered(msgspec.Struct, frozen=True):
    """Refresh presence from a greet or a whois response; `answer_to` is the id of the response's request."""

    card: PeerCard
    trust: Trust
    answer_to: str | None = None


class AnswerWhois(msgspec.Struct, frozen=True):
    """Answer a whois request if `discovery.should_answer` says so."""

    request: Envelope


Effect = (
    Ignore
    | Early
    | PeerIdConflict
    | Quarantine
    | RecordId
    | StoreEnvelope
    | Bind
    | Open
    | Advance
    | Queue
    | Requeue
    | Deliver
    | Hold
    | Discovered
    | AnswerWhois
)
Effects = tuple[Effect, ...]
