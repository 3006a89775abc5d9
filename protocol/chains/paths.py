"""Paths into the data of a run: `response.data.list[0].x`, `node_A.message`, `input` (seed 004, sections 4.1 and 4.2).

A path begins with a root: `response`, `work`, `input`, `run`, or the id of a node, which means that node's latest response.
"""

import json
import re
from collections.abc import Mapping
from typing import Any, Final

import msgspec

from aghbus.protocol.chains.errors import ChainError

ROOTS: Final = frozenset({"response", "work", "input", "run"})
WORDS: Final = frozenset({"and", "or", "not", "true", "false", "null"})
"""Keywords of conditions, which are not allowed as roots or node ids."""

PATH: Final = re.compile(
    r"[A-Za-z_][A-Za-z0-9_-]*(?:\.[\w-]+|\[(?:0|[1-9][0-9]{0,8})\]|\[\"(?:[^\"\\\x00-\x1f]|\\.)*\"\])*"
)
_STEP: Final = re.compile(r"\.(?P<name>[\w-]+)|\[(?P<index>[0-9]+)\]|\[(?P<quoted>\"(?:[^\"\\]|\\.)*\")\]")

Scope = Mapping[str, Any]
"""The values of the roots."""


class Missing:
    """The type of MISSING, the result of a path without a value; JSON null is a value."""


MISSING: Final = Missing()


class Path(msgspec.Struct, frozen=True):
    """One path. `keys` after the root: member names and array indices."""

    text: str
    root: str
    keys: tuple[str | int, ...]

    def find(self, scope: Scope) -> Any:
        """The value of the path, or MISSING."""
        value = scope.get(self.root, MISSING)
        for key in self.keys:
            if isinstance(key, int):
                value = value[key] if isinstance(value, list) and key < len(value) else MISSING
            else:
                value = value.get(key, MISSING) if isinstance(value, dict) else MISSING
        return value


def read_path(text: str) -> Path:
    """Parse a text that matches `PATH`. Raises ChainError for a quoted key that is not a JSON string."""
    root = text[: re.match(r"[\w-]*", text, re.ASCII).end()]  # type: ignore[union-attr]  # matches the empty text too
    if root in WORDS:
        raise ChainError("path", f"{text!r}: a path must not begin with {root!r}")
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
        raise ChainError("path", f"{text} is not a JSON string") from None
    return key
