"""Rules and drafts that all formats share (adapters.md, Common rules)."""

from itertools import islice
from typing import Any, Final

import msgspec

from aghbus.protocol.agh.bodies import Receipt
from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.protocol.agh.send import Draft
from aghbus.protocol.base.secret_patterns import secret_paths
from aghbus.protocol.formats.derived_ids import envelope_id, same_json
from aghbus.protocol.formats.model import BridgeContext, Finding, MessageHistory
from aghbus.protocol.formats.strict_json import pointer

OTHER_CHANNEL: Final = "other_channel"
"""Rule of the error when the work of a message is on another channel than the context's."""
_MAX_SECRETS: Final = 20  # warnings of one message


def error(path: str, rule: str, message: str) -> Finding:
    """A finding that refuses the message."""
    return Finding(path, rule, "error", message)


def warning(path: str, rule: str, message: str) -> Finding:
    """A finding that is sent with the message."""
    return Finding(path, rule, "warning", message)


def secrets_in(message: Any) -> tuple[Finding, ...]:
    """The warnings `secret_like`; they never quote the value."""
    return tuple(
        warning(pointer(*path), "secret_like", "looks like a credential; other peers may refuse the envelope")
        for path in islice(secret_paths(message), _MAX_SECRETS)
    )


def conflict(history: MessageHistory, foreign_id: str, scope: str, message: Any, path: str) -> tuple[Finding, ...]:
    """The error when our agent submitted another message with the same id before."""
    earlier = history.find(foreign_id, scope, "out")
    if earlier is None or same_json(earlier.message, message):
        return ()
    return (error(path, "id_conflict", f"{foreign_id!r} was submitted before with other content"),)


def assigned_work(context: BridgeContext, history: MessageHistory) -> WorkView | Finding:
    """The assigned work that a message without correlation reports on: the one the caller named, or the only open one.

    Only works delivered in this format count, if any was: an agent cannot answer what it has not received. If none was ever
    delivered, the agent reads its works in another way, and all open works count. Without a channel from the caller, works on
    the other joined channels count too.
    """
    if context.work_id is not None:
        work = history.work(context.work_id)
        return work if work is not None else error("", "unknown_work", f"no work {context.work_id!r} is known here")
    everything = (*history.assigned_works(), *context.other_channel_works)
    works = [work for work in everything if history.was_delivered(work)]
    if everything and not works:
        if history.received_works():
            return error(
                "", "no_work", "all works delivered to our agent have ended, and the open ones are not delivered yet"
            )
        works = list(everything)
    if not works:
        return error("", "no_work", "there is no open work for this report")
    if len(works) == 1:
        return works[0] if works[0].channel == context.channel else error("", OTHER_CHANNEL, works[0].channel)
    names = ", ".join(sorted(work.work_id for work in works[:5]))
    why = f"{len(works)} works are open ({names}): name one with --work, or with --meta and work_id"
    return error("", "ambiguous_work", why)


def next_id(
    name: str, kind: str, context: BridgeContext, work: WorkView, history: MessageHistory, content: bytes
) -> str:
    """The envelope id of a message on `work`, for formats without ids: one per answered envelope.

    With a key of the caller, one per work and key: a retry may come after the next envelope.
    """
    answered = history.answered(work) if context.key is None else work.opening_id
    return envelope_id(name, kind, context.us, work.other(context.us), answered, content, context.key)


def closed(work: WorkView, path: str = "") -> tuple[Finding, ...]:
    """The error when a work has ended: a message never reopens it."""
    if not work.is_terminal:
        return ()
    return (error(path, "work_closed", f"work {work.work_id} is already {work.state}: open a new work to retry"),)


def not_ours(work: WorkView, us: str, path: str = "") -> tuple[Finding, ...]:
    """The error when the target of a reported work is another peer."""
    if work.target == us:
        return ()
    return (error(path, "not_our_work", f"work {work.work_id} is assigned to {work.target}, not to {us}"),)


def receipt_ends(body: Receipt, work: WorkView | None, context: BridgeContext) -> bool:
    """Whether a receipt ends its work: directly, or since the initiator's daemon closes the work on it (spec section 6)."""
    if body.status in ("rejected", "canceled"):
        return True
    if body.status not in ("expired", "unsupported") or work is None:
        return False
    unanswered = work.state == "canceled" or not work.advanced
    return work.initiator == context.us and body.for_id == work.opening_id and unanswered


def trace(context: BridgeContext, work: WorkView, message_id: str, body: dict[str, Any], **more: Any) -> Draft:
    """A trace on `work`; `more` are further fields of the draft (ext, reply_to, trace_id, causation_id)."""
    draft = Draft(
        id=message_id,
        workspace_id=work.workspace_id,
        channel=work.channel,
        kind="trace",
        sender=context.us,
        to=work.other(context.us),
        ts=context.now,
        expires_at=context.now + context.ttl,
        surface=work.surface,
        container=work.container,
        work_id=work.work_id,
        body=body,
    )
    return msgspec.structs.replace(draft, **more)


def say(context: BridgeContext, to: str, message_id: str, container: str, body: dict[str, Any], **more: Any) -> Draft:
    """A directed say in the thread `container`; `more` as for `trace`, and `work_id` where it opens a work."""
    draft = Draft(
        id=message_id,
        workspace_id=context.workspace_id,
        channel=context.channel,
        kind="say",
        sender=context.us,
        to=to,
        ts=context.now,
        expires_at=context.now + context.ttl,
        surface="thread",
        container=container,
        body=body,
    )
    return msgspec.structs.replace(draft, **more)


def say_in_work(context: BridgeContext, work: WorkView, message_id: str, body: dict[str, Any], **more: Any) -> Draft:
    """A say within `work`, for its target; `more` as for `trace`."""
    return say(
        context,
        work.target,
        message_id,
        work.container,
        body,
        workspace_id=work.workspace_id,
        channel=work.channel,
        surface=work.surface,
        work_id=work.work_id,
        **more,
    )
