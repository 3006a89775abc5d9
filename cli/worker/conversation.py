"""The conversation of a work whose command asked a question: questions with the results of their runs, and answers."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any, NamedTuple

from aghbus.protocol.api.works import HistoryEntry

NEED_INPUT = "trace:needs_input"
"""The event of a question in the history of a work."""


class Question(NamedTuple):
    """A question: the sequence of its message, and its text (None when it has none).

    `asked`: the works in which it was asked of other peers, as (channel, work id); empty: it is for the initiator.
    """

    seq: int
    text: str | None
    asked: Sequence[tuple[str, str]] = ()


class Turn(NamedTuple):
    """One part of a conversation: a question with the `finished` record of its run, or a message of the initiator."""

    seq: int
    text: str | None
    finished: dict[str, Any] | None = None
    message: dict[str, Any] | None = None


def turns(questions: Sequence[tuple[dict[str, Any], dict[str, Any]]], received: Sequence[dict[str, Any]]) -> list[Turn]:
    """The conversation after the opening: `questions` of the journal (JournalEntry.questions) and messages of the API."""
    own = [Turn(waiting["question"], waiting["text"], finished=finished) for finished, waiting in questions]
    others = [Turn(message["seq"], _text(message), message=message) for message in received]
    return sorted([*own, *others], key=lambda turn: turn.seq)


def latest_answer(conversation: Sequence[Turn]) -> str | None:
    """The text of the initiator's last message."""
    return next((turn.text for turn in reversed(conversation) if turn.message is not None), None)


def steps_of_run(history: Sequence[HistoryEntry], own: str, since: int, heartbeats: str) -> list[HistoryEntry]:
    """The steps of a work from the latest question of `own` after sequence `since` on; empty when there is none.

    `heartbeats` begins the ids of traces that say nothing about the question.
    """
    later = [entry for entry in history if entry.seq > since and not entry.id.startswith(heartbeats)]
    asked = [at for at, entry in enumerate(later) if entry.event == NEED_INPUT and entry.actor == own]
    return later[asked[-1] :] if asked else []


def _text(message: dict[str, Any]) -> str | None:
    text = (message["envelope"].get("body") or {}).get("text")
    return text if isinstance(text, str) else None
