"""Responses of SACP for the tests of its adapter."""

from typing import Any, Final

import msgspec

from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.formats.model import Delivered, SubmitPlan
from aghbus.protocol.formats.sacp.adapter import Sacp, SacpOptions
from aghbus.protocol.formats.sacp.guardrails import Guardrail
from tests.support.bridge_peer import BridgePeer

NOW: Final = 1_776_366_200
ASKS: Final = "orchestrator"
WORKS: Final = "researcher"
CARD: Final = Guardrail("card", r"\d{4}-\d{4}-\d{4}-\d{4}")
NUMBER: Final = "4111-1111-1111-1111"


def response(status: str = "success", **changes: Any) -> dict[str, Any]:
    return {"thought": "t", "status": status, "data": {"a": 1}, "message": "m"} | changes


class SacpPeer(BridgePeer):
    """A peer with an agent of SACP."""

    def __init__(self, us: str, **options: Any) -> None:
        super().__init__(us, Sacp(SacpOptions(**options)), now=NOW)

    def write(self, text: str | bytes, **fields: Any) -> SubmitPlan:
        """The plan for a text of the agent; nothing is sent."""
        return self.plan(text.encode() if isinstance(text, str) else text, **fields)

    def receive(self, envelope: Envelope, now: int | None = None, *, carried: Any = None) -> Delivered:
        """As BridgePeer, without the row of the audit table (test_sacp_received.py)."""
        return msgspec.structs.replace(super().receive(envelope, now, carried=carried), record=None)


def send(plan: SubmitPlan, sender: BridgePeer, receiver: BridgePeer) -> Delivered:
    """Send the one envelope of a plan and deliver it."""
    (envelope,) = sender.commit(plan)
    return receiver.receive(envelope)


def received(delivered: Delivered) -> Any:
    """The message that an agent gets."""
    assert delivered.message is not None
    return delivered.message


def pair(**options: Any) -> tuple[SacpPeer, SacpPeer]:
    """An orchestrator, and a worker with `options` that it has given a work."""
    asks, works = SacpPeer(ASKS), SacpPeer(WORKS, **options)
    send(asks.write("Find the email.", target=WORKS), asks, works)
    return asks, works


def rules(found: SubmitPlan | Delivered) -> list[tuple[str, str]]:
    return [(finding.path, finding.rule) for finding in found.findings]


def body(plan: SubmitPlan) -> dict[str, Any]:
    (draft,) = plan.drafts
    return dict(draft.body)
