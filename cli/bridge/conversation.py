"""The input of a bridged command that asked: the opening message with the conversation, in the form that its format has."""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any, NamedTuple


class Said(NamedTuple):
    """One part of a conversation. `sender` is None for our own output, whose `message` is the printed text.

    `native`: the message was generated from an envelope that carried none of the format.
    """

    sender: str | None
    message: Any
    native: bool = False


def transcript(opening: str, conversation: Sequence[Said]) -> str:
    """The conversation as text, for formats whose input is text."""
    parts = [f"{said.sender or 'You'} answered:\n{_text(said.message)}" for said in conversation]
    return "\n\n".join([opening, *parts])


def with_conversation(format: str, opening: dict[str, Any], conversation: Sequence[Said]) -> dict[str, Any]:
    """The opening message with the later ones as `conversation`. Inputs of ADR-007 also get them as `prior_context`."""
    message = {**opening, "conversation": [_value(said) for said in conversation]}
    if format == "humaninloop":
        earlier = opening.get("prior_context") or []
        message["prior_context"] = [*earlier, *(note for said in conversation for note in _notes(said))]
    return message


def _value(said: Said) -> Any:
    """A message of the format; a question that was no such message as `{"question": text}`."""
    if said.sender is not None:
        return said.message
    try:
        return json.loads(said.message)
    except ValueError:
        return {"question": said.message}


def _notes(said: Said) -> list[str]:
    """An output as its summary and notes, an input as its text, else its task, and its own prior context."""
    value = _value(said)
    if said.sender is None:
        return [f"question: {value.get('summary', value.get('question', ''))}", *(value.get("notes") or [])]
    params = value["task"].get("params") or {}
    text = params.get("text") if said.native else None
    notes = [] if said.native else value.get("prior_context") or []
    return [f"answer: {text if isinstance(text, str) else _text(value['task'])}", *notes]


def _text(value: Any) -> str:
    return value if isinstance(value, str) else json.dumps(value, ensure_ascii=False)
