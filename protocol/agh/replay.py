"""Validation and replay of recorded envelopes, with the state of one receiver in memory.

There is no routing: every envelope counts as addressed to this receiver, as in the test vectors.
"""

from typing import Literal

import msgspec

from aghbus.protocol.agh.envelope import Envelope, parse
from aghbus.protocol.agh.errors import ProtocolError
from aghbus.protocol.agh.lifecycle import WorkView, after, opened_by, transition
from aghbus.protocol.agh.partial_parse import identity, readable
from aghbus.protocol.agh.trust.trust import Verifier, assess

ReplayOutcome = Literal["opened", "advanced", "unchanged", "ignored", "rejected", "refused"]


class CheckedEnvelope(msgspec.Struct, frozen=True):
    """The result for one envelope without state, as `aghctl envelope check` prints it."""

    id: str | None
    accept: bool
    reason: str | None
    detail: str | None


class Replayed(msgspec.Struct, frozen=True):
    """The result for one envelope of a sequence, as `aghctl envelope replay` prints it."""

    id: str | None
    outcome: ReplayOutcome
    state: str | None
    reason: str | None


def check(raw: bytes, now: int, verifier: Verifier | None = None) -> CheckedEnvelope:
    """Steps 1 to 6 of spec section 5 without local policy. Without a verifier signed envelopes of handles are refused."""
    try:
        envelope = parse(raw, now)
        assess(envelope, verifier)
    except ProtocolError as error:
        return CheckedEnvelope(identity(readable(raw, error))[0] or None, False, error.reason, error.detail)
    return CheckedEnvelope(envelope.id, True, None, None)


class Replay:
    """A receiver that is fed envelopes in order and keeps their works and ids."""

    def __init__(self, verifier: Verifier | None = None) -> None:
        self._verifier = verifier
        self._works: dict[tuple[str, str, str], WorkView] = {}
        self._seen: set[tuple[str, str, str]] = set()

    def feed(self, raw: bytes, now: int) -> Replayed:
        """The verdict on the next envelope at Unix second `now`."""
        try:
            envelope = parse(raw, now)
            assess(envelope, self._verifier)
        except ProtocolError as error:
            return Replayed(identity(readable(raw, error))[0] or None, "refused", None, error.reason)
        key = (envelope.workspace_id, envelope.sender, envelope.id)
        work = self.work_of(envelope)
        if key in self._seen:
            return Replayed(envelope.id, "ignored", work.state if work else None, "duplicate")
        self._seen.add(key)
        return self._apply(envelope, work)

    def work_of(self, envelope: Envelope) -> WorkView | None:
        """The work that `envelope` names, if it is known."""
        if envelope.work_id is None:
            return None
        return self._works.get((envelope.workspace_id, envelope.channel, envelope.work_id))

    def _apply(self, envelope: Envelope, work: WorkView | None) -> Replayed:
        if envelope.work_id is None:
            return Replayed(envelope.id, "unchanged", None, None)
        verdict = transition(work, envelope)
        key = (envelope.workspace_id, envelope.channel, envelope.work_id)
        if verdict.outcome == "opened":
            self._works[key] = opened_by(envelope)
        elif work is not None and verdict.outcome in ("advanced", "unchanged"):
            self._works[key] = after(work, envelope, verdict)
        return Replayed(envelope.id, verdict.outcome, verdict.state, verdict.reason)
