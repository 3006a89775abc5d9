"""Two sides that speak ADR-007, with the protocol's own validator and lifecycle between them."""

import json
from typing import Any, Final, Literal

import msgspec

from aghbus.protocol.adapters.humaninloop.adapter import HumanInLoop, HumanInLoopOptions
from aghbus.protocol.adapters.model import (
    BridgeContext,
    BridgedEnvelope,
    BridgedMessage,
    Delivered,
    Direction,
    SubmitPlan,
)
from aghbus.protocol.bodies import Say, Trace
from aghbus.protocol.envelope import OPENING_KINDS, Envelope
from aghbus.protocol.lifecycle import WorkView, after, opened_by, step
from aghbus.protocol.send import Draft, apply_own, build

NOW: Final = 1_776_366_200

# The two examples of the seed, as printed.
SEED_INPUT: Final[dict[str, Any]] = {
    "context": {"feature_id": "005-user-auth", "workflow": "specify", "iteration": 1},
    "paths": {
        "feature_root": "specs/005-user-auth/",
        "spec": "specs/005-user-auth/spec.md",
        "checks": "check-modules/spec-checks.md",
    },
    "task": {"action": "validate", "params": {}},
    "prior_context": ["Spec complete", "3 edge cases identified"],
}
SEED_OUTPUT: Final[dict[str, Any]] = {
    "success": True,
    "summary": "Validated spec. Found 3 gaps requiring attention.",
    "artifacts": [{"path": "specs/005-user-auth/spec.md", "operation": "update", "content": "..."}],
    "notes": ["Ready for next phase", "Focus on auth edge cases"],
    "recommendation": "proceed",
}


class Crossing(msgspec.Struct, frozen=True):
    envelope: Envelope
    direction: Direction
    outcome: str | None
    message: Any = None
    foreign_id: str | None = None
    scope: str = ""


class Side:
    """One peer: its copy of the works, what crossed, and the adapter. It is the adapter's memory too."""

    whole = True

    def __init__(self, us: str, adapter: HumanInLoop) -> None:
        self.us = us
        self.adapter = adapter
        self.works: dict[str, WorkView] = {}
        self.crossings: list[Crossing] = []

    def context(self, **named: Any) -> BridgeContext:
        return BridgeContext(us=self.us, workspace_id="ws", channel="builders", now=NOW, **named)

    # the memory

    def find(self, foreign_id: str, scope: str = "", direction: Direction | None = None) -> BridgedMessage | None:
        found = [
            crossing
            for crossing in self.crossings
            if crossing.foreign_id == foreign_id
            and scope in ("", crossing.scope)
            and direction in (None, crossing.direction)
        ]
        return self._known(found[-1]) if found else None

    def arrived(self, foreign_id: str) -> list[BridgedMessage]:
        """The latest message of this id that arrived, whoever sent it."""
        found = self.find(foreign_id, direction="in")
        return [] if found is None else [found]

    def last(self, scope: str) -> BridgedMessage | None:
        found = [crossing for crossing in self.crossings if crossing.message is not None and crossing.scope == scope]
        return self._known(found[-1]) if found else None

    def work(self, work_id: str) -> WorkView | None:
        return self.works.get(work_id)

    def assigned_works(self) -> tuple[WorkView, ...]:
        return tuple(work for work in self.works.values() if work.target == self.us and not work.is_terminal)

    def was_delivered(self, work: WorkView) -> bool:
        return True

    def received_works(self) -> bool:
        return True

    def opening(self, work: WorkView) -> BridgedMessage | None:
        for crossing in self.crossings:
            if crossing.envelope.id == work.opening_id and crossing.message is not None:
                return self._known(crossing)
        return None

    def answered(self, work: WorkView) -> str:
        kinds = OPENING_KINDS if work.target == self.us else {"trace"}
        for crossing in reversed(self.crossings):
            envelope = crossing.envelope
            if envelope.work_id == work.work_id and envelope.sender != self.us and envelope.kind in kinds:
                return envelope.id
        return work.opening_id

    def sent(self, envelope_id: str) -> WorkView | Literal[True] | None:
        for crossing in self.crossings:
            if crossing.direction == "out" and crossing.envelope.id == envelope_id:
                return self.works.get(crossing.envelope.work_id or "") or True
        return None

    def _known(self, crossing: Crossing) -> BridgedMessage:
        return BridgedMessage(
            message=crossing.message,
            direction=crossing.direction,
            envelope_id=crossing.envelope.id,
            sender=crossing.envelope.sender,
            at=NOW,
            work=self.works.get(crossing.envelope.work_id or ""),
        )

    # what the daemon does

    def submit(self, message: Any, other: "Side", **named: Any) -> tuple[SubmitPlan, list[Delivered]]:
        """The plan, and what the other side's agent gets."""
        text = message if isinstance(message, bytes) else json.dumps(message).encode()
        plan = self.adapter.submit(text, self.context(**named), self)
        if plan.refused:
            assert plan.drafts == ()
        if plan.refused or plan.repeats:
            return plan, []
        return plan, [self.send(draft, other, plan) for draft in plan.drafts]

    def send(self, draft: Draft, other: "Side", plan: SubmitPlan | None = None) -> Delivered:
        """Through the protocol's own validator and lifecycle on both sides."""
        envelope = build(draft, NOW)
        apply_own(envelope, self.works.get(envelope.work_id or ""), None)
        outcome = self.take(envelope)
        message = None if plan is None else plan.message
        foreign_id, scope = (None, "") if plan is None else (plan.foreign_id, plan.scope)
        self.crossings.append(Crossing(envelope, "out", outcome, message, foreign_id, scope))
        return other.receive(envelope)

    def receive(self, envelope: Envelope) -> Delivered:
        outcome = self.take(envelope)
        arrival = BridgedEnvelope(envelope=envelope, work=self.works.get(envelope.work_id or ""), outcome=outcome)
        delivered = self.adapter.deliver(arrival, self.context(), self)
        message = None if delivered.native else delivered.message
        self.crossings.append(Crossing(envelope, "in", outcome, message, delivered.foreign_id, delivered.scope))
        return delivered

    def take(self, envelope: Envelope) -> str | None:
        if envelope.work_id is None:
            return None
        work = self.works.get(envelope.work_id)
        verdict = step(work, envelope)
        if verdict.outcome == "opened":
            self.works[envelope.work_id] = opened_by(envelope)
        elif work is not None and verdict.outcome in ("advanced", "unchanged"):
            self.works[envelope.work_id] = after(work, envelope, verdict)
        return verdict.outcome

    def native(self, kind: str, body: dict[str, Any], work: WorkView | None, to: str, **more: Any) -> Draft:
        """An envelope of a peer that knows nothing of this format."""
        container = work.container if work is not None else "thread_plain"
        made = Draft(
            id=f"msg_native_{len(self.crossings)}",
            workspace_id="ws",
            channel="builders",
            kind=kind,
            sender=self.us,
            to=to,
            ts=NOW,
            surface="thread",
            container=container,
            work_id=work.work_id if work is not None else None,
            body=body,
        )
        return msgspec.structs.replace(made, **more)


def pair(options: HumanInLoopOptions | None = None) -> tuple[Side, Side]:
    adapter = HumanInLoop(options)
    return Side("flow", adapter), Side("checker", adapter)


def opened(message: Any = SEED_INPUT) -> tuple[Side, Side, WorkView]:
    flow, checker = pair()
    plan, _ = flow.submit(message, checker, target="checker")
    assert plan.findings == ()
    return flow, checker, checker.assigned_works()[0]


def output(**changed: Any) -> dict[str, Any]:
    base = {"success": True, "summary": "done", "artifacts": [], "recommendation": "proceed"}
    return {**base, **changed}


def rules(found: SubmitPlan | Delivered) -> list[tuple[str, str, str]]:
    return [(finding.severity, finding.rule, finding.path) for finding in found.findings]


def say_of(plan: SubmitPlan) -> Say:
    body = build(plan.drafts[0], NOW).body
    assert isinstance(body, Say)
    return body


def trace_of(plan: SubmitPlan) -> Trace:
    body = build(plan.drafts[0], NOW).body
    assert isinstance(body, Trace)
    return body


def result_of(plan: SubmitPlan) -> Any:
    result = trace_of(plan).result
    assert result is not None
    return msgspec.json.decode(result)


def inside(delivered: Delivered) -> dict[str, Any]:
    """The message that the agent gets, which must be one."""
    assert isinstance(delivered.message, dict)
    return delivered.message
