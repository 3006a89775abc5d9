"""What all adapters share: a message handed over becomes drafts of envelopes, an envelope that arrives becomes a message.

An adapter has no memory, clock or randomness. What it must know of earlier messages it asks a `Memory`, which the daemon
answers from its store inside the transaction that will carry the result out, and the offline converter from the lines
that it has read.
"""

from collections.abc import Mapping, Sequence
from typing import Any, Final, Literal, Protocol

import msgspec

from aghbus.protocol.envelope import Envelope
from aghbus.protocol.identifiers import is_peer
from aghbus.protocol.lifecycle import WorkView
from aghbus.protocol.limits import DIRECTED_TTL
from aghbus.protocol.send import Draft

Severity = Literal["error", "warning"]
Direction = Literal["in", "out"]


class Finding(msgspec.Struct, frozen=True):
    """One violation. `path` is a JSON Pointer (RFC 6901) into the message, empty for the whole; `rule` a stable word.

    An error refuses the message; a warning travels along with it. `message` may hold text of the message: escape it
    before a terminal or a log sees it.
    """

    path: str
    rule: str
    severity: Severity
    message: str


class Agents(msgspec.Struct, frozen=True, kw_only=True):
    """Who stands behind the names of agents (adapters.md, Common rules, Agent map).

    `names` is the configured map of agent name to peer id. `found` holds, where look-up is switched on, the peers that
    carry a name as display name or capability. `own` and `other` fill missing ends of an offline conversion: the peer of
    the message's own agent, and that of everybody else; None where a name that maps to nobody is an error.
    """

    names: Mapping[str, str] = msgspec.field(default_factory=dict)
    found: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    own: str | None = None
    other: str | None = None

    def peer_of(self, name: str, path: str, *, own: bool = False) -> str | Finding:
        """The peer of the agent called `name`, or the error: exactly as written, nothing is lower-cased or reshaped."""
        if name in self.names:
            return self.names[name]
        if is_peer(name):
            return name
        candidates = self.found.get(name, ())
        if len(candidates) == 1:
            return candidates[0]
        fill_in = self.own if own else self.other
        if fill_in is not None:
            return fill_in
        why = f"is the name of {len(candidates)} peers" if candidates else "is no peer id and not in the agent map"
        return Finding(path, "agent_map", "error", f"the agent {name!r} {why}")

    def name_of(self, peer: str) -> str:
        """The agent's name for a peer: the first one configured for it, else the peer id."""
        return next((name for name, configured in self.names.items() if configured == peer), peer)


class Place(msgspec.Struct, frozen=True, kw_only=True):
    """Where and when one message crosses: everything beside the message itself.

    `us` is our peer, `now` Unix seconds, `ttl` the life of a directed message in seconds. What the caller named: `target` the peer
    for formats that name none, `work_id` the work in hand, `key` an idempotency key among messages with equal content.
    `elsewhere` are the works in hand on other channels, where the caller named neither channel nor work: it may mean one of them.
    """

    us: str
    workspace_id: str
    channel: str
    now: int
    ttl: int = DIRECTED_TTL
    agents: Agents = Agents()
    target: str | None = None
    work_id: str | None = None
    key: str | None = None
    elsewhere: tuple[WorkView, ...] = ()


class Known(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the format that crossed before.

    `direction` is `out` when our agent handed it over, `in` when it arrived. `envelope_id` is that of the envelope that
    carried it, `sender` its peer, `at` the Unix second of crossing, `work` the work that this envelope opened or moved, as
    it is now.
    """

    message: Any
    direction: Direction
    envelope_id: str
    sender: str
    at: int
    work: WorkView | None = None


class Memory(Protocol):
    """What is known of earlier messages of one format, on one channel."""

    @property
    def whole(self) -> bool:
        """False when messages may be missing (offline): what cannot be found is then not judged."""
        ...

    def find(self, foreign_id: str, scope: str = "", direction: Direction | None = None) -> Known | None:
        """The latest message with this id of its own in this scope (e.g. a session); in any scope when it is empty."""
        ...

    def arrived(self, foreign_id: str) -> Sequence[Known]:
        """All messages with this id of its own that arrived, of whatever sender and scope, latest first."""
        ...

    def last(self, scope: str) -> Known | None:
        """The latest message of this scope."""
        ...

    def work(self, work_id: str) -> WorkView | None:
        """Our copy of a work."""
        ...

    def in_hand(self) -> tuple[WorkView, ...]:
        """Open works that our agent is the target of and has not passed on to a next one."""
        ...

    def was_handed(self, work: WorkView) -> bool:
        """Whether our agent was handed what opened a work, as a message of this format; True where that is not known (offline)."""
        ...

    def reads_works(self) -> bool:
        """Whether our agent was handed a work in this format that has ended since: it answers what it was handed, then."""
        ...

    def opening(self, work: WorkView) -> Known | None:
        """The message of this format that opened a work; None when a native envelope did."""
        ...

    def answered(self, work: WorkView) -> str:
        """Id of the envelope that our next message on this work answers: the other participant's newest say, capability
        (when we are the target) or trace (when we are the initiator); the opening id when there is none."""
        ...

    def sent(self, envelope_id: str) -> WorkView | Literal[True] | None:
        """Whether we sent an envelope of this id before: None, else the work it belongs to as it is now (True: to none)."""
        ...


class Plan(msgspec.Struct, frozen=True, kw_only=True):
    """What becomes of a message that was handed over; `drafts` go out in this order, in one transaction.

    `message` is the message as it travels: overwritten and redacted where adapters.md says so. With an error among the
    `findings` there are no drafts. `repeats`: the same message was handed over before, nothing is to be sent again.
    `foreign_id` and `scope` are what `Memory.find` will know it by. `follows` is `(work in hand, next work)`: the first closes
    with the second's end and result. `record` is what the format's own log keeps of it.
    """

    message: Any
    findings: tuple[Finding, ...] = ()
    drafts: tuple[Draft, ...] = ()
    repeats: bool = False
    foreign_id: str | None = None
    scope: str = ""
    follows: tuple[str, str] | None = None
    record: Mapping[str, Any] | None = None

    @property
    def refused(self) -> bool:
        """An error forbids it."""
        return any(finding.severity == "error" for finding in self.findings)


class Arrival(msgspec.Struct, frozen=True, kw_only=True):
    """An envelope that was committed, with what it did: `outcome` of the lifecycle and the work after it, where it has one.

    `carried` replaces the message in `ext` where that was too large to ride along and was fetched from the artifact store.
    """

    envelope: Envelope
    work: WorkView | None = None
    outcome: str | None = None
    carried: Any = None


class Handed(msgspec.Struct, frozen=True, kw_only=True):
    """What our agent gets for an envelope; `message` None: nothing, the envelope is not for agents of this format.

    `native` when it was made from a native envelope (or from one whose carried message did not hold), with honest defaults.
    """

    message: Any | None
    findings: tuple[Finding, ...] = ()
    native: bool = False
    foreign_id: str | None = None
    scope: str = ""
    record: Mapping[str, Any] | None = None


class Adapter(Protocol):
    """One format. Made once with its options; both methods never raise for what a message or an envelope holds."""

    @property
    def name(self) -> str:
        """As in `ext["<name>.message"]`."""
        ...

    def hand_over(self, text: bytes, place: Place, memory: Memory) -> Plan:
        """A message of our own agent, as JSON text (UTF-8), on its way to the bus."""
        ...

    def hand_out(self, arrival: Arrival, place: Place, memory: Memory) -> Handed:
        """An envelope that reached us, as a message for our agent."""
        ...


NOT_FOR_US: Final = Handed(message=None)
"""The envelope says nothing to agents of this format."""
