"""Changes of one table in the text of a TOML file. Everything else stays as it is: order, layout and comments.

The result is parsed and compared with what was meant: a layout that this module cannot change is refused, never damaged.
"""

from __future__ import annotations

import json
import re
import tomllib
from collections.abc import Mapping, Sequence

from aghbus.cli.mcp.json_text import Broken
from aghbus.protocol.base.annotations import Any

_TOKEN = re.compile(
    r'"""(?:[^\\]|\\.)*?"{3,5}|' + r"'''.*?'{3,5}" + r'|"(?:[^"\\\n]|\\.)*"|' + r"'[^'\n]*'" + r"|#[^\n]*|[\[\]{}]|\n",
    re.DOTALL,
)
_LINE = re.compile(r"[^\n]*\n?")


class _Statement:
    """A header or a pair: `text[start:end]`, whole lines, and the keys that it defines, from the outside."""

    def __init__(self, start: int, end: int, path: tuple[str, ...], *, header: bool) -> None:
        self.start = start
        self.end = end
        self.path = path
        self.header = header


def load(text: str) -> dict[str, Any]:
    """The document. Raises Broken with line and column."""
    try:
        return tomllib.loads(text)
    except (ValueError, RecursionError) as error:
        raise Broken(str(error)) from None


def put_table(text: str, path: Sequence[str], values: Mapping[str, Any]) -> str:
    """The text with these pairs in the table at `path`; other pairs of the table stay."""
    meant = load(text)
    table = meant
    for key in path:
        table = _table(table.setdefault(key, {}), path)
    table.update(values)
    for key, value in values.items():
        text = _put_pair(text, tuple(path), key, _value(value))
    return _checked(text, meant)


def drop_table(text: str, path: Sequence[str]) -> str:
    """The text without the table at `path`."""
    meant = load(text)
    table = meant
    for key in path[:-1]:
        table = _table(table.get(key, {}), path)
    if table.pop(path[-1], None) is None:
        return text
    for statement in reversed(_statements(text)):
        if statement.path[: len(path)] == tuple(path):
            start = statement.start
            if statement.header and text[:start].endswith("\n\n"):
                start -= 1
            text = text[:start] + text[statement.end :]
    return _checked(text, meant)


def _table(found: Any, path: Sequence[str]) -> dict[str, Any]:
    if not isinstance(found, dict):
        raise Broken(f"{'.'.join(path)} is not in a table")
    return found


def _checked(text: str, meant: dict[str, Any]) -> str:
    try:
        same = _pruned(tomllib.loads(text)) == _pruned(meant)
    except ValueError:
        same = False
    if not same:
        raise Broken("the table is written in a form that cannot be changed automatically")
    return text


def _pruned(document: dict[str, Any]) -> str:
    """The document as comparable text, without empty tables: NaN is equal to itself."""
    full = {key: value for key, value in document.items() if value != {}}
    return json.dumps(full, sort_keys=True, default=repr)


def _put_pair(text: str, path: tuple[str, ...], key: str, value: str) -> str:
    statements = _statements(text)
    line = f"{key} = {value}\n"
    for statement in statements:
        if not statement.header and statement.path == (*path, key):
            written = text[statement.start : statement.end]
            return text[: statement.start] + f"{written.partition('=')[0].rstrip()} = {value}\n" + text[statement.end :]
    for statement in statements:
        if statement.header and statement.path == path:
            inside = [each.end for each in _of(statements, statement)]
            end = max(inside, default=statement.end)
            newline = "" if text[:end].endswith("\n") else "\n"
            return text[:end] + newline + line + text[end:]
    before = "" if not text else "\n" if text.endswith("\n") else "\n\n"
    return f"{text}{before}[{'.'.join(path)}]\n{line}"


def _of(statements: list[_Statement], header: _Statement) -> list[_Statement]:
    """The pairs below a header."""
    found = []
    for statement in statements[statements.index(header) + 1 :]:
        if statement.header:
            break
        found.append(statement)
    return found


def _statements(text: str) -> list[_Statement]:
    """Headers and pairs in their order; comments and empty lines belong to none."""
    found: list[_Statement] = []
    where = 0
    table: tuple[str, ...] = ()
    while where < len(text):
        end = _end(text, where)
        statement = text[where:end]
        if statement.strip() and not statement.lstrip().startswith("#"):
            header = statement.lstrip().startswith("[")
            keys = _keys(statement)
            table = keys if header else table
            found.append(_Statement(where, end, keys if header else (*table, *keys), header=header))
        where = end
    return found


def _end(text: str, where: int) -> int:
    """The end of the line that ends the statement at `where`: the first one outside of strings and brackets."""
    depth = 0
    for token in _TOKEN.finditer(text, where):
        if token[0] in ("[", "{"):
            depth += 1
        elif token[0] in ("]", "}"):
            depth -= 1
        elif token[0] == "\n" and depth <= 0:
            return token.end()
    return len(text)


def _keys(statement: str) -> tuple[str, ...]:
    """The keys that a statement defines, from the outside."""
    document: Any = tomllib.loads(statement)
    keys: list[str] = []
    pair = not statement.lstrip().startswith("[")
    depth = _dots(statement.partition("=")[0]) if pair else len(statement)
    while isinstance(document, dict) and len(document) == 1 and len(keys) < depth:
        key, document = next(iter(document.items()))
        keys.append(key)
        document = document[0] if not pair and isinstance(document, list) else document
    return tuple(keys)


def _dots(written: str) -> int:
    """How many keys a dotted key has; a dot in quotes separates none."""
    return len(re.findall(r'"(?:[^"\\]|\\.)*"|\'[^\']*\'|[A-Za-z0-9_-]+', written))


def _value(value: Any) -> str:
    """A text, a list of texts or an inline table of texts. JSON's strings are TOML's, but for DEL and lone surrogates."""
    if isinstance(value, str):
        return json.dumps(value, ensure_ascii=False).replace("\x7f", "\\u007f")
    if isinstance(value, list):
        return f"[{', '.join(map(_value, value))}]"
    return f"{{ {', '.join(f'{_value(key)} = {_value(each)}' for key, each in value.items())} }}"
