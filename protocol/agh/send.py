"""Building our own envelopes, and applying them to our own copy of the work before publishing (spec section 5, Sending)."""

from collections.abc import Mapping
from typing import Any, Final

import msgspec
from msgspec import Raw

from aghbus.protocol.agh.delivery.order import AFTER, Predecessor
from aghbus.protocol.agh.effects import Advance, Bind, Effect, Effects, Open, StoreEnvelope
from aghbus.protocol.agh.envelope import NULL, OPENING_KINDS, Envelope, Wire, checked, parse
from aghbus.protocol.agh.errors import ProtocolError
from aghbus.protocol.agh.identifiers import direct_id, is_emitted_work_id, pair_of
from aghbus.protocol.agh.lifecycle import CONTINUES, Reactions, WorkView, after, opened_by, transition
from aghbus.protocol.agh.limits import MAX_ENVELOPE_BYTES, PROTOCOL
from aghbus.protocol.agh.rooms import Binding
from aghbus.protocol.agh.trust.trust import Signer
from aghbus.protocol.base.errors import InvalidRequest, Refused

_encode: Final = msgspec.json.Encoder().encode
_NOT_JSON: Final = (TypeError, ValueError, RecursionError, msgspec.EncodeError)


class Draft(msgspec.Struct, frozen=True):
    """An own envelope before it is encoded. Absent optional fields are left out of the JSON; `to` is always written.

    `after` is the envelope before it in its flow (protocol/agh/delivery/order.py), while that is unanswered. `continues`: it
    is conversation in a work that we know.
    """

    id: str
    workspace_id: str
    channel: str
    kind: str
    sender: str
    ts: int
    body: Mapping[str, Any]
    to: str | None = None
    surface: str | None = None
    container: str | None = None
    work_id: str | None = None
    reply_to: str | None = None
    trace_id: str | None = None
    causation_id: str | None = None
    expires_at: int | None = None
    ext: Mapping[str, Any] | None = None
    after: Predecessor | None = None
    continues: bool = False


class _OwnWire(Wire, kw_only=True, omit_defaults=True):
    to: str | None  # always written, like `proof`
    proof: Raw


def wire_document(draft: Draft) -> dict[str, Any]:
    """The JSON object of a draft in the field order of spec section 1. Raises InvalidRequest."""
    document: dict[str, Any] = msgspec.json.decode(_encoded(draft)[1])
    return document


def _encoded(draft: Draft) -> tuple[Wire, bytes]:
    """The members of a draft, and its bytes. Raises InvalidRequest."""
    ext = draft.ext
    if draft.after is not None:
        ext = {**(ext or {}), AFTER: draft.after}
    if draft.continues:
        ext = {**(ext or {}), CONTINUES: True}
    try:
        wire = _OwnWire(  # CPython passes more than fifteen keywords in a dict, which is far slower
            protocol=PROTOCOL,
            id=draft.id,
            workspace_id=draft.workspace_id,
            kind=draft.kind,
            channel=draft.channel,
            sender=draft.sender,
            to=draft.to,
            ts=draft.ts,
            work_id=draft.work_id,
            reply_to=draft.reply_to,
            trace_id=draft.trace_id,
            causation_id=draft.causation_id,
            expires_at=draft.expires_at,
            body=Raw(_encode(draft.body)),
            proof=NULL,
        )
        if draft.surface is not None:
            wire.surface = draft.surface
        if draft.surface == "thread":
            wire.thread_id = draft.container
        elif draft.surface == "direct":
            wire.direct_id = draft.container
        if ext:
            wire.ext = Raw(_encode(ext))
        return wire, _encode(wire)
    except _NOT_JSON as error:
        raise _not_json(error) from None


def build(draft: Draft, now: int, signer: Signer | None = None) -> Envelope:
    """The envelope of a draft, with the same checks as a received one: an envelope that we would refuse is not sent.

    `signer` is None for a daemon without a key; with one every envelope is signed (spec section 8). Raises InvalidRequest
    with field and rule.
    """
    try:
        if signer is not None:
            return parse(encoded(draft, signer), now)
        wire, raw = _encoded(draft)
        if len(raw) > MAX_ENVELOPE_BYTES:
            raise _too_large(raw)
        return checked(raw, wire, now)
    except ProtocolError as error:
        raise InvalidRequest(f"{error.detail} ({error.reason})") from None


def encoded(draft: Draft, signer: Signer | None = None) -> bytes:
    """The bytes of a draft without validation, for parts that were validated before. Raises InvalidRequest like `build`."""
    try:
        raw = _encoded(draft)[1] if signer is None else _encode(signer(wire_document(draft)))
    except _NOT_JSON as error:
        raise _not_json(error) from None
    if len(raw) > MAX_ENVELOPE_BYTES:
        raise _too_large(raw)
    return raw


def _not_json(error: Exception) -> InvalidRequest:
    return InvalidRequest(f"not representable as JSON: {error}")


def _too_large(raw: bytes) -> InvalidRequest:
    return InvalidRequest(
        f"the envelope would have {len(raw)} bytes, over the limit of {MAX_ENVELOPE_BYTES}",
        hint="send a reference (artifacts) instead of the content",
    )


def apply_own(
    envelope: Envelope, work: WorkView | None, bound: Binding | None, reactions: Reactions = "none"
) -> Effects:
    """The effects of sending `envelope`: store it as `out`, update our copy of the work, bind the room. `reactions` is that of a
    work that it opens.

    Raises Refused when our copy of the work forbids it. Raises InvalidRequest for an opening work_id outside our grammar, and
    for a direct room that is neither derived from the pair nor bound to it.
    """
    effects: list[Effect] = []
    pair = None
    if envelope.surface == "direct":
        binding = _own_room(envelope, bound)
        pair = binding.pair
        if binding != bound:
            effects.append(Bind(binding))
    verdict = None
    if envelope.work_id is not None:
        verdict = transition(work, envelope)
        if verdict.outcome in ("ignored", "rejected"):
            raise _refused(envelope, work, verdict.reason or "")
    effects.append(StoreEnvelope("out", "unverified" if envelope.proof is None else "verified", verdict, pair))
    if verdict is not None and verdict.outcome == "opened":
        if not is_emitted_work_id(envelope.work_id or ""):
            raise InvalidRequest("work_id: must match ^work_[a-zA-Z0-9_-]{1,64}$")
        if envelope.to == envelope.sender:  # our own messages are ignored on receipt: they would never be answered
            raise InvalidRequest("to: a work needs another peer than ourselves")
        effects.append(Open(opened_by(envelope, reactions)))
    elif verdict is not None and work is not None:
        effects.append(Advance(work, after(work, envelope, verdict)))
    return tuple(effects)


def _own_room(envelope: Envelope, bound: Binding | None) -> Binding:
    if envelope.to is None:
        raise InvalidRequest("to: is required in a direct room")
    if envelope.to == envelope.sender:
        raise InvalidRequest("to: a direct room needs another peer than ourselves")
    pair = pair_of(envelope.sender, envelope.to)
    if envelope.container == direct_id(envelope.workspace_id, envelope.channel, *pair):
        return Binding(pair, authoritative=True)
    if bound is not None and bound.pair == pair:  # an opaque id that the other peer introduced
        return bound
    raise InvalidRequest("direct_id: is not the room of this peer and the receiver", hint="leave it out: it is derived")


def _refused(envelope: Envelope, work: WorkView | None, reason: str) -> Refused:
    work_id = envelope.work_id or ""
    if work is None:
        return Refused(f"work {work_id} is not known here", code="not_found", hint="`aghctl work list` shows the works")
    says = {
        "work_closed": (f"work {work_id} is already {work.state}", "open a new work instead"),
        "work_container_mismatch": (
            f"work {work_id} lives in {work.container}, not in {envelope.container}",
            "leave the thread or room out: the work's own is used",
        ),
        "actor_not_allowed": (
            f"{envelope.sender} may not send this {envelope.kind} on work {work_id}",
            _who(envelope, work),
        ),
        "invalid_transition": (f"work {work_id} cannot go from {work.state} back to submitted", "send working instead"),
    }
    message, hint = says.get(reason, (f"work {work_id} does not allow this {envelope.kind}", ""))
    return Refused(message, code=reason, hint=hint)


def _who(envelope: Envelope, work: WorkView) -> str:
    if envelope.kind in OPENING_KINDS:
        return f"address the other participant: {work.other(envelope.sender) or 'you take no part in this work'}"
    return (
        f"only the target, {work.target}, accepts"
        if envelope.sender == work.initiator
        else "you take no part in this work"
    )
