"""Changes of single values in the text of a JSON file. Everything else stays as it is: order, spelling, layout and comments.

Comments and commas after the last entry, which some hosts allow, are accepted.
"""

from __future__ import annotations

import json
import re
from collections.abc import Sequence
from json.decoder import JSONDecoder

from aghbus.protocol.base.annotations import Any

Path = Sequence[str | int]
"""Keys of objects and positions in arrays, from the outside."""

_DECODER = JSONDecoder()
_ASIDE = re.compile(r'"(?:[^"\\]|\\.)*"|//[^\n]*|/\*.*?\*/|,(?=\s*[]}])', re.DOTALL)
_SPACE = re.compile(r"[ \t\r\n]*")
_COMMA = re.compile(r"\s*,")


class Broken(ValueError):
    """The text is no JSON, or has another structure than the host's."""


class _Entry:
    """An entry of an object or array: `text[start:end]`; its value begins at `value`."""

    def __init__(self, key: str | int, start: int, value: int, end: int) -> None:
        self.key = key
        self.start = start
        self.value = value
        self.end = end


def load(text: str) -> Any:
    """The value. Raises Broken with line and column."""
    try:
        return json.loads(_strict(text)) if text.strip() else {}
    except (ValueError, RecursionError) as error:
        raise Broken(str(error)) from None


def put(text: str, path: Path, value: Any) -> str:
    """The text with `value` at `path`; missing objects are made, and the position behind the end of an array appends.

    Raises Broken when something on the way is neither object nor array.
    """
    strict = _strict(text)
    if not strict.strip():
        text = strict = "{}\n"
    where = _after_space(strict, 0)
    for depth, key in enumerate(path):
        entries = _entries(strict, where, path[: depth + 1])
        found = next((entry for entry in reversed(entries) if entry.key == key), None)
        if found is None:
            for outer in reversed(path[depth + 1 :]):
                value = [value] if isinstance(outer, int) else {outer: value}
            return _insert(text, where, entries, key, value)
        where, end = found.value, found.end
    return text[:where] + _dumps(value, _indent(text, where), _line_end(text)) + text[end:]


def drop(text: str, path: Path) -> str:
    """The text without the entry at `path`, and without objects and arrays that held nothing else."""
    strict, bare = _strict(text), _without_comments(text)
    where = _after_space(strict, 0)
    chain: list[tuple[list[_Entry], int]] = []
    for depth, key in enumerate(path):
        entries = _entries(strict, where, path[: depth + 1])
        at = max((at for at, entry in enumerate(entries) if entry.key == key), default=None)
        if at is None:
            return text
        chain.append((entries, at))
        where = entries[at].value
    while len(chain) > 1 and len(chain[-1][0]) == 1:
        entries, at = chain[-2]
        if bare[entries[at].value : entries[at].end] != text[entries[at].value : entries[at].end]:
            break  # it holds a comment
        chain.pop()
    return _cut(text, bare, *chain[-1])


def _cut(text: str, bare: str, entries: list[_Entry], at: int) -> str:
    """Without one entry, the white space before it, and one of the commas around it."""
    entry = entries[at]
    start = len(text[: entry.start].rstrip())
    if bare[start - 1] != text[start - 1]:
        start = entry.start  # a comment that may need the end of its line
    comma = _COMMA.match(bare, entry.end)
    if comma is not None:
        return text[:start] + text[entry.end : comma.end() - 1] + text[comma.end() :]
    rest = text[entry.end :]
    if not at:
        return text[:start] + (rest.lstrip() if rest.lstrip()[:1] in ("]", "}") else rest)
    before = bare.index(",", entries[at - 1].end)
    return text[:before] + text[before + 1 : start] + rest


def _insert(text: str, where: int, entries: list[_Entry], key: str | int, value: Any) -> str:
    """A new last entry of the object or array at `where`."""
    line, outer = _line_end(text), _indent(text, where)
    name = f"{json.dumps(key)}: " if isinstance(key, str) else ""
    if not entries:
        rest = text[where + 1 :].lstrip(" \t")
        closing = "" if rest.startswith(("\n", "\r")) else line + outer
        inner = outer + "  "
        return f"{text[: where + 1]}{line}{inner}{name}{_dumps(value, inner, line)}{closing}{rest}"
    last = entries[-1]
    if "\n" not in text[where : last.start]:
        return f"{text[: last.end]}, {name}{json.dumps(value)}{text[last.end :]}"
    inner = _indent(text, last.start)
    return f"{text[: last.end]},{line}{inner}{name}{_dumps(value, inner, line)}{text[last.end :]}"


def _entries(strict: str, where: int, path: Path) -> list[_Entry]:
    """The entries of what is at `where`, to which the last part of `path` belongs. Raises Broken for anything else."""
    opening = strict[where : where + 1]
    if opening != ("{" if isinstance(path[-1], str) else "["):
        kind = "object" if isinstance(path[-1], str) else "array"
        raise Broken(f"{'.'.join(map(str, path[:-1])) or 'the document'} is not an {kind}")
    found: list[_Entry] = []
    where = _after_space(strict, where + 1)
    while strict[where] not in "]}":
        start, key = where, len(found)
        if opening == "{":
            key, where = _DECODER.raw_decode(strict, where)
            where = _after_space(strict, _after_space(strict, where) + 1)
        _, end = _DECODER.raw_decode(strict, where)
        found.append(_Entry(key, start, where, end))
        where = _after_space(strict, end)
        if strict[where] == ",":
            where = _after_space(strict, where + 1)
    return found


def _after_space(strict: str, where: int) -> int:
    return _SPACE.match(strict, where).end()  # type: ignore[union-attr]  # it always matches


def _strict(text: str) -> str:
    """The text with spaces in place of comments and of commas after the last entry: as long as `text`."""
    bare = _without_comments(text)

    def blank(found: re.Match[str]) -> str:
        return " " if found[0] == "," and bare[: found.start()].rstrip()[-1:] not in ("{", "[", ",") else found[0]

    return _ASIDE.sub(blank, bare)


def _without_comments(text: str) -> str:
    """The text with spaces in place of comments and of a byte order mark."""
    bare = _ASIDE.sub(lambda found: found[0] if found[0][0] in '",' else _spaces(found[0]), text)
    return " " + bare[1:] if bare.startswith("\ufeff") else bare


def _spaces(text: str) -> str:
    return re.sub(r"[^\n]", " ", text)


def _indent(text: str, where: int) -> str:
    """The white space at the beginning of the line of `where`."""
    line = text[text.rfind("\n", 0, where) + 1 : where]
    return line[: len(line) - len(line.lstrip())]


def _line_end(text: str) -> str:
    return "\r\n" if "\r\n" in text else "\n"


def _dumps(value: Any, indent: str, line: str) -> str:
    return json.dumps(value, indent=2).replace("\n", line + indent)
