"""Explaining stored and refused messages: the recorded decision, and every check by the current rules."""

from dataclasses import dataclass

from aghbus.daemon.state.identity import Identity
from aghbus.daemon.state.trust_policy import LivePolicy
from aghbus.protocol.agh.envelope import OPENING_KINDS, parse
from aghbus.protocol.agh.errors import ProtocolError
from aghbus.protocol.agh.trust.explain import Explanation, explain
from aghbus.protocol.api import trust as trust_api
from aghbus.protocol.api.messages import Message
from aghbus.protocol.base.errors import NotFound
from aghbus.store.engine.database import Store
from aghbus.store.tables import quarantine
from aghbus.store.tables.quarantine import QuarantinedEnvelope
from aghbus.store.tables.works import reads

_BY_TRUST = frozenset({"verification_failed", "unsupported_profile"})


@dataclass(frozen=True, slots=True, eq=False)
class TrustExplainer:
    """Why one daemon accepted or refused messages."""

    identity: Identity
    store: Store
    trust: LivePolicy

    async def explain(self, message_id: str) -> trust_api.TrustExplainResponse:
        """Every case of this message id (or of this number in the quarantine), stored ones first, the latest first."""
        reader = self.store.reader
        cases = [self._stored(message, raw) for message, raw in await quarantine.stored_with_id(reader, message_id)]
        cases += [await self._refused(one) for one in await quarantine.quarantined_with_id(reader, message_id)]
        if not cases:
            raise NotFound(
                f"no message {message_id} is stored here or in quarantine",
                hint="`aghctl messages list` and `aghctl quarantine` show the messages",
            )
        return trust_api.TrustExplainResponse(cases=cases)

    def _stored(self, message: Message, raw: bytes) -> trust_api.TrustCase:
        opened = message.outcome == "opened" and message.direction == "in"
        ours = {message.sender} if message.direction == "out" else self.identity  # our own id may have retired since
        found = explain(raw, message.received_ms // 1000, self.trust.now, ours, opens_work=opened)
        changed = "the rules have changed since: it would be refused now" if found.decided_by is not None else ""
        return trust_api.TrustCase(
            place="stored",
            direction=message.direction,
            message_id=message.id,
            sender=message.sender,
            received_ms=message.received_ms,
            key_id=found.key_id,
            recorded=message.trust,
            detail="",
            accepted=True,
            trust=found.verdict,
            decided_by=found.decided_by,
            checks=_checks(found),
            note=changed,
        )

    async def _refused(self, one: QuarantinedEnvelope) -> trust_api.TrustCase:
        whole = len(one.raw) == one.size
        opens = whole and await self._would_open(one)
        found = explain(one.raw, one.received_ms // 1000, self.trust.now, self.identity, opens_work=opens)
        if not whole:  # truncated: it cannot be parsed
            found = Explanation(verdict="rejected", key_id=None, checks=())
        return trust_api.TrustCase(
            place="quarantine",
            direction=None,
            message_id=one.message_id,
            sender=one.sender,
            received_ms=one.received_ms,
            key_id=found.key_id,
            recorded=one.reason,
            detail=one.detail,
            accepted=False,
            trust=found.verdict,
            decided_by=found.decided_by,
            checks=_checks(found),
            note=_note(one, found, whole=whole),
        )

    async def _would_open(self, one: QuarantinedEnvelope) -> bool:
        """Whether it would have opened a work with this daemon; a retry may have opened it since."""
        try:
            envelope = parse(one.raw, one.received_ms // 1000)
        except ProtocolError:
            return False
        if envelope.to not in self.identity or envelope.work_id is None or envelope.kind not in OPENING_KINDS:
            return False
        found = await reads.work(self.store.reader, envelope.work_id, envelope.channel)
        return found is None or found.work.opening_id == envelope.id


def _note(one: QuarantinedEnvelope, found: Explanation, *, whole: bool) -> str:
    if not whole:
        return f"only the first {len(one.raw)} of its {one.size} bytes are kept: it cannot be checked again"
    if found.decided_by is not None:
        return ""
    if one.reason in _BY_TRUST:
        return "the rules have changed since: it would be accepted now"
    return "trust did not decide: it was refused for the recorded reason"


def _checks(found: Explanation) -> list[trust_api.ExplainedCheck]:
    return [
        trust_api.ExplainedCheck(check=check.check, passed=check.passed, detail=check.detail) for check in found.checks
    ]
