"""Peers with agents of AgentOS, and variations of the examples of its schema."""

import json
from typing import Any, Final

import msgspec

from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.send import Draft
from aghbus.protocol.formats.agentos.adapter import AgentOs, AgentOsOptions
from aghbus.protocol.formats.model import Delivered
from tests.support.bridge_peer import CHANNEL, WORKSPACE, BridgePeer
from tests.support.seed_examples import examples, replaced

NOW: Final = 1_769_000_000
ASKER: Final = "one-brain.ob-001"
ANALYST: Final = "macro-analyst.ma-001"

QUERY, RESPONSE, ERROR, GAP = (example.value for example in examples("agentos"))


def varied(message: dict[str, Any], **changes: Any) -> dict[str, Any]:
    """A deep copy with members replaced; `...` removes one, `sender` stands for `from`."""
    made: dict[str, Any] = json.loads(json.dumps(message))
    if "sender" in changes:
        changes["from"] = changes.pop("sender")
    made.update(changes)
    return {key: value for key, value in made.items() if value is not ...}


V4 = "123e4567-e89b-42d3-a456-426614174000"
STAMP = "2026-01-21T12:53:20Z"  # NOW
ASKED = varied(QUERY, id=V4, timestamp=STAMP)
ANSWERED = varied(RESPONSE, id=V4, timestamp=STAMP)
FAILED = varied(ERROR, id=V4, timestamp=STAMP)


def agent(peer: str) -> dict[str, str]:
    """The AgentIdentifier that is this dotted peer id."""
    name, _, instance = peer.partition(".")
    return {"agentId": name, "instanceId": instance}


class AgentOsPeer(BridgePeer):
    """A peer with an agent of AgentOS."""

    def __init__(self, us: str, *, whole: bool = True, options: AgentOsOptions | None = None) -> None:
        super().__init__(us, AgentOs(options), now=NOW)
        self.whole = whole

    def send(self, message: Any, now: int = NOW, **fields: Any) -> Envelope:
        """The one envelope of a message that is neither refused nor repeated."""
        plan = self.plan(message, now, **fields)
        (envelope,) = self.commit(plan, now)
        return envelope


def pair(**options: Any) -> tuple[AgentOsPeer, AgentOsPeer]:
    """The asker and the analyst of the schema's examples."""
    made = AgentOsOptions(**options)
    return AgentOsPeer(ASKER, options=made), AgentOsPeer(ANALYST, options=made)


def queried() -> tuple[AgentOsPeer, AgentOsPeer, Envelope]:
    """The asker, the analyst that has received its query, and the envelope of the query."""
    asker, analyst = pair()
    question = asker.send(QUERY)
    analyst.receive(question)
    return asker, analyst, question


def rules(findings: tuple[Any, ...]) -> list[tuple[str, str, str]]:
    """Findings as `(path, rule, severity)`."""
    return [(finding.path, finding.rule, finding.severity) for finding in findings]


def message_of(delivered: Delivered) -> dict[str, Any]:
    """The delivered message."""
    assert isinstance(delivered.message, dict)
    return delivered.message


def native(sender: str, to: str | None, kind: str, body: dict[str, Any], **more: Any) -> Draft:
    """An envelope without a message of any format."""
    fields: dict[str, Any] = {
        "id": f"msg_{kind}_1",
        "workspace_id": WORKSPACE,
        "channel": CHANNEL,
        "kind": kind,
        "sender": sender,
        "to": to,
        "ts": NOW,
        "surface": "thread",
        "container": "thread_release_check",
        "expires_at": NOW + 600,
        "body": body,
    }
    return Draft(**(fields | more))


def on_work(draft: Draft, question: Envelope) -> Draft:
    """The draft on the work that `question` opened."""
    return msgspec.structs.replace(draft, work_id=question.work_id, container=question.container)


def changed(message: dict[str, Any], path: str, value: Any) -> dict[str, Any]:
    """A copy with the member at `path` (keys joined by dots) replaced; `...` removes it."""
    return replaced(message, {path.replace(".", "/"): value})
