"""Peers with agents of Sentient on a bus in memory, and variations of the examples of its specification."""

from typing import Any, Final

from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.send import Draft
from aghbus.protocol.formats.model import AgentMap, Finding, SubmitPlan
from aghbus.protocol.formats.sentient.adapter import Sentient, SentientOptions
from aghbus.protocol.formats.timestamps import read_timestamp
from tests.support.bridge_peer import BridgePeer
from tests.support.seed_examples import examples

OBJECTIVES, GOALS, OUT_OF_SCOPE = (example.value for example in examples("sentient"))
NAMES: Final = {"objective_agent": "obj", "goal_agent": "goal", "planning_agent": "plan"}
Message = dict[str, Any]


def at(message: Message) -> int:
    """The Unix second in which a message says it was made."""
    stamp = read_timestamp(message["timestamp"]["executed_at"])
    assert stamp is not None
    assert stamp.seconds is not None
    return stamp.seconds


NOW: Final = at(OBJECTIVES) + 2


def rules(findings: tuple[Finding, ...], severity: str | None = None) -> list[tuple[str, str]]:
    """Path and rule of each finding, in order."""
    return [(one.path, one.rule) for one in findings if severity in (None, one.severity)]


class SentientPeer(BridgePeer):
    """A peer with an agent of Sentient."""

    def __init__(self, us: str, user: str | None = None, names: dict[str, str] = NAMES) -> None:
        super().__init__(us, Sentient(SentientOptions(user=user)), now=NOW, agents=AgentMap(names=names))


class SentientBus:
    """Carries envelopes between peers by their receiver."""

    def __init__(self, *peers: SentientPeer) -> None:
        self.peers = {peer.us: peer for peer in peers}

    def submit(self, name: str, message: Any, **fields: Any) -> SubmitPlan:
        """Submit a message of the peer `name`, and deliver its envelopes."""
        peer = self.peers[name]
        plan = peer.plan(message, **fields)
        for envelope in peer.commit(plan):
            assert envelope.to is not None
            self.peers[envelope.to].receive(envelope)
        return plan

    def request(self, draft: Draft) -> Envelope:
        """Send a native envelope of a peer, and deliver it."""
        envelope = self.peers[draft.sender].say(draft)
        self.peers[envelope.to or ""].receive(envelope)
        return envelope
