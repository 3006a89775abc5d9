"""Decisions about received envelopes: steps 6 to 9 of spec section 5, and automatic receipts with their reason codes.

The reason code of a receipt is that of the error (`refuse`; protocol/agh/errors.py) or of the lifecycle (`Transition.reason`).
daemon/receive/receipt_policy.py only decides whether the receipt is sent.

`decide` takes a valid envelope and the stored state, and returns effects. It has no state, clock or randomness of its own:
`Receiver` carries our identity, the time and the source of new ids.
"""

from collections.abc import Callable
from functools import lru_cache
from typing import Any, Final

import msgspec

from aghbus.protocol.agh.bodies import Greet, Receipt, Trace, Whois, receipt_body
from aghbus.protocol.agh.decoding import decode_json
from aghbus.protocol.agh.delivery.acks import refusal_in
from aghbus.protocol.agh.delivery.notices import TEXTS, notice_id
from aghbus.protocol.agh.delivery.order import AFTER, Predecessor, may_take, predecessor_of
from aghbus.protocol.agh.delivery.restored import Restored
from aghbus.protocol.agh.effects import (
    Advance,
    AnswerWhois,
    Bind,
    Deliver,
    Discovered,
    Early,
    Effect,
    Effects,
    Hold,
    Ignore,
    Open,
    PeerIdConflict,
    Quarantine,
    Queue,
    RecordId,
    Requeue,
    StoreEnvelope,
)
from aghbus.protocol.agh.envelope import DISCOVERY_KINDS, OPENING_KINDS, Envelope, fresh_until
from aghbus.protocol.agh.errors import FormerPeer, NotTarget, ProtocolError
from aghbus.protocol.agh.identifiers import direct_id, pair_of
from aghbus.protocol.agh.lifecycle import TERMINAL_STATES, Transition, WorkView, after, opened_by, transition
from aghbus.protocol.agh.receipt_target import ReceiptTarget, source_of
from aghbus.protocol.agh.rooms import Binding, admit
from aghbus.protocol.agh.send import Draft, apply_own, build
from aghbus.protocol.agh.trust.policy import TrustPolicy
from aghbus.protocol.agh.trust.trust import Signer, Trust, Verifier, assess
from aghbus.protocol.base.errors import InvalidRequest, Refused

_DELIVER: Final = Deliver()
_CACHED: Final = 1_024
_REJECTED: Final = frozenset({"malformed", "invalid_surface", "verification_failed", "not_found"})
"""Reasons of automatic receipts `rejected` in steps 1 to 7 (spec section 5); `not_found` is that of FormerPeer."""


class StoredState(msgspec.Struct, frozen=True):
    """The stored state that concerns one envelope, read in the transaction that applies the effects.

    `settled` is the header of that name with which it came (protocol/agh/delivery/order.py). `end` are the bytes of our terminal
    envelope, if the sender may drop it under its old id.
    """

    duplicate: bool = False
    sent_by_us: bool = False
    work: WorkView | None = None
    room: Binding | None = None
    settled: str = ""
    end: bytes = b""


def _nothing_processed(_workspace_id: str, _sender: str, _message_id: str) -> bool:
    return False


def _nothing_outstanding(_envelope: ReceiptTarget) -> None:
    return None


class Receiver(msgspec.Struct, frozen=True, kw_only=True):
    """The receiving peer: `self_id` is our peer id, `now` Unix seconds, `mint` a source of new envelope ids.

    `channels` are the joined `(workspace_id, channel)`. With `observe` messages to other peers are stored too. `receipt_ttl` is
    the lifetime of an automatic receipt in seconds. `verifier` checks proofs, `policy` holds the trust rules, and `signer` signs
    our receipts if we have a key. `successor` is our new id if `self_id` is a former one, under which we only finish works.
    `processed` says whether the envelope of a workspace, a sender and an id was committed before; `predecessor` is the last
    unanswered own envelope in the flow of a receipt to that target, None for a receipt that will not be stored. `restored` is
    the epoch of our store, if it was restored.
    """

    self_id: str
    now: int
    mint: Callable[[], str]
    channels: frozenset[tuple[str, str]]
    observe: bool = False
    receipt_ttl: int = 86_400
    verifier: Verifier | None = None
    successor: str | None = None
    policy: TrustPolicy = TrustPolicy()
    signer: Signer | None = None
    processed: Callable[[str, str, str], bool] = _nothing_processed
    predecessor: Callable[[ReceiptTarget], Predecessor | None] = _nothing_outstanding
    restored: Restored | None = None


def decide(envelope: Envelope, view: StoredState, receiver: Receiver) -> Effects:
    """The effects of a valid envelope (spec section 5 steps 6-9). Invalid peer input never raises."""
    trust: Trust | None = None
    try:
        plain = envelope.proof is None and "@" not in envelope.sender  # claims no key: nothing to assess
        trust = "unverified" if plain else assess(envelope, receiver.verifier)
        policy = receiver.policy
        # The trust rules do not apply to our own messages.
        if envelope.sender != receiver.self_id and not policy.no_rule_applies(envelope, trust):
            policy.judge(envelope, trust, opens_work=_opens_work(envelope, view, receiver))
        return _route(envelope, trust, view, receiver)
    except ProtocolError as error:
        return refuse(error, _answerable(envelope, receiver), view, receiver, trust)


def _opens_work(envelope: Envelope, view: StoredState, receiver: Receiver) -> bool:
    directed = envelope.to == receiver.self_id and envelope.work_id is not None
    return directed and envelope.kind in OPENING_KINDS and view.work is None


def refuse(
    error: ProtocolError,
    source: ReceiptTarget | None,
    view: StoredState,
    receiver: Receiver,
    trust: Trust | None = None,
) -> Effects:
    """The effects of a failure in steps 1 to 7. `source` is the target of a receipt, None if none may be sent; `trust` is the
    result of verification, None if the failure came before it.

    `expired` and `unsupported_kind` always get a receipt, the reasons of _REJECTED only if the envelope would have opened a
    work: an invalid continuation must not fail the work. Other reasons get none.
    """
    effects: list[Effect] = [Quarantine(error.reason, error.detail, trust)]
    if source is None or isinstance(error, NotTarget) or source.sender == receiver.self_id:
        return tuple(effects)
    taken = view.duplicate or (view.work is not None and _opened(view.work, source))  # an earlier copy arrived in time
    if taken and error.reason in ("expired", "unsupported_kind"):
        return (*effects, *_duplicate(source, view, receiver))
    status = {"expired": "expired", "unsupported_kind": "unsupported"}.get(error.reason)
    if status is None and error.reason in _REJECTED and source.kind in OPENING_KINDS and view.work is None:
        status = "rejected"
    if status is not None and (source.kind in OPENING_KINDS or status == "unsupported"):
        ours = _own_copy(source, view.work, receiver)
        effects.extend(_receipt(source, status, error.reason, error.detail, ours, receiver))
    return tuple(effects)


def turn_away(envelope: Envelope, detail: str, receiver: Receiver) -> Effects:
    """The effects of an opening for which the receiver has no room: a receipt, and nothing is kept, not even its id."""
    source = source_of(envelope)
    return (Ignore("busy"), *(() if source is None else _receipt(source, "rejected", "busy", detail, None, receiver)))


def _answerable(envelope: Envelope, receiver: Receiver) -> ReceiptTarget | None:
    """The target of a receipt to a refused envelope: only if it is addressed to us, in a thread or the pair's derived room.

    The same rule as in `partial_parse`: the members of an opaque room of a refused envelope are not known.
    """
    if envelope.to != receiver.self_id or (envelope.workspace_id, envelope.channel) not in receiver.channels:
        return None
    source = source_of(envelope)
    if source is None or source.sender == receiver.self_id or source.surface != "direct":
        return source
    room = direct_id(source.workspace_id, source.channel, source.sender, receiver.self_id)
    return source if source.container == room else None


def _route(envelope: Envelope, trust: Trust, view: StoredState, receiver: Receiver) -> Effects:
    if (envelope.workspace_id, envelope.channel) not in receiver.channels:
        raise _not_joined(envelope, receiver)
    if envelope.sender == receiver.self_id:
        return (Ignore("own"),) if view.sent_by_us else (PeerIdConflict(envelope),)
    if envelope.to is not None and envelope.to != receiver.self_id:
        if not receiver.observe:
            raise NotTarget("is another peer", "to")
        return _observe(envelope, trust, view)
    if envelope.kind in DISCOVERY_KINDS:
        return _discovery(envelope, trust, view, receiver.now)
    binding = admit(envelope, receiver.self_id, view.room) if envelope.surface == "direct" else None
    if view.duplicate:
        source = source_of(envelope)
        if source is None:
            return (Ignore("duplicate"),)
        return (Ignore("duplicate"), *_duplicate(source, view, receiver))
    if envelope.ext is not None and envelope.to is not None and _is_early(envelope, view, receiver):
        return (Early(),)
    if receiver.successor is not None and _opens_work(envelope, view, receiver):
        raise FormerPeer(f"is a former peer id; send new work to {receiver.successor}", "to")
    if binding is None and envelope.work_id is None:
        return _delivery(envelope.fresh_until, trust)
    room = (Bind(binding),) if binding is not None and binding != view.room else ()
    pair = None if binding is None else binding.pair
    if envelope.work_id is None:
        return (RecordId(envelope.fresh_until), *room, StoreEnvelope("in", trust, None, pair), _DELIVER)
    return (RecordId(envelope.fresh_until), *room, *_in_work(envelope, trust, pair, view, receiver))


def _not_joined(envelope: Envelope, receiver: Receiver) -> NotTarget:
    if all(envelope.workspace_id != workspace_id for workspace_id, _ in receiver.channels):
        return NotTarget("is not the workspace of this daemon", "workspace_id")
    return NotTarget("is not joined by this daemon", "channel")


@lru_cache(_CACHED)
def _delivery(until: int, trust: Trust) -> Effects:
    """Of a message in a thread and without a work: most messages, and those of one second have the same."""
    return (RecordId(until), StoreEnvelope("in", trust), _DELIVER)


def _is_early(envelope: Envelope, view: StoredState, receiver: Receiver) -> bool:
    after = predecessor_of(envelope)
    if after is None:
        return False
    processed = receiver.processed(envelope.workspace_id, envelope.sender, after.id)
    return not may_take(after, envelope, processed=processed, now=receiver.now, settled=view.settled)


def _duplicate(source: ReceiptTarget, view: StoredState, receiver: Receiver) -> Effects:
    """The receipt `duplicate`; if we ended the work, our terminal envelope is sent again before it.

    The receipt is not stored, so it names no predecessor: one that is never taken would not be settled for it.
    """
    again = _end_again(source.sender, view, receiver)
    ours = _own_copy(source, view.work, receiver)
    alone = msgspec.structs.replace(receiver, predecessor=_nothing_outstanding)
    return (*again, *_receipt(source, "duplicate", "duplicate", "already processed", ours, alone))


def _end_again(
    sender: str, view: StoredState, receiver: Receiver, *, missed: bool = False
) -> tuple[Requeue | Queue, ...]:
    """Sends our terminal envelope again to `sender`, the other participant; with `missed` only if it was given up."""
    work = view.work
    if work is None or work.terminal_id is None or work.terminal_sender != receiver.self_id:
        return ()
    if work.other(receiver.self_id) != sender:
        return ()
    anew = _end_anew(view.end, receiver) if view.end and not missed else ()
    return anew or (Requeue(work.workspace_id, work.terminal_id, missed),)


def _end_anew(end: bytes, receiver: Receiver) -> tuple[Queue, ...]:
    """The own envelope `end` as a new message, which changes no work of ours; nothing if it cannot be built."""
    old = decode_json(end)
    surface, to = old["surface"], old["to"]
    draft = Draft(
        id=receiver.mint(),
        workspace_id=old["workspace_id"],
        channel=old["channel"],
        kind=old["kind"],
        sender=receiver.self_id,
        to=to,
        ts=receiver.now,
        expires_at=receiver.now + receiver.receipt_ttl,
        surface=surface,
        container=old[f"{surface}_id"],
        work_id=old["work_id"],
        reply_to=old.get("reply_to"),
        trace_id=old.get("trace_id"),
        causation_id=old.get("causation_id"),
        body=old["body"],
        ext={key: value for key, value in (old.get("ext") or {}).items() if key != AFTER},
    )
    try:
        envelope = build(draft, receiver.now, receiver.signer)
    except InvalidRequest:
        return ()
    return (_unapplied(envelope, automatic=False),)


def _unapplied(envelope: Envelope, *, automatic: bool = True) -> Queue:
    """Queues an own envelope that changes no work of ours."""
    trust: Trust = "unverified" if envelope.proof is None else "verified"
    pair = pair_of(envelope.sender, envelope.to or "") if envelope.surface == "direct" else None
    return Queue(envelope, (StoreEnvelope("out", trust, Transition("unchanged", None), pair),), automatic)


def _own_copy(source: ReceiptTarget, work: WorkView | None, receiver: Receiver) -> WorkView | None:
    """The open work that a receipt to `source` applies to; None for another container or a third peer."""
    if work is None or work.is_terminal or work.other(receiver.self_id) != source.sender:
        return None
    return work if (work.surface, work.container) == (source.surface, source.container) else None


def _opened(work: WorkView, source: ReceiptTarget) -> bool:
    return (work.opening_id, work.initiator) == (source.id, source.sender)  # ids are unique only per sender


def _discovery(envelope: Envelope, trust: Trust, view: StoredState, now: int) -> Effects:
    if view.duplicate:
        return (Ignore("duplicate"),)
    replay_until = fresh_until(envelope.ts, None)  # whatever `expires_at` says: none is sent (spec section 7)
    if replay_until <= now:
        return (Ignore("stale"),)
    remember = RecordId(min(envelope.fresh_until, replay_until))
    body = envelope.body
    if isinstance(body, Greet):
        return (remember, Discovered(body.card, trust))
    if isinstance(body, Whois) and body.card is not None:
        return (remember, Discovered(body.card, trust, envelope.reply_to))
    return (remember, AnswerWhois(envelope))


def _observe(envelope: Envelope, trust: Trust, view: StoredState) -> Effects:
    """Messages between other peers: stored as observed, with our own copy of the work; direct rooms are only counted."""
    if envelope.surface == "direct" or envelope.to == envelope.sender:
        return (Ignore("private_room"),)
    if envelope.kind in DISCOVERY_KINDS:
        return (Ignore("discovery_of_others"),)
    if view.duplicate:
        return (Ignore("duplicate"),)
    verdict = transition(view.work, envelope) if envelope.work_id is not None else None
    kept: list[Effect] = [RecordId(envelope.fresh_until), StoreEnvelope("observed", trust, verdict)]
    return (*kept, *_work_effects(envelope, view.work, verdict))


def _in_work(
    envelope: Envelope, trust: Trust, pair: tuple[str, str] | None, view: StoredState, receiver: Receiver
) -> Effects:
    """Step 9: the lifecycle's verdict and its effects."""
    verdict = transition(view.work, envelope)
    effects: list[Effect] = [StoreEnvelope("in", trust, verdict, pair), *_work_effects(envelope, view.work, verdict)]
    conversation = envelope.kind in OPENING_KINDS and verdict.outcome not in ("ignored", "rejected")
    restored = receiver.restored
    if restored is not None and verdict.outcome == "opened" and envelope.ts <= restored.held_through:
        effects.append(Hold(restored.restored_ms))
        effects.extend(_notice_of_hold(envelope, restored, receiver))
    elif conversation or _needs_reaction(envelope, verdict, view.work):
        effects.append(_DELIVER)
    if verdict.outcome == "rejected":
        effects.extend(_rejection(envelope, verdict, view, receiver))
    elif verdict.reason == "work_closed" and view.work is not None:
        effects.extend(_end_again(envelope.sender, view, receiver, missed=True))
    if view.work is not None:
        effects.extend(_close_unanswered(envelope, verdict, view.work, receiver))
    return tuple(effects)


def _needs_reaction(envelope: Envelope, verdict: Transition, work: WorkView | None) -> bool:
    """Whether our agent gets this trace or receipt in its inbox: a question, or the end, of a work that it opened.

    Not a receipt that refuses the opening: that one is put into the inbox with its reason (`WorkCloser.after_failure`).
    """
    if work is None or work.reactions == "none" or verdict.outcome != "advanced":
        return False
    body = envelope.body
    if isinstance(body, Trace) and body.state == "needs_input":
        return True
    refuses = isinstance(body, Receipt) and refusal_in(body, work) is not None
    return verdict.state in TERMINAL_STATES and work.reactions == "all" and not refuses


def _work_effects(envelope: Envelope, work: WorkView | None, verdict: Transition | None) -> Effects:
    if verdict is None or verdict.outcome in ("ignored", "rejected"):
        return ()
    if verdict.outcome == "opened":
        return (Open(opened_by(envelope)),)
    return (Advance(work, after(work, envelope, verdict)),) if work is not None else ()


def _rejection(envelope: Envelope, verdict: Transition, view: StoredState, receiver: Receiver) -> Effects:
    source = source_of(envelope)
    if source is None:
        return ()
    again = _end_again(source.sender, view, receiver) if verdict.reason == "work_closed" else ()
    return (*again, *_receipt(source, "rejected", verdict.reason or "internal", None, None, receiver, again))


def _close_unanswered(envelope: Envelope, verdict: Transition, work: WorkView, receiver: Receiver) -> Effects:
    """As initiator, closes a work whose opening was answered `expired` or `unsupported` and that has not advanced since."""
    body = envelope.body
    if not isinstance(body, Receipt) or body.status not in ("expired", "unsupported") or verdict.outcome != "unchanged":
        return ()
    if work.initiator != receiver.self_id or body.for_id != work.opening_id or work.advanced:
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
    # Not `automatic`: the rate limit of automatic receipts must not leave the work open.
    return tuple(msgspec.structs.replace(queued, automatic=False) for queued in closing)


def _receipt(
    source: ReceiptTarget,
    status: str,
    reason: str | None,
    detail: str | None,
    work: WorkView | None,
    receiver: Receiver,
    again: tuple[Requeue | Queue, ...] = (),
) -> tuple[Queue, ...]:
    """A receipt to `source.sender`, applied to our own copy `work`; nothing if our copy forbids it (spec section 5).

    It follows what is sent `again` before it.

    Without `work` the receipt is sent in the container of the answered envelope and changes nothing.
    """
    expires_at = receiver.now + receiver.receipt_ttl
    after = receiver.predecessor(source)
    last = again[-1] if again else None
    if isinstance(last, Queue):
        after = Predecessor(last.envelope.id, expires_at)
    elif last is not None and after is None:
        after = Predecessor(last.message_id, expires_at)
    body = receipt_body(source.id, status, reason, detail)
    return _answer(source, "receipt", receiver.mint(), body, work, receiver, after)


def _notice_of_hold(envelope: Envelope, restored: Restored, receiver: Receiver) -> tuple[Queue, ...]:
    """Tells the initiator of the work that `envelope` opens that it is held."""
    source = source_of(envelope)
    if source is None:
        return ()
    message_id = notice_id("release", restored.restored_ms, source.sender, source.id)
    text, after = {"text": TEXTS["release"]}, receiver.predecessor(source)
    return _answer(source, "say", message_id, text, opened_by(envelope), receiver, after)


def _answer(
    source: ReceiptTarget,
    kind: str,
    message_id: str,
    body: dict[str, Any],
    work: WorkView | None,
    receiver: Receiver,
    after: Predecessor | None,
) -> tuple[Queue, ...]:
    draft = Draft(
        id=message_id,
        workspace_id=source.workspace_id,
        channel=source.channel,
        kind=kind,
        sender=receiver.self_id,
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
        after=after,
        continues=kind == "say",
    )
    pair = pair_of(receiver.self_id, source.sender) if source.surface == "direct" else None
    try:
        envelope = build(draft, receiver.now, receiver.signer)
        if work is None:
            return (_unapplied(envelope),)
        room = Binding(pair, authoritative=False) if pair is not None else None
        own = apply_own(envelope, work, room)
    except (InvalidRequest, Refused):
        return ()
    # The answered envelope has bound the room already.
    return (Queue(envelope, tuple(effect for effect in own if not isinstance(effect, Bind))),)
