"""The life of a work (spec section 6).

A work is opened by a say or capability that is directed and carries a new work_id. The envelope that opens it fixes the
container, the initiator (its sender) and the target (its receiver). From then on each say, capability, receipt and trace
that carries the work_id is one event:

- conversation keeps the state, except that an answer to `needs_input` puts the work back to `working`;
- `receipt accepted` from the target moves submitted to working;
- receipts `duplicate`, `expired` and `unsupported` report on a message and change nothing;
- receipts `rejected` and `canceled`, and traces of a terminal state, end the work; either participant may send them;
- a terminal state is final: every later envelope is refused.

A pair that is absent from `TRANSITIONS` is illegal. docs/protocol.md is generated from this table, and a test walks it.
"""

from typing import Final, Literal

import msgspec

from aghbus.protocol.agh.bodies import RECEIPT_STATUSES, TRACE_STATES, Receipt, Trace
from aghbus.protocol.agh.envelope import OPENING_KINDS, Envelope

State = Literal["submitted", "working", "needs_input", "completed", "failed", "canceled"]
TransitionOutcome = Literal["opened", "advanced", "unchanged", "ignored", "rejected"]

Reactions = Literal["all", "questions", "none"]
"""Which traces and receipts of a work its initiator gets in the inbox: questions and the end, questions only, or none."""

OPEN_STATES: Final[tuple[State, ...]] = ("submitted", "working", "needs_input")
TERMINAL_STATES: Final[tuple[State, ...]] = ("completed", "failed", "canceled")
STANDSTILL: Final[tuple[State, ...]] = (*TERMINAL_STATES, "needs_input")
"""The states in which nothing is expected of the target."""
REFUSING_OUTCOMES: Final[tuple[TransitionOutcome, ...]] = ("ignored", "rejected")
"""Outcomes of envelopes without effect on the work."""

# (state, event) -> next state. An event is `message` (say, capability), `receipt:<status>` or `trace:<state>`.
TRANSITIONS: Final[dict[tuple[str, str], State]] = {
    ("submitted", "message"): "submitted",
    ("submitted", "receipt:accepted"): "working",
    ("submitted", "receipt:duplicate"): "submitted",
    ("submitted", "receipt:expired"): "submitted",
    ("submitted", "receipt:unsupported"): "submitted",
    ("submitted", "receipt:rejected"): "failed",
    ("submitted", "receipt:canceled"): "canceled",
    ("submitted", "trace:working"): "working",
    ("submitted", "trace:needs_input"): "needs_input",
    ("submitted", "trace:completed"): "completed",
    ("submitted", "trace:failed"): "failed",
    ("submitted", "trace:canceled"): "canceled",
    ("working", "message"): "working",
    ("working", "receipt:accepted"): "working",
    ("working", "receipt:duplicate"): "working",
    ("working", "receipt:expired"): "working",
    ("working", "receipt:unsupported"): "working",
    ("working", "receipt:rejected"): "failed",
    ("working", "receipt:canceled"): "canceled",
    ("working", "trace:working"): "working",
    ("working", "trace:needs_input"): "needs_input",
    ("working", "trace:completed"): "completed",
    ("working", "trace:failed"): "failed",
    ("working", "trace:canceled"): "canceled",
    ("needs_input", "message"): "working",
    ("needs_input", "receipt:accepted"): "needs_input",
    ("needs_input", "receipt:duplicate"): "needs_input",
    ("needs_input", "receipt:expired"): "needs_input",
    ("needs_input", "receipt:unsupported"): "needs_input",
    ("needs_input", "receipt:rejected"): "failed",
    ("needs_input", "receipt:canceled"): "canceled",
    ("needs_input", "trace:working"): "working",
    ("needs_input", "trace:needs_input"): "needs_input",
    ("needs_input", "trace:completed"): "completed",
    ("needs_input", "trace:failed"): "failed",
    ("needs_input", "trace:canceled"): "canceled",
}

CONTINUES: Final = "aghbus.continues"
"""The key in `ext` with which our daemons mark conversation in a work that they know: it opens none. Others ignore it."""
_CONTINUES: Final = CONTINUES.encode()

# Events that count as progress although the state stays: the outcome is `advanced`, not `unchanged`.
PROGRESS: Final = frozenset({("working", "trace:working"), ("needs_input", "trace:needs_input")})
_TRACES: Final = {state: f"trace:{state}" for state in TRACE_STATES}  # not made anew: every step of a work passes here
_RECEIPTS: Final = {status: f"receipt:{status}" for status in RECEIPT_STATUSES}


class WorkView(msgspec.Struct, frozen=True, kw_only=True):
    """The part of a work that the lifecycle needs. `container` is the thread_id or direct_id of `surface`.

    `advanced` says whether any envelope after the opening one moved the work. `terminal_id` and `terminal_sender` are those
    of the envelope that ended it. `reactions` is what the initiator asked for: local, and not part of the protocol.
    """

    workspace_id: str
    channel: str
    work_id: str
    surface: str
    container: str
    initiator: str
    target: str
    state: State
    opening_id: str
    advanced: bool = False
    terminal_id: str | None = None
    terminal_sender: str | None = None
    reactions: Reactions = "none"

    @property
    def is_terminal(self) -> bool:
        """True in completed, failed and canceled."""
        return self.state in TERMINAL_STATES

    def other(self, peer: str) -> str | None:
        """The other participant than `peer`; None when `peer` is not a participant."""
        return {self.initiator: self.target, self.target: self.initiator}.get(peer)


class Transition(msgspec.Struct, frozen=True):
    """The verdict on one envelope. `state` is the work's state afterwards, None without a work.

    `reason` is set for `ignored` and `rejected`: not_found, work_container_mismatch, actor_not_allowed, work_closed,
    invalid_transition. Of `rejected` it is the reason code of our receipt.
    """

    outcome: TransitionOutcome
    state: State | None
    reason: str | None = None


def event_of(envelope: Envelope) -> str:
    """The envelope as a lifecycle event: the second part of a key of `TRANSITIONS`."""
    body = envelope.body
    if type(body) is Trace:
        return _TRACES[body.state]
    return _RECEIPTS[body.status] if type(body) is Receipt else "message"


def transition(work: WorkView | None, envelope: Envelope) -> Transition:
    """The verdict on `envelope`, which carries a work_id, given our copy of the work (spec section 6, checks in order)."""
    conversation = envelope.kind in OPENING_KINDS
    if work is None:
        return _without_work(conversation, envelope)
    if (envelope.surface, envelope.container) != (work.surface, work.container):
        return Transition("rejected" if conversation else "ignored", work.state, "work_container_mismatch")
    other = work.other(envelope.sender)
    if other is None or (conversation and envelope.to != other):
        return Transition("ignored", work.state, "actor_not_allowed")
    if work.state in TERMINAL_STATES:
        return Transition("rejected" if conversation else "ignored", work.state, "work_closed")
    event = event_of(envelope)
    if event == "receipt:accepted" and envelope.sender != work.target:
        return Transition("ignored", work.state, "actor_not_allowed")
    after = TRANSITIONS.get((work.state, event))
    if after is None:
        return Transition("ignored", work.state, "invalid_transition")
    moved = after != work.state or (work.state, event) in PROGRESS
    return Transition("advanced" if moved else "unchanged", after)


def _without_work(conversation: bool, envelope: Envelope) -> Transition:
    if not conversation or _continues(envelope):
        return Transition("ignored", None, "not_found")
    return Transition("opened", "submitted") if envelope.to is not None else Transition("unchanged", None)


def _continues(envelope: Envelope) -> bool:
    ext = envelope.ext
    return ext is not None and _CONTINUES in bytes(ext) and envelope.extensions().get(CONTINUES) is True


def opened_by(envelope: Envelope, reactions: Reactions = "none") -> WorkView:
    """The work that `envelope` opens. ValueError when it carries no work_id, receiver or container."""
    if envelope.work_id is None or envelope.to is None or envelope.surface is None or envelope.container is None:
        raise ValueError("a work is opened by a directed envelope with a work_id")
    return WorkView(
        workspace_id=envelope.workspace_id,
        channel=envelope.channel,
        work_id=envelope.work_id,
        surface=envelope.surface,
        container=envelope.container,
        initiator=envelope.sender,
        target=envelope.to,
        state="submitted",
        opening_id=envelope.id,
        reactions=reactions,
    )


def after(work: WorkView, envelope: Envelope, verdict: Transition) -> WorkView:
    """`work` after an applied envelope (outcome advanced or unchanged)."""
    state = verdict.state or work.state
    ended = state in TERMINAL_STATES and not work.is_terminal
    return msgspec.structs.replace(
        work,
        state=state,
        advanced=work.advanced or verdict.outcome == "advanced",
        terminal_id=envelope.id if ended else work.terminal_id,
        terminal_sender=envelope.sender if ended else work.terminal_sender,
    )
