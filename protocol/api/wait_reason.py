"""Why a work does not move, in one sentence: decided from what the store, presence and the link know of it (docs/why.md).

The rules of a role are asked in order; the first that applies gives code and sentence.
"""

from collections.abc import Callable
from typing import Final

import msgspec

from aghbus.protocol.agh.delivery.notices import WaitsFor
from aghbus.protocol.agh.identifiers import PLAIN_WORK_ID
from aghbus.protocol.agh.lifecycle import TERMINAL_STATES
from aghbus.protocol.api.inbox import HELD, InboxState
from aghbus.protocol.api.messages import OutboxState
from aghbus.protocol.api.works import Role, WaitCode, WaitReason, Work
from aghbus.protocol.base.durations import span
from aghbus.protocol.base.text import escape, shorten
from aghbus.protocol.formats.timestamps import utc

MOVING: Final[frozenset[WaitCode]] = frozenset({"working", "leased", "waits_for_works", "asks_further", "observed"})
"""Codes of works that somebody has: nothing needs to be done about them."""
SAID_CHARACTERS: Final = 300
"""Of the words of a peer that a sentence ends with; the history has them whole."""


class OwnMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of ours in the work, as the outbox has it: committed at `sent_ms`, `tries` times published, the last time at
    `published_ms`. `outstanding`: it waits for an answer. `unsubscribed`: the broker had nobody to pass it on to."""

    state: OutboxState
    tries: int
    sent_ms: int
    published_ms: int | None
    expires_at: int
    detail: str | None
    outstanding: bool
    unsubscribed: bool


class InboxMessage(msgspec.Struct, frozen=True, kw_only=True):
    """A message of the other side, as the inbox has it; `state` is None when it is not in the inbox."""

    seq: int
    received_ms: int
    state: InboxState | None
    attempts: int
    available_ms: int
    lease_until_ms: int | None
    last_error: str | None


class StoredFacts(msgspec.Struct, frozen=True, kw_only=True):
    """What the store knows of an open work besides `Work`. `opening` and `last` are its first and its last message, the latter None
    if that is the opening. Times in Unix milliseconds.

    `begun_ms` is when it left `submitted`, `reported_ms` the last message of its target, `due_ms` its deadline. `waits_for` is what
    its target last said of why no worker gets it. `chain` is the run and the node of a chain that opened it, `next` the first open
    work that has to end before it, and its target. `passed_on` is the work by which its question was passed on, and who is asked
    there.
    """

    opening: OwnMessage | InboxMessage | None
    last: OwnMessage | InboxMessage | None
    begun_ms: int | None
    reported_ms: int | None
    due_ms: int | None
    waits_for: WaitsFor | None
    chain: tuple[str, str] | None
    next: tuple[str, str] | None
    passed_on: tuple[str, str] | None


class Facts(msgspec.Struct, frozen=True, kw_only=True):
    """Everything that decides. `seen_ms` is when the other participant was last seen (None: never), `present` whether that was
    within the greeting interval, `near` are ids of known peers similar to one that was never seen.

    `link_down` is since when the broker link is down, and why. `queue` is why queued messages to the peer are not published,
    `held_back` why a message of the peer in the work was not taken yet. `admitted`: the initiator is a contact.
    """

    now_ms: int
    work: Work
    stored: StoredFacts
    seen_ms: int | None
    present: bool
    near: tuple[str, ...] = ()
    link_down: tuple[int, str] | None = None
    queue: str | None = None
    held_back: str | None = None
    admitted: bool = True

    @property
    def peer(self) -> str:
        """The other participant."""
        return self.work.target if self.work.role == "initiator" else self.work.initiator

    @property
    def own(self) -> OwnMessage | None:
        """The message of ours on which the work may wait: the opening until the work has left `submitted`, else the last one."""
        stored = self.stored
        found = stored.opening if self.work.state == "submitted" or stored.last is None else stored.last
        return found if isinstance(found, OwnMessage) else None

    def ago(self, at_ms: int) -> str:
        """How long ago a time was."""
        return f"{span((self.now_ms - at_ms) / 1000)} ago"


def wait_reason(facts: Facts) -> WaitReason | None:
    """Why the work does not move; None when it has ended."""
    if facts.work.state in TERMINAL_STATES:
        return None
    return next(found for rule in RULES[facts.work.role] if (found := rule(facts)) is not None)


def spoken(reason: WaitReason) -> str:
    """The whole sentence: on one line, and safe to print."""
    return reason.text if reason.said is None else f"{reason.text}: “{escape(reason.said)}”"


def _reason(code: WaitCode, *parts: str | None, said: str | None = None, hint: str = "") -> WaitReason:
    words = shorten(said, SAID_CHARACTERS) if said else None
    return WaitReason(code=code, text="; ".join(part for part in parts if part), said=words, hint=hint)


def _at(ms: int) -> str:
    return utc(ms // 1000)


def _id(work: Work) -> str:
    """The id as a word of a command that a person may paste: that of a peer may have any characters."""
    plain = PLAIN_WORK_ID(work.work_id) and not work.work_id.startswith("-")
    return work.work_id if plain else "WORK_ID"


def _seen(facts: Facts) -> str | None:
    if facts.seen_ms is None or facts.present:
        return None
    return f"{facts.peer} was last seen {facts.ago(facts.seen_ms)}"


def _deadline(facts: Facts) -> str | None:
    due_ms = facts.stored.due_ms
    return None if due_ms is None else f"deadline in {span((due_ms - facts.now_ms) / 1000)}"


def _chain(facts: Facts) -> str | None:
    return None if facts.stored.chain is None else f"chain run {facts.stored.chain[0]} waits for it"


# messages of ours


def _outgoing(facts: Facts) -> WaitReason | None:
    """A message of ours that was not answered, or that had no effect."""
    own = facts.own
    if own is None:
        return None
    if own.state in ("refused", "expired", "dead"):
        where = "`aghctl inbox list` has a notice of it"
        return _reason("not_delivered", f"our last message is {own.state}", said=own.detail, hint=where)
    if not own.outstanding:
        return None
    age = facts.ago(own.sent_ms)
    head = f"queued {age}" if own.state == "queued" else f"published {age}"
    return _undelivered(facts, own, head if facts.work.state == "submitted" else f"our last message was {head}")


def _undelivered(facts: Facts, own: OwnMessage, head: str) -> WaitReason:
    """`head` says since when `own` is on its way."""
    peer, end = facts.peer, f"expires {utc(own.expires_at)}"
    tail = (end, _deadline(facts), _chain(facts))
    nobody = "nobody subscribes there" if own.unsubscribed else None
    if facts.link_down is not None:
        return _reason(
            "broker_away", head, _broker(facts.link_down), *tail, hint="`aghctl doctor` checks the connection"
        )
    if facts.seen_ms is None:
        meant = f" (did you mean {' or '.join(facts.near)}?)" if facts.near else ""
        where = f"no peer {peer} was ever seen on channel {facts.work.channel}{meant}"
        hint = f"`aghctl peers --all` lists the known ones; `aghctl work cancel {_id(facts.work)}` takes it back"
        return _reason("unknown_peer", head, where, *tail, hint=hint)
    if not facts.present:
        hint = "it gets the message when it is back; is its daemon running?"
        return _reason("peer_away", head, _seen(facts), nobody, *tail, hint=hint)
    if nobody:
        seen = f"{nobody}, though {peer} was seen {facts.ago(facts.seen_ms)}"
        return _reason(
            "no_subscriber", head, seen, *tail, hint="its daemon has stopped, or may not subscribe (`aghctl doctor`)"
        )
    if own.state == "queued":
        why = facts.queue or "it is published next"
        return _reason("queued", head, why, *tail, hint="`aghctl status` shows the problems of this daemon")
    tries = "1 try" if own.tries == 1 else f"{own.tries} tries"
    silent = f"{peer} was seen {facts.ago(facts.seen_ms)}, and has not answered after {tries}"
    return _reason("unanswered", head, silent, *tail, hint="see the log of its daemon")


def _broker(down: tuple[int, str]) -> str:
    since_ms, cause = down
    return f"the broker is away since {_at(since_ms)}" + (f" ({escape(cause)})" if cause else "")


def _unreachable(facts: Facts) -> WaitReason | None:
    """Nothing of ours is on its way, and what the peer has to send cannot arrive."""
    if facts.link_down is None or (facts.work.role == "target" and facts.work.state != "needs_input"):
        return None
    words = f"{_broker(facts.link_down)}: nothing of {facts.peer} can arrive"
    return _reason("broker_away", words, _deadline(facts), _chain(facts), hint="`aghctl doctor` checks the connection")


def _held_back(facts: Facts) -> WaitReason | None:
    if facts.held_back is None:
        return None
    return _reason(
        "held_back", escape(facts.held_back), hint="it is taken when the earlier message comes, or at that time"
    )


# works that we opened


def _asks(facts: Facts) -> WaitReason | None:
    work = facts.work
    if work.state != "needs_input":
        return None
    since = _at(facts.stored.reported_ms or work.updated_ms)
    if facts.stored.passed_on is not None:
        work_id, asked = facts.stored.passed_on
        text = f"{facts.peer} asks since {since}; {asked} was asked in {escape(work_id)}"
        return _reason("asks_further", text, _deadline(facts), said=work.message)
    if facts.stored.chain is None:
        hint = f"answer: `aghctl work say {_id(work)} TEXT`"
        return _reason("asks", _deadline(facts), f"{facts.peer} asks since {since}", said=work.message, hint=hint)
    run, node = facts.stored.chain
    text = f"{facts.peer} asks chain run {run} since {since}"
    hint = f"answer: `aghctl chain resume {run} --node {node} --answer TEXT`"
    return _reason("asks_chain", _deadline(facts), text, said=work.message, hint=hint)


def _told_to_wait(facts: Facts) -> WaitReason | None:
    if facts.work.state != "submitted" or facts.stored.waits_for in (None, "worker"):
        return None
    if facts.stored.waits_for == "release":
        text = f"held at {facts.peer}: it may have been carried out before a restore of the store there"
        hint = f"the operator of {facts.peer} decides there (`inbox requeue`); `aghctl work cancel {_id(facts.work)}` takes it back"
        return _reason("held", text, _deadline(facts), _chain(facts), hint=hint)
    hint = f"the operator of {facts.peer} decides there (`trust admit {facts.work.initiator}`)"
    return _reason(
        "waits_for_admission", f"waits at {facts.peer} for admission", _deadline(facts), _chain(facts), hint=hint
    )


def _not_accepted(facts: Facts) -> WaitReason | None:
    if facts.work.state != "submitted":
        return None
    own, peer = facts.own, facts.peer
    done = "delivered" if own is None or own.state == "receipted" else own.state
    when = done if own is None else f"{done} at {_at(own.published_ms or own.sent_ms)}"
    hint = f"is a worker of {peer} running, and does it take this kind of work?"
    text = f"{when}, not accepted: no worker of {peer} has taken it"
    return _reason("not_accepted", text, _seen(facts), _deadline(facts), _chain(facts), hint=hint)


def _gone(facts: Facts) -> WaitReason | None:
    seen = _seen(facts)
    if seen is None:
        return None
    hint = "it continues when it is back; is its daemon running?"
    return _reason("peer_away", *_progress(facts, facts.peer), seen, _deadline(facts), _chain(facts), hint=hint)


def _working(facts: Facts) -> WaitReason:
    return _reason("working", *_progress(facts, facts.peer), _deadline(facts), _chain(facts))


def _progress(facts: Facts, who: str) -> tuple[str, str]:
    stored, work = facts.stored, facts.work
    begun_ms = stored.begun_ms or work.updated_ms
    last = facts.ago(max(begun_ms, stored.reported_ms or 0))
    return f"{who} has had it since {_at(begun_ms)}", f"{'its' if who == facts.peer else 'our'} last report was {last}"


# works that others opened at us


def _unusable(facts: Facts) -> WaitReason | None:
    """The opening is dead: no worker gets it."""
    item, work = facts.stored.opening, facts.work
    if not isinstance(item, InboxMessage) or item.state != "dead":
        return None
    hint = f"`aghctl inbox requeue {item.seq}` runs it again, `aghctl work reject {_id(work)}` ends it"
    error = item.last_error or ""
    if error.startswith(HELD):
        return _reason("held", error.removeprefix(HELD).partition(";")[0], _deadline(facts), hint=hint)
    if not item.attempts:
        return _reason("dead", _deadline(facts), "dead", said=error or None, hint=hint)
    tries = "1 attempt" if item.attempts == 1 else f"{item.attempts} attempts"
    return _reason("dead", _deadline(facts), f"dead after {tries}", said=error or None, hint=hint)


def _in_inbox(facts: Facts) -> WaitReason | None:
    """The opening waits in the inbox, or was never accepted."""
    item = facts.stored.opening
    if not isinstance(item, InboxMessage):
        return None
    submitted = facts.work.state == "submitted"
    until_ms = item.lease_until_ms or 0
    if item.state == "leased" and until_ms > facts.now_ms:
        if not submitted:
            return None
        text = f"leased until {_at(until_ms)}, attempt {item.attempts}, not accepted"
        return _reason(
            "leased", text, _deadline(facts), hint=f"`aghctl inbox nack {item.seq}` gives it to another worker"
        )
    if item.state in ("leased", "ready"):
        waits = submitted or (item.attempts and facts.work.state == "working")
        return _ready(facts, item) if waits else None
    if not submitted:
        return None
    hint = f"`aghctl work accept {_id(facts.work)}` or `work reject`"
    return _reason("acknowledged", "its message was acknowledged, and it was not accepted", _deadline(facts), hint=hint)


def _ready(facts: Facts, item: InboxMessage) -> WaitReason:
    if not facts.admitted:
        text = f"in the inbox since {_at(item.received_ms)}; workers leave it: {facts.peer} is not admitted"
        hint = f"`aghctl requests`, then `aghctl trust admit {facts.peer}` or `trust refuse`"
        return _reason("waits_for_admission", text, _deadline(facts), hint=hint)
    hint = "is a worker running (`aghctl serve`, a Worker), and does it take this kind of work?"
    if not item.attempts:
        text = f"in the inbox since {_at(item.received_ms)}, nobody took it"
        return _reason("in_inbox", text, _deadline(facts), hint=hint)
    left = (item.available_ms - facts.now_ms) / 1000
    when = f"ready again in {span(left)}" if left >= 1 else "ready again, nobody took it"
    words = f"returned to the inbox after attempt {item.attempts}, {when}"
    return _reason("returned", _deadline(facts), words, said=item.last_error, hint=hint)


def _unread(facts: Facts) -> WaitReason | None:
    """Something was said in a work that our agent has, and nobody has read it."""
    last = facts.stored.last
    if not isinstance(last, InboxMessage) or last.state != "ready":
        return None
    text = f"a message of {facts.peer} is in the inbox since {_at(last.received_ms)}, nobody took it"
    return _reason("in_inbox", text, _deadline(facts), hint=f"`aghctl inbox next --work {_id(facts.work)}` takes it")


def _follows(facts: Facts) -> WaitReason | None:
    if facts.stored.next is None:
        return None
    work_id, target = facts.stored.next
    text = f"waits for the end of {escape(work_id)}, which {target} has"
    return _reason(
        "waits_for_works", text, _deadline(facts), hint="`aghctl work show` of that work says why it does not move"
    )


def _asked(facts: Facts) -> WaitReason | None:
    if facts.work.state != "needs_input":
        return None
    since = _at(facts.stored.reported_ms or facts.work.updated_ms)
    return _reason("asked", f"{facts.peer} was asked at {since} and has not answered", _seen(facts), _deadline(facts))


def _ours(facts: Facts) -> WaitReason:
    return _reason("working", *_progress(facts, "our agent"), _deadline(facts))


def _observed(facts: Facts) -> WaitReason:
    work = facts.work
    return _reason("observed", f"between {work.initiator} and {work.target}: this daemon only observes it")


Rule = Callable[[Facts], WaitReason | None]

RULES: Final[dict[Role, tuple[Rule, ...]]] = {
    "initiator": (_outgoing, _asks, _unreachable, _told_to_wait, _held_back, _not_accepted, _gone, _working),
    "target": (_unusable, _in_inbox, _outgoing, _follows, _unread, _unreachable, _held_back, _asked, _ours),
    "observer": (_observed,),
}
"""The rules of each role, in the order in which they are asked."""
