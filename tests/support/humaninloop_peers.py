"""Two peers with agents of ADR-007, and the examples of its document."""

from typing import Any, Final

import msgspec

from aghbus.protocol.agh.bodies import Say, Trace
from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.protocol.agh.send import Draft, build
from aghbus.protocol.formats.humaninloop.adapter import HumanInLoop, HumanInLoopOptions
from aghbus.protocol.formats.model import Adapter, Delivered, SubmitPlan
from tests.support.bridge_peer import BridgePeer

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


class HumanInLoopPeer(BridgePeer):
    """A peer with an agent of ADR-007."""

    def __init__(self, us: str, adapter: Adapter) -> None:
        super().__init__(us, adapter, now=NOW)

    def submit(self, message: Any, other: BridgePeer, **fields: Any) -> tuple[SubmitPlan, list[Delivered]]:
        """The plan, and what is delivered to the other peer's agent."""
        plan = self.plan(message, **fields)
        if plan.refused:
            assert plan.drafts == ()
            return plan, []
        return plan, [other.receive(envelope) for envelope in self.commit(plan)]

    def send(self, draft: Draft, other: BridgePeer) -> Delivered:
        """Send a native envelope, and deliver it to the other peer."""
        return other.receive(self.say(draft))


def pair(options: HumanInLoopOptions | None = None) -> tuple[HumanInLoopPeer, HumanInLoopPeer]:
    adapter = HumanInLoop(options)
    return HumanInLoopPeer("flow", adapter), HumanInLoopPeer("checker", adapter)


def opened(message: Any = SEED_INPUT) -> tuple[HumanInLoopPeer, HumanInLoopPeer, WorkView]:
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
