"""Deciding about a received envelope: steps 6 to 9 of spec section 5, and the automatic answers.

`decide` gets a valid envelope and a view of the state, and returns effects. It has no memory, clock or randomness of its
own: `Receiver` carries who we are, the time and where new ids come from.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from aghbus.protocol.bodies import Greet, Receipt, Whois
from aghbus.protocol.effects import (
    Advance,
    AnswerWhois,
    Bind,
    Conflict,
    Deliver,
    Discovered,
    Effect,
    Effects,
    Ignore,
    Open,
    Quarantine,
    Queue,
    Remember,
    Requeue,
    Store,
)
from aghbus.protocol.envelope import DISCOVERY_KINDS, OPENING_KINDS, Envelope
from aghbus.protocol.errors import FormerPeer, InvalidRequest, NotTarget, ProtocolError, Refused
from aghbus.protocol.identifiers import direct_id, pair_of
from aghbus.protocol.lifecycle import Step, WorkView, after, opened_by, step
from aghbus.protocol.rooms import Binding, admit
from aghbus.protocol.send import Draft, apply_own, build, own_trust
from aghbus.protocol.trust.policy import Policy
from aghbus.protocol.trust.trust import Signer, Trust, Verifier, assess

_DELIVER: Final = Deliver()


class StoredState(msgspec.Struct, frozen=True):
    """What the store knows that bears on one envelope: read in the transaction that will carry the effects out."""

    duplicate: bool = False
    sent_by_us: bool = False
    work: WorkView | None = None
    room: Binding | None = None


class Receiver(msgspec.Struct, frozen=True, kw_only=True):
    """Who receives: `us` is our peer id, `now` Unix seconds, `mint` a source of new envelope ids.

    `channels` are the `(workspace_id, channel)` joined; `observe` follows what is directed at others; `receipt_ttl` is the
    life of an automatic receipt in seconds. `verifier` checks proofs, `policy` judges who sent what, and `signer` signs our
    receipts when we have a key. `successor` is set where `us` is a former id of ours, under which works are only finished.
    """

    us: str
    now: int
    mint: Callable[[], str]
    channels: frozenset[tuple[str, str]]
    observe: bool = False
    receipt_ttl: int = 86_400
    verifier: Verifier | None = None
    successor: str | None = None
    policy: Policy = Policy()
    signer: Signer | None = None


class ReceiptTarget(msgspec.Struct, frozen=True, kw_only=True):
    """What an automatic receipt needs of the envelope that it answers; of a refused one, as far as it could be read."""

    id: str
    workspace_id: str
    channel: str
    kind: str
    sender: str
    surface: str
    container: str
    work_id: str
    trace_id: str | None = None


def decide(envelope: Envelope, view: StoredState, receiver: Receiver) -> Effects:
    """The effects of a valid envelope (spec section 5 steps 6-9). Never raises for what a peer sent."""
    trust: Trust | None = None
    try:
        trust = assess(envelope, receiver.verifier)
        policy = receiver.policy
        # Our own messages come back to us, whatever we think of others.
        if envelope.sender != receiver.us and not policy.asks_nothing_of(envelope, trust):
            policy.judge(envelope, trust, opens_work=_opens_work(envelope, view, receiver))
        return _route(envelope, trust, view, receiver)
    except ProtocolError as error:
        return refuse(error, _answerable(envelope, receiver), view, receiver, trust)


def _opens_work(envelope: Envelope, view: StoredState, receiver: Receiver) -> bool:
    directed = envelope.to == receiver.us and envelope.work_id is not None
    return directed and envelope.kind in OPENING_KINDS and view.work is None


def refuse(
    error: ProtocolError,
    source: ReceiptTarget | None,
    view: StoredState,
    receiver: Receiver,
    trust: Trust | None = None,
) -> Effects:
    """The effects of a failure in steps 1 to 7. `source` is what could be read of it, None when too little; `trust` what
    verification said, None when it did not come to that.

    Receipts answer `expired` and `unsupported_kind` always, other reasons only where the envelope would have opened a work:
    a bad continuation must not fail the work.
    """
    effects: list[Effect] = [Quarantine(error.reason, error.detail, trust)]
    if source is None or isinstance(error, NotTarget) or source.sender == receiver.us:
        return tuple(effects)
    if error.reason in ("expired", "unsupported_kind") and view.work is not None and _opened(view.work, source):
        return (*effects, *_duplicate(source, view.work, receiver))  # an earlier copy came in time
    status = {"expired": "expired", "unsupported_kind": "unsupported"}.get(error.reason)
    if status is None and source.kind in OPENING_KINDS and view.work is None:
        status = "rejected"
    if status is not None and (source.kind in OPENING_KINDS or status == "unsupported"):
        ours = _own_copy(source, view.work, receiver)
        effects.extend(_receipt(source, status, error.reason, error.detail, ours, receiver))
    return tuple(effects)


def _answerable(envelope: Envelope, receiver: Receiver) -> ReceiptTarget | None:
    """The source of a receipt where the sender is not believed: only what is addressed to us, in the pair's own room.

    The same rule as for what could not even be parsed: an opaque room of a refused envelope was never established.
    """
    if envelope.to != receiver.us or (envelope.workspace_id, envelope.channel) not in receiver.channels:
        return None
    source = source_of(envelope)
    if source is None or source.sender == receiver.us or source.surface != "direct":
        return source
    room = direct_id(source.workspace_id, source.channel, source.sender, receiver.us)
    return source if source.container == room else None


def source_of(envelope: Envelope) -> ReceiptTarget | None:
    """The part of an envelope that receipts answer to; None where none may be sent (undirected, or without work)."""
    if envelope.to is None or envelope.work_id is None or envelope.surface is None or envelope.container is None:
        return None
    if envelope.kind not in OPENING_KINDS:
        return None
    return ReceiptTarget(
        id=envelope.id,
        workspace_id=envelope.workspace_id,
        channel=envelope.channel,
        kind=envelope.kind,
        sender=envelope.sender,
        surface=envelope.surface,
        container=envelope.container,
        work_id=envelope.work_id,
        trace_id=envelope.trace_id,
    )


def _route(envelope: Envelope, trust: Trust, view: StoredState, receiver: Receiver) -> Effects:
    if (envelope.workspace_id, envelope.channel) not in receiver.channels:
        raise NotTarget("is none of the channels joined here", "channel")
    if envelope.sender == receiver.us:
        return (Ignore("own"),) if view.sent_by_us else (Conflict(envelope),)
    if envelope.to not in (None, receiver.us):
        if not receiver.observe:
            raise NotTarget("is another peer", "to")
        return _observe(envelope, trust, view)
    if envelope.kind in DISCOVERY_KINDS:
        return _discovery(envelope, trust, view)
    binding = admit(envelope, receiver.us, view.room) if envelope.surface == "direct" else None
    if view.duplicate:
        source = source_of(envelope)
        if source is None:
            return (Ignore("duplicate"),)
        return (Ignore("duplicate"), *_duplicate(source, view.work, receiver))
    if receiver.successor is not None and _opens_work(envelope, view, receiver):
        raise FormerPeer(f"takes no new work, it is {receiver.successor} now", "to")
    room: tuple[Effect, ...] = (Bind(binding),) if binding is not None and binding != view.room else ()
    pair = binding.pair if binding is not None else None
    return (Remember(envelope.fresh_until), *room, *_conversation(envelope, trust, pair, view, receiver))


def _duplicate(source: ReceiptTarget, work: WorkView | None, receiver: Receiver) -> Effects:
    """The receipt that says "it arrived"; where the work has ended through us, its end goes out again before it."""
    again = _terminal_again(source, work, receiver)
    ours = _own_copy(source, work, receiver)
    return (*again, *_receipt(source, "duplicate", "duplicate", "already processed", ours, receiver))


def _terminal_again(source: ReceiptTarget, work: WorkView | None, receiver: Receiver) -> Effects:
    """Our end of the work once more, for the participant who seems to have missed it."""
    if work is None or work.terminal_id is None or work.terminal_sender != receiver.us:
        return ()
    return (Requeue(work.workspace_id, work.terminal_id),) if work.other(receiver.us) == source.sender else ()


def _own_copy(source: ReceiptTarget, work: WorkView | None, receiver: Receiver) -> WorkView | None:
    """The open work that a receipt to `source` is applied to; None when it concerns another container or a stranger."""
    if work is None or work.is_terminal or work.other(receiver.us) != source.sender:
        return None
    return work if (work.surface, work.container) == (source.surface, source.container) else None


def _opened(work: WorkView, source: ReceiptTarget) -> bool:
    return (work.opening_id, work.initiator) == (source.id, source.sender)  # ids are unique only per sender


def _discovery(envelope: Envelope, trust: Trust, view: StoredState) -> Effects:
    if view.duplicate:
        return (Ignore("duplicate"),)
    remember = Remember(envelope.fresh_until)
    body = envelope.body
    if isinstance(body, Greet):
        return (remember, Discovered(body.card, trust))
    if isinstance(body, Whois) and body.card is not None:
        return (remember, Discovered(body.card, trust, envelope.reply_to))
    return (remember, AnswerWhois(envelope))


def _observe(envelope: Envelope, trust: Trust, view: StoredState) -> Effects:
    """Others' directed traffic: kept as observed with our own reckoning of the work; direct rooms of others only counted."""
    if envelope.surface == "direct" or envelope.to == envelope.sender:
        return (Ignore("private_room"),)
    if envelope.kind in DISCOVERY_KINDS:
        return (Ignore("discovery_of_others"),)
    if view.duplicate:
        return (Ignore("duplicate"),)
    verdict = step(view.work, envelope) if envelope.work_id is not None else None
    kept: list[Effect] = [Remember(envelope.fresh_until), Store("observed", trust, verdict)]
    return (*kept, *_work_effects(envelope, view.work, verdict))


def _conversation(
    envelope: Envelope, trust: Trust, pair: tuple[str, str] | None, view: StoredState, receiver: Receiver
) -> Effects:
    """Step 9: the lifecycle's verdict, and what follows from it. Without a work it is conversation, for the agent."""
    if envelope.work_id is None:
        return (Store("in", trust, None, pair), _DELIVER)
    verdict = step(view.work, envelope)
    effects: list[Effect] = [Store("in", trust, verdict, pair), *_work_effects(envelope, view.work, verdict)]
    if envelope.kind in OPENING_KINDS and verdict.outcome not in ("ignored", "rejected"):
        effects.append(_DELIVER)
    if verdict.outcome == "rejected":
        effects.extend(_rejection(envelope, verdict, view, receiver))
    if view.work is not None:
        effects.extend(_close_unanswered(envelope, verdict, view.work, receiver))
    return tuple(effects)


def _work_effects(envelope: Envelope, work: WorkView | None, verdict: Step | None) -> Effects:
    if verdict is None or verdict.outcome in ("ignored", "rejected"):
        return ()
    if verdict.outcome == "opened":
        return (Open(opened_by(envelope)),)
    return (Advance(work, after(work, envelope, verdict)),) if work is not None else ()


def _rejection(envelope: Envelope, verdict: Step, view: StoredState, receiver: Receiver) -> Effects:
    source = source_of(envelope)
    if source is None:
        return ()
    again = _terminal_again(source, view.work, receiver) if verdict.reason == "work_closed" else ()
    return (*again, *_receipt(source, "rejected", verdict.reason or "internal", "", None, receiver))


def _close_unanswered(envelope: Envelope, verdict: Step, work: WorkView, receiver: Receiver) -> Effects:
    """The opening envelope expired or was not understood, and nothing has advanced since: the initiator closes the work."""
    body = envelope.body
    if not isinstance(body, Receipt) or body.status not in ("expired", "unsupported") or verdict.outcome != "unchanged":
        return ()
    if work.initiator != receiver.us or body.for_id != work.opening_id or work.advanced:
        return ()
    source = ReceiptTarget(
        id=work.opening_id,
        workspace_id=work.workspace_id,
        channel=work.channel,
        kind="say",
        sender=work.target,
        surface=work.surface,
        container=work.container,
        work_id=work.work_id,
        trace_id=envelope.trace_id,
    )
    current = after(work, envelope, verdict)
    detail = f"the opening message was answered {body.status}"
    closing = _receipt(source, "canceled", body.reason_code, detail, current, receiver)
    # Once per work and our own decision: a budget of automatic receipts that is spent must not leave the work open.
    return tuple(msgspec.structs.replace(queued, automatic=False) for queued in closing)


def _receipt(
    source: ReceiptTarget, status: str, reason: str | None, detail: str, work: WorkView | None, receiver: Receiver
) -> tuple[Queue, ...]:
    """A receipt to `source.sender`, applied to our own copy `work`; nothing when our own copy forbids it (spec section 5).

    Without `work` it concerns no open work of ours: it goes out in the container of what it answers and changes nothing.
    """
    body = {"for_id": source.id, "status": status}
    if reason is not None:
        body["reason_code"] = reason
    if detail:
        body["detail"] = detail
    draft = Draft(
        id=receiver.mint(),
        workspace_id=source.workspace_id,
        channel=source.channel,
        kind="receipt",
        sender=receiver.us,
        to=source.sender,
        ts=receiver.now,
        expires_at=receiver.now + receiver.receipt_ttl,
        surface=source.surface,
        container=source.container,
        work_id=source.work_id,
        reply_to=source.id,
        causation_id=source.id,
        trace_id=source.trace_id,
        body=body,
    )
    pair = pair_of(receiver.us, source.sender) if source.surface == "direct" else None
    try:
        envelope = build(draft, receiver.now, receiver.signer)
        if work is None:
            return (Queue(envelope, (Store("out", own_trust(envelope), Step("unchanged", None), pair),)),)
        room = Binding(pair, authoritative=False) if pair is not None else None
        own = apply_own(envelope, work, room)
    except (InvalidRequest, Refused):
        return ()
    # The room was bound when the envelope that this answers was let in.
    return (Queue(envelope, tuple(effect for effect in own if not isinstance(effect, Bind))),)
