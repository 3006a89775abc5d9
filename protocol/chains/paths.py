"""Paths into what is known during a run: `response.data.list[0].x`, `node_A.message`, `input` (seed 004, sections 4.1 and 4.2).

A path begins with a root: `response`, `work`, `input`, `run`, or the id of a node, which stands for that node's latest response.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from aghbus.protocol.chains.errors import ChainError

ROOTS: Final = frozenset({"response", "work", "input", "run"})
WORDS: Final = frozenset({"and", "or", "not", "true", "false", "null"})
"""Words of conditions: no path begins with one, so no node is called so."""

PATH: Final = re.compile(
    r"[A-Za-z_][A-Za-z0-9_-]*(?:\.[\w-]+|\[(?:0|[1-9][0-9]{0,8})\]|\[\"(?:[^\"\\\x00-\x1f]|\\.)*\"\])*"
)
_STEP: Final = re.compile(r"\.(?P<name>[\w-]+)|\[(?P<index>[0-9]+)\]|\[(?P<quoted>\"(?:[^\"\\]|\\.)*\")\]")

Scope = Mapping[str, Any]
"""What the roots stand for."""


class Missing:
    """Stands for what a path does not lead to; JSON null is a value."""


MISSING: Final = Missing()


class Path(msgspec.Struct, frozen=True):
    """One path. `keys` after the root: names of members, indices of array items."""

    text: str
    root: str
    keys: tuple[str | int, ...]

    def find(self, scope: Scope) -> Any:
        """The value that it leads to, or MISSING."""
        value = scope.get(self.root, MISSING)
        for key in self.keys:
            if isinstance(key, int):
                value = value[key] if isinstance(value, list) and key < len(value) else MISSING
            else:
                value = value.get(key, MISSING) if isinstance(value, dict) else MISSING
        return value


def read_path(text: str) -> Path:
    """The path in `text`, which `PATH` has matched. Raises ChainError for a key in quotes that is no JSON string."""
    root = text[: re.match(r"[\w-]*", text, re.ASCII).end()]  # type: ignore[union-attr]  # matches the empty text too
    if root in WORDS:
        raise ChainError("path", f"{text!r}: no path begins with {root!r}")
    keys: list[str | int] = []
    for step in _STEP.finditer(text, len(root)):
        if step["name"] is not None:
            keys.append(step["name"])
        elif step["index"] is not None:
            keys.append(int(step["index"]))
        else:
            keys.append(_unquoted(step["quoted"]))
    return Path(text, root, tuple(keys))


def _unquoted(text: str) -> str:
    try:
        key: str = json.loads(text)
    except ValueError:
        raise ChainError("path", f"{text} is no JSON string") from None
    return key
