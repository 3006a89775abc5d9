"""What the shell has to do about an envelope: the sum type that `receiving` and `sending` decide and nobody else invents.

Effects that change the store (Remember, Store, Bind, Open, Advance, Queue, Requeue) are carried out in one transaction;
the rest (Deliver, Discovered, AnswerWhois, …) once it is committed. `Conflict` comes alone; `Quarantine` and `Ignore` come
first and may be followed by the answer to the sender (Requeue, Queue), and by nothing else.

None of them has subclasses: where every message passes, `type(effect) is Store` asks in a fifth of the time of `isinstance`.
"""

from typing import Literal

import msgspec

from aghbus.protocol.bodies import PeerCard
from aghbus.protocol.envelope import Envelope
from aghbus.protocol.lifecycle import Step, WorkView
from aghbus.protocol.rooms import Binding
from aghbus.protocol.trust.trust import Trust

Direction = Literal["in", "out", "observed"]


class Ignore(msgspec.Struct, frozen=True):
    """Nothing at all; counted under `why` (`own`, `private_room`, `duplicate`)."""

    why: str


class Conflict(msgspec.Struct, frozen=True):
    """Another daemon uses our peer id: report it loudly (spec section 5 step 7)."""

    envelope: Envelope


class Quarantine(msgspec.Struct, frozen=True):
    """Refused in steps 1 to 7: kept in the bounded quarantine with its reason, touches nothing else.

    `trust` is how far the sender was believed when it was refused after that was known, by local policy or routing.
    """

    reason: str
    detail: str
    trust: Trust | None = None


class Remember(msgspec.Struct, frozen=True):
    """The id came this far: never process it again before `until` (Unix seconds)."""

    until: int


class Store(msgspec.Struct, frozen=True):
    """Keep the envelope, with the verdict of the lifecycle (None where no work is concerned)."""

    direction: Direction
    trust: Trust
    verdict: Step | None = None
    pair: tuple[str, str] | None = None


class Bind(msgspec.Struct, frozen=True):
    """The direct room's binding is new or changed."""

    binding: Binding


class Open(msgspec.Struct, frozen=True):
    """A new work."""

    work: WorkView


class Advance(msgspec.Struct, frozen=True):
    """An applied envelope: `before` and `after` are our copy of the work; one row of its history."""

    before: WorkView
    after: WorkView


class Queue(msgspec.Struct, frozen=True):
    """An envelope of our own that must go out: into the outbox in the same transaction, already applied to our copy.

    `automatic` ones spend the budget of automatic receipts of the peer that they answer, which is the envelope's `to`.
    """

    envelope: Envelope
    effects: tuple["Effect", ...]
    automatic: bool = True


class Requeue(msgspec.Struct, frozen=True):
    """Send the terminal trace or receipt of a work again, same bytes, before the refusal (spec section 5)."""

    workspace_id: str
    message_id: str


class Deliver(msgspec.Struct, frozen=True):
    """Put it into the agent's inbox."""


class Discovered(msgspec.Struct, frozen=True):
    """A greet or a whois response: refresh presence; `answer_to` is the request's id for a response."""

    card: PeerCard
    trust: Trust
    answer_to: str | None = None


class AnswerWhois(msgspec.Struct, frozen=True):
    """Somebody asks us or everybody: respond if `discovery.should_answer` says that our card matches."""

    request: Envelope


Effect = (
    Ignore
    | Conflict
    | Quarantine
    | Remember
    | Store
    | Bind
    | Open
    | Advance
    | Queue
    | Requeue
    | Deliver
    | Discovered
    | AnswerWhois
)
Effects = tuple[Effect, ...]
