"""What a model gets to read of works and peers (`message_rendering`: of messages). Everything that a peer wrote is fenced, and an
answer is bounded: what does not fit is left out, and the answer says how to get it."""

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from aghbus.daemon.mcp.fence import MAX_BYTES, MAX_CHARACTERS, Place, fence, has_ids_only, is_id, line, name, plain
from aghbus.daemon.mcp.hints import for_model
from aghbus.daemon.mcp.models import (
    HistoryItem,
    PeerOutput,
    PeersOutput,
    ToolResult,
    WorkOutput,
    WorksOutput,
)
from aghbus.daemon.mcp.rpc import Object
from aghbus.protocol.api.peers import Peer, WhoisMatch
from aghbus.protocol.api.works import HistoryEntry, WaitReason, Work, WorkResponse, WorksResponse
from aghbus.protocol.base.durations import span
from aghbus.protocol.formats.timestamps import utc

MAX_ANSWER: Final = 65_536
"""Bytes of the items of an answer, as JSON."""
MAX_ITEM: Final = MAX_BYTES + 8_192
"""Bytes of one item: its text, ids, names and a reason."""
_MAX_CAPABILITIES: Final = 16  # of one peer outside of its fence
MAX_TASK: Final = 200
"""Characters of a task of our own, which the model has written."""
BRIEF: Final = 1_000
"""Characters of a text where many are listed."""

_OF_WORKERS: Final = frozenset(
    {"not_accepted", "in_inbox", "leased", "returned"}
)  # reasons whose hint speaks of programs
_REPEATED: Final = "receipt:duplicate"  # says nothing of the work

_T = TypeVar("_T", bound=ToolResult)


def result_of(output: ToolResult) -> Object:
    """The result of a tool: the object, and the same as text for hosts that show only text."""
    content = msgspec.to_builtins(output)
    return {"content": [{"type": "text", "text": msgspec.json.encode(content).decode()}], "structuredContent": content}


def fitting(items: Iterable[_T], room: int = MAX_ANSWER) -> list[_T]:
    """The first items, as many as fit into `room` bytes."""
    found: list[_T] = []
    for item in items:
        room -= len(msgspec.json.encode(item))
        if room < 0:
            break
        found.append(item)
    return found


def ago(now_ms: int, at_ms: int) -> str:
    """How long before `now_ms`, in both largest units: two tokens or four."""
    return span((now_ms - at_ms) / 1000)


def stamp(now_ms: int) -> str:
    """The time of an answer, to which its ages refer: `2026-11-24T16:40:00Z`."""
    return utc(now_ms // 1000)


def peers(found: Sequence[Peer | WhoisMatch], now_ms: int) -> PeersOutput:
    """Peers of presence, or answers to a whois."""
    shown = fitting(_peer(each, now_ms) for each in found)
    rest = len(found) - len(shown)
    note = f"{rest} more peers are left out: ask by capability." if rest else UNSET
    return PeersOutput(peers=shown, now=stamp(now_ms), note=note)


def _peer(found: Peer | WhoisMatch, now_ms: int) -> PeerOutput:
    card: Mapping[str, Any] = found.card
    words = [each for each in card["capabilities"] if is_id(each)]
    prose = [each for each in card["capabilities"] if not is_id(each)] + words[_MAX_CAPABILITIES:]
    more = f"further capabilities: {as_text(prose)}" if prose else None
    about = "\n".join(part for part in (card.get("display_name"), found.summary, more) if part)
    return PeerOutput(
        peer_id=name(found.peer_id),
        presence=found.presence if isinstance(found, Peer) else "active",
        seen_ago=ago(now_ms, found.last_seen_ms) if isinstance(found, Peer) else UNSET,
        trust=found.trust,
        capabilities=words[:_MAX_CAPABILITIES],
        about=fence(about, sender=found.peer_id, trust=found.trust, limit=BRIEF) if about else UNSET,
    )


def works(found: WorksResponse, now_ms: int) -> WorksOutput:
    """Works as they are now, the latest change first."""
    shown = fitting(_listed(each, now_ms) for each in found.works)
    before = found.works[len(shown) - 1].last_seq if len(shown) < len(found.works) else found.next_before
    note = f"There are more: `work` with before={before}." if before is not None else UNSET
    return WorksOutput(works=shown, now=stamp(now_ms), note=note)


def work(found: WorkResponse, now_ms: int, note: str | None = None, *, latest: bool = True) -> WorksOutput:
    """One work with its history, of a long one the newest steps; `latest`: it has the last one of the work. What the work itself
    shows is left out of its history."""
    whole = _Whole(found, now_ms, latest=latest)
    shown = whole.work()
    steps = found.history[found.history[:1] == [whole.opening] :]
    newest = fitting(map(whole.step, reversed(steps)), max(MAX_ITEM, MAX_ANSWER - len(msgspec.json.encode(shown))))
    omitted = found.history_omitted + len(steps) - len(newest)
    before = steps[-len(newest)].seq if newest else 0
    notes = [
        note,
        f"{omitted} earlier steps are left out: `work` with before={before}." if omitted else None,
        None if found.why is None else _why(found.why, found.work, note),
    ]
    return WorksOutput(
        works=[shown],
        now=stamp(now_ms),
        history=newest[::-1] if newest else UNSET,
        note=_given(" ".join(part for part in notes if part) or None),
    )


def _why(found: WaitReason, work: Work, note: str | None) -> str:
    """Why a work does not move: what was said in it, and the whole sentence when it has a name that might be one, are fenced.

    What `note` says already, and what is the message of the work, is left out.
    """
    peer = work.target if work.role == "initiator" else work.initiator
    hint = "" if found.code in _OF_WORKERS or (found.code == "asks" and note) else for_model(found.hint)
    said = None if found.said and (work.message or "").startswith(found.said.removesuffix("…")) else found.said
    if not has_ids_only(found.text + hint):
        told = "\n".join(filter(None, (found.text, hint, said)))
        return f"Now:\n{fence(told, sender=peer, trust=work.trust, limit=BRIEF)}"
    text = f"Now: {plain(found.text, BRIEF)}" + (f" ({hint})" if hint else "")
    return text if said is None else f"{text}:\n{fence(said, sender=peer, trust=work.trust, limit=BRIEF)}"


def status(found: WorkResponse) -> str:
    """The state of a work in one line, and why it does not move."""
    state = f"the work is {found.work.state}"
    return f"{state}: {line(found.why.text)}" if found.why and has_ids_only(found.why.text) else state


def _own(found: Work) -> str | None:
    """Our peer id in a work; None when we only observe it."""
    return {"initiator": found.initiator, "target": found.target}.get(found.role)


def _listed(found: Work, now_ms: int) -> WorkOutput:
    """A work in a list, with its last message and result, which are the target's words."""
    own = _own(found)

    def said(text: str | None, author: str) -> str | UnsetType:
        return UNSET if text is None else _said(text, author, own, found.trust, BRIEF)

    return WorkOutput(
        work_id=name(found.work_id),
        state=found.state,
        changed_ago=ago(now_ms, found.updated_ms),
        role=found.role,
        peer=name(found.target if found.role == "initiator" else found.initiator),
        trust=found.trust,
        task=_said(found.text, found.initiator, own, found.trust),
        message=said(found.message, found.target),
        result=said(as_text(found.result), found.target),
    )


class _Whole:
    """One work with its history: which of its steps has the task, the last message and the result."""

    def __init__(self, found: WorkResponse, now_ms: int, *, latest: bool) -> None:
        self._found = found.work
        self._now_ms = now_ms
        self._own = _own(found.work)
        self.opening = _last(found.history, lambda step: step.outcome == "opened")
        newest = found.history if latest else []
        self._said = _last(newest, lambda step: step.kind != "say" and step.event != _REPEATED and bool(step.message))
        self._ended = _last(newest, lambda step: bool(_result(step)))

    def work(self) -> WorkOutput:
        """The work; of a task of our own only the beginning."""
        shown = _listed(self._found, self._now_ms)
        if (opening := self.opening) is not None:
            limit = MAX_TASK if opening.actor == self._own else MAX_CHARACTERS
            shown.task = self._part(opening, step_text(opening), limit)
        if (said := self._said) is not None:
            shown.message = self._part(said, said.message or "", BRIEF)
        if (ended := self._ended) is not None:
            shown.result = self._part(ended, _result(ended))
        return shown

    def step(self, found: HistoryEntry) -> HistoryItem:
        """One step, without what `work` has of it."""
        said = None if found is self._said else found.message
        parts = (
            [] if found.outcome == "opened" else [said, found.reason, "" if found is self._ended else _result(found)]
        )
        text = "\n".join(part for part in parts if part)
        return HistoryItem(
            sender=name(found.actor),
            event=line(found.event),
            state=found.after,
            ago=ago(self._now_ms, found.at_ms),
            text=self._part(found, text) if text else UNSET,
        )

    def _part(self, step: HistoryEntry, text: str, limit: int = MAX_CHARACTERS) -> str:
        """A part of what a step says."""
        place = Place(step.seq, max(0, step_text(step).find(text)))
        return _said(text, step.actor, self._own, self._found.trust, limit, place)


def _last(steps: Sequence[HistoryEntry], wanted: Callable[[HistoryEntry], bool]) -> HistoryEntry | None:
    return next((step for step in reversed(steps) if wanted(step)), None)


def step_text(found: HistoryEntry) -> str:
    """All that a step says, as `inbox` has it of its message."""
    return "\n".join(part for part in (found.message, found.reason, _result(found)) if part)


def _result(found: HistoryEntry) -> str:
    return "\n".join(part for part in map(as_text, (found.result, found.artifacts)) if part)


def question(found: HistoryEntry, work: Work) -> str:
    """The text of a question, for a person."""
    return fence(step_text(found) or "(no text)", sender=found.actor, trust=work.trust)


def _said(
    text: str, author: str, own: str | None, trust: str, limit: int = MAX_CHARACTERS, place: Place | None = None
) -> str:
    """What `author` wrote: fenced unless it is our own."""
    return (
        plain(text, limit, place)
        if author == own
        else fence(text, sender=author, trust=trust, limit=limit, place=place)
    )


def _given(value: str | None) -> str | UnsetType:
    return UNSET if value is None else value


def as_text(value: object) -> str | None:
    """A JSON value as text; None for None."""
    return None if value is None else msgspec.json.encode(value).decode()
