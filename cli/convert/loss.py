"""Finds the members of a message that are lost in a conversion to another format (adapters.md, Cross-format).

Compares values instead of a table of fields: a text counts as carried when it occurs anywhere in the output, a number or
boolean when it occurs under its own name.
"""

from __future__ import annotations

import json
import re
from collections.abc import Iterator
from typing import Any, Final

from aghbus.protocol.formats.model import Finding
from aghbus.protocol.formats.strict_json import pointer

TRANSLATED: Final = {
    "sentient": frozenset({("status", "code"), ("error", "has_error")}),
    "humaninloop": frozenset({("success",), ("recommendation",)}),
    "agentos": frozenset({("type",)}),
    "sacp": frozenset({("status",)}),
    "agh": frozenset({("body", "state"), ("body", "status")}),
}
"""Members whose meaning is carried by the state of the work or the kind of the message."""
_NEEDS_A_STATE: Final = frozenset({"failed", "partial", "error", True})
"""Values of these members whose meaning only a trace or receipt carries: a say has no state."""
_LEVELS: Final = 2  # depth of reported members
_MOST: Final = 100  # findings of one message
_SHORT: Final = 16  # characters; a short text must occur as a whole word


def lost_members(format: str, message: Any, made: list[Any], *, has_state: bool) -> list[Finding]:
    """One warning for each member of `message` with a value that does not occur in `made`.

    `has_state`: whether any of `made` comes from a trace or receipt.
    """
    everything = _everything(made)
    found: list[Finding] = []
    for path, member in _members(message, ()):
        if path in TRANSLATED[format]:
            carried = has_state or member not in _NEEDS_A_STATE or f":{_compact(member)}" in everything
        else:
            carried = all(_is_there(key, leaf, everything) for key, leaf in _leaves(path, member))
        if carried:
            continue
        found.append(Finding(pointer(*path), "not_carried", "warning", "has no place in the format converted to"))
        if len(found) == _MOST:
            break
    return found


def _members(value: Any, path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    if isinstance(value, dict) and value and len(path) < _LEVELS:
        for key, item in value.items():
            yield from _members(item, (*path, key))
    else:
        yield path, value


def _leaves(path: tuple[str, ...], value: Any) -> Iterator[tuple[str | None, Any]]:
    """Every scalar value with its key; None in an array."""
    waiting: list[tuple[str | None, Any]] = [(path[-1] if path else None, value)]
    while waiting:
        key, item = waiting.pop()
        if isinstance(item, dict):
            waiting += item.items()
        elif isinstance(item, list):
            waiting += [(None, inner) for inner in item]
        else:
            yield key, item


def _is_there(key: str | None, leaf: Any, everything: str) -> bool:
    if leaf is None or leaf == "":
        return True
    if isinstance(leaf, str):
        return _stands(leaf, everything) or _stands(_compact(leaf)[1:-1], everything)
    written = _compact(leaf)
    return (written if key is None else f"{_compact(key)}:{written}") in everything


def _stands(text: str, everything: str) -> bool:
    """Whether a text occurs; a short one only as a whole word: `t` does not occur in `text`."""
    if len(text) > _SHORT or text not in everything:
        return text in everything
    return re.search(rf"(?<!\w){re.escape(text)}(?!\w)", everything) is not None


def _everything(made: list[Any]) -> str:
    """The whole output as one text: compact JSON, and each string unescaped, since strings may contain JSON."""
    texts = [leaf for _, leaf in _leaves((), made) if isinstance(leaf, str)]
    return "\0".join([_compact(made), *texts])


def _compact(value: Any) -> str:
    return json.dumps(value, ensure_ascii=False, separators=(",", ":"))
