"""The interface of an adapter: it turns a submitted message into envelope drafts, and a received envelope into a message.

An adapter has no state, clock or randomness. It asks a `MessageHistory` about earlier messages. The daemon implements the
history over its store, inside the transaction that commits the result; the offline converter implements it over the lines
that it has read.
"""

from collections.abc import Mapping, Sequence
from typing import TYPE_CHECKING, Any, Final, Literal, Protocol

import msgspec

from aghbus.protocol.agh.envelope import Envelope, StoredKind
from aghbus.protocol.agh.identifiers import is_peer
from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.protocol.agh.limits import DIRECTED_TTL

if TYPE_CHECKING:  # a client of the API needs findings and no drafts, whose module loads libsodium
    from aghbus.protocol.agh.send import Draft

Severity = Literal["error", "warning"]
BridgeDirection = Literal["in", "out"]


class Finding(msgspec.Struct, frozen=True):
    """One violation."""

    path: str  # JSON Pointer (RFC 6901) into the message, empty for the whole
    rule: str  # a stable code
    severity: Severity  # an error refuses the message, a warning does not
    message: str  # for people; it may quote the message, so escape it before printing or logging it


class AgentMap(msgspec.Struct, frozen=True, kw_only=True):
    """Maps agent names to peers (adapters.md, Common rules, Agent map).

    `names` is the configured map of agent name to peer id. `found` has the peers that announce a name as display name or
    capability, where look-up is enabled. `own` and `other` are the defaults of an offline conversion: the peer of the
    message's own agent, and the peer of every other agent. Without a default an unmapped name is an error.
    """

    names: Mapping[str, str] = msgspec.field(default_factory=dict)
    found: Mapping[str, tuple[str, ...]] = msgspec.field(default_factory=dict)
    own: str | None = None
    other: str | None = None

    def peer_of(self, name: str, path: str, *, own: bool = False) -> str | Finding:
        """The peer of the agent `name`, or the error at `path`. Names are compared exactly."""
        if name in self.names:
            return self.names[name]
        if is_peer(name):
            return name
        candidates = self.found.get(name, ())
        if len(candidates) == 1:
            return candidates[0]
        default = self.own if own else self.other
        if default is not None:
            return default
        why = f"is the name of {len(candidates)} peers" if candidates else "is neither a peer id nor in the agent map"
        return Finding(path, "agent_map", "error", f"the agent {name!r} {why}")

    def name_of(self, peer: str) -> str:
        """The first agent name configured for a peer, else the peer id."""
        return next((name for name, configured in self.names.items() if configured == peer), peer)


class BridgeContext(msgspec.Struct, frozen=True, kw_only=True):
    """Everything about one conversion except the message itself.

    `us` is our peer id, `now` Unix seconds, `ttl` the lifetime of a directed message in seconds. The caller may name `target`
    (the peer, for formats that name none), `work_id` (the work that the message is about) and `key` (an idempotency key among
    messages with equal content). `other_channel_works` are the assigned works on other channels, where the caller named
    neither channel nor work.
    """

    us: str
    workspace_id: str
    channel: str
    now: int
    ttl: int = DIRECTED_TTL
    agents: AgentMap = AgentMap()
    target: str | None = None
    work_id: str | None = None
    key: str | None = None
    other_channel_works: tuple[WorkView, ...] = ()


class BridgedMessage(msgspec.Struct, frozen=True, kw_only=True):
    """An earlier message of the format.

    `direction` is `out` for a message that our agent submitted and `in` for one that was delivered to it. `envelope_id` and
    `sender` are those of the envelope that carried it, `at` is the Unix second of the conversion, and `work` is the current
    state of the work that the envelope opened or changed.
    """

    message: Any
    direction: BridgeDirection
    envelope_id: str
    sender: str
    at: int
    work: WorkView | None = None


class MessageHistory(Protocol):
    """Earlier messages of one format on one channel, and the works they belong to."""

    @property
    def whole(self) -> bool:
        """False when messages may be missing (offline): a message that is not found is then no error."""
        ...

    def find(self, foreign_id: str, scope: str = "", direction: BridgeDirection | None = None) -> BridgedMessage | None:
        """The latest message with this foreign id in this scope (for example a session); in any scope when it is empty."""
        ...

    def arrived(self, foreign_id: str) -> Sequence[BridgedMessage]:
        """All delivered messages with this foreign id, of any sender and scope, latest first."""
        ...

    def last(self, scope: str) -> BridgedMessage | None:
        """The latest message of this scope."""
        ...

    def work(self, work_id: str) -> WorkView | None:
        """The local state of a work."""
        ...

    def assigned_works(self) -> tuple[WorkView, ...]:
        """Assigned works: open works whose target is our agent and that it has not passed on to a next agent."""
        ...

    def was_delivered(self, work: WorkView) -> bool:
        """Whether the opening of a work was delivered to our agent in this format; True where that is unknown (offline)."""
        ...

    def received_works(self) -> bool:
        """Whether any work that has ended since was delivered to our agent in this format."""
        ...

    def opening(self, work: WorkView) -> BridgedMessage | None:
        """The message of this format that opened a work; None when the opening envelope carried none."""
        ...

    def reported(self, work: WorkView) -> BridgedMessage | None:
        """The latest message of our agent that is a trace of this work."""
        ...

    def reports(self, scope: str) -> Sequence[BridgedMessage]:
        """Our agent's messages of this scope, latest first.

        `work` is the assigned work that a message is about, also where its envelope opened a work for the next agent.
        """
        ...

    def answered(self, work: WorkView) -> str:
        """The id of the envelope that our next message on this work answers.

        That is the other participant's newest say or capability (when we are the target) or trace (when we are the initiator),
        else the opening.
        """
        ...

    def sent(self, envelope_id: str) -> WorkView | Literal[True] | None:
        """Whether we sent an envelope with this id before: its work in the current state, True when it has none, or None."""
        ...


class Conversion(msgspec.Struct, frozen=True, kw_only=True):
    """The result of a conversion in either direction.

    `foreign_id` and `scope` are the keys for `MessageHistory.find`. `record` is the row for the format's log, None for no row.
    `answers` is the foreign id of the message that this one answers, for the latency in its row. `waits` is the number of
    seconds in which this one has to be answered; None when it awaits no answer.
    """

    message: Any
    findings: tuple[Finding, ...] = ()
    foreign_id: str | None = None
    scope: str = ""
    record: Mapping[str, Any] | None = None
    answers: str | None = None
    waits: int | None = None


class SubmitPlan(Conversion, frozen=True, kw_only=True):
    """The result of submitting a message; `drafts` are sent in this order, in one transaction.

    `message` is the message as it is sent: with the values overwritten or redacted that adapters.md names. With an error among
    `findings` there are no drafts. `repeats`: the same message was submitted before, so nothing is sent.
    """

    drafts: "tuple[Draft, ...]" = ()
    repeats: bool = False

    @property
    def refused(self) -> bool:
        """Whether an error refuses the message."""
        return has_errors(self.findings)


class BridgedEnvelope(msgspec.Struct, frozen=True, kw_only=True):
    """A committed envelope, the lifecycle's `outcome` for it, and the state of its work after it.

    `carried` is the message when it was too large for `ext` and was fetched from the artifact store.
    """

    envelope: Envelope
    work: WorkView | None = None
    outcome: str | None = None
    carried: Any = None


class Delivered(Conversion, frozen=True, kw_only=True):
    """The message for our agent; `message` None: the envelope has no equivalent in this format.

    `native`: the envelope carried no valid message of this format, so the message was generated from the envelope itself.
    """

    native: bool = False


class Adapter(Protocol):
    """One format, created with its options. Neither method raises, whatever a message or an envelope contains."""

    @property
    def name(self) -> str:
        """As in `ext["<name>.message"]`."""
        ...

    @property
    def delivered_kinds(self) -> frozenset[StoredKind]:
        """The kinds of envelopes that are delivered to agents of this format."""
        ...

    def submit(self, text: bytes, context: BridgeContext, history: MessageHistory) -> SubmitPlan:
        """Turn a message of our agent, as JSON text (UTF-8), into envelope drafts."""
        ...

    def deliver(self, arrival: BridgedEnvelope, context: BridgeContext, history: MessageHistory) -> Delivered:
        """Turn a received envelope into a message for our agent."""
        ...


NOT_DELIVERED: Final = Delivered(message=None)
"""The envelope has no equivalent in this format."""


def has_errors(findings: Sequence[Finding]) -> bool:
    """Whether any finding is an error."""
    return any(finding.severity == "error" for finding in findings)
