"""Conditions of edges: `response.status == "success" and response.data.score > 0.8` (seed 004, section 4.1).

    condition  = conjunction { ("or" | "||") conjunction }
    conjunction = negation { ("and" | "&&") negation }
    negation   = ("not" | "!") negation | "(" condition ")" | comparison
    comparison = operand [ ("==" | "!=" | "<" | "<=" | ">" | ">=") operand ]
    operand    = path | string | number | "true" | "false" | "null"

A condition is parsed and then evaluated over JSON values; it is never executed as code. A comparison with a missing path, or of
values of different types, is false, and its negation is therefore true (adapters.md, Chains).
"""

import json
import math
import re
from collections.abc import Callable, Iterator
from typing import Any, Final

import msgspec

from aghbus.protocol.chains.errors import ChainError
from aghbus.protocol.chains.paths import MISSING, PATH, WORDS, Path, Scope, read_path

MAX_LENGTH: Final = 4_096  # characters of one condition
MAX_DEPTH: Final = 32  # parentheses and negations around one another

_TOKEN: Final = re.compile(
    rf"""(?P<space>[ \t\r\n]+)
    |(?P<number>-?(?:0|[1-9][0-9]*)(?:\.[0-9]+)?(?:[eE][+-]?[0-9]+)?(?![\w.]))
    |(?P<string>"(?:[^"\\\x00-\x1f]|\\.)*"|'(?:[^'\\\x00-\x1f]|\\.)*')
    |(?P<path>{PATH.pattern})
    |(?P<sign>==|!=|<=|>=|&&|\|\||[<>!()])""",
    re.VERBOSE,
)
_SYNONYMS: Final = {"&&": "and", "||": "or", "!": "not"}
_CONSTANTS: Final[dict[str, bool | None]] = {"true": True, "false": False, "null": None}
_ORDER: Final[dict[str, Callable[[Any, Any], bool]]] = {
    "<": lambda left, right: bool(left < right),
    "<=": lambda left, right: bool(left <= right),
    ">": lambda left, right: bool(left > right),
    ">=": lambda left, right: bool(left >= right),
}
_COMPARISONS: Final = frozenset(_ORDER) | {"==", "!="}


class Constant(msgspec.Struct, frozen=True):
    """A literal."""

    value: str | int | float | bool | None


Operand = Path | Constant


class Comparison(msgspec.Struct, frozen=True):
    """A comparison; `operator` is one of the six."""

    left: Operand
    operator: str
    right: Operand


class IsTrue(msgspec.Struct, frozen=True):
    """A single operand: holds when its value is `true`."""

    operand: Operand


class Not(msgspec.Struct, frozen=True):
    """Negation."""

    inner: "Tree"


class AllOf(msgspec.Struct, frozen=True):
    """`and`."""

    parts: tuple["Tree", ...]


class AnyOf(msgspec.Struct, frozen=True):
    """`or`."""

    parts: tuple["Tree", ...]


Tree = Comparison | IsTrue | Not | AllOf | AnyOf


class Condition(msgspec.Struct, frozen=True):
    """A parsed condition."""

    text: str
    tree: Tree

    def holds(self, scope: Scope) -> bool:
        """Whether it is true of `scope`; never raises."""
        return _holds(self.tree, scope)

    def paths(self) -> Iterator[Path]:
        """All paths in the condition, in order."""
        return _paths(self.tree)


def read_condition(text: str) -> Condition:
    """Parse a condition. Raises ChainError with the position."""
    if len(text) > MAX_LENGTH:
        raise ChainError("condition", f"a condition has at most {MAX_LENGTH} characters")
    return Condition(text, _ConditionParser(text).parse())


class _Token(msgspec.Struct, frozen=True):
    kind: str  # number, string, path, sign, word or end
    text: str
    at: int


class _ConditionParser:
    """A recursive descent parser with one token of look-ahead."""

    def __init__(self, text: str) -> None:
        self._tokens = _tokens(text)
        self._next = next(self._tokens)

    def parse(self) -> Tree:
        tree = self._disjunction(0)
        if self._next.kind != "end":
            raise _unexpected(self._next, "`and`, `or` or the end")
        return tree

    def _take(self) -> _Token:
        taken = self._next
        if taken.kind != "end":
            self._next = next(self._tokens)
        return taken

    def _disjunction(self, depth: int) -> Tree:
        parts = [self._conjunction(depth)]
        while self._next.text == "or" and self._next.kind == "word":
            self._take()
            parts.append(self._conjunction(depth))
        return parts[0] if len(parts) == 1 else AnyOf(tuple(parts))

    def _conjunction(self, depth: int) -> Tree:
        parts = [self._negation(depth)]
        while self._next.text == "and" and self._next.kind == "word":
            self._take()
            parts.append(self._negation(depth))
        return parts[0] if len(parts) == 1 else AllOf(tuple(parts))

    def _negation(self, depth: int) -> Tree:
        if depth > MAX_DEPTH:
            raise ChainError("condition", f"is nested deeper than {MAX_DEPTH} at character {self._next.at + 1}")
        if self._next.kind == "word" and self._next.text == "not":
            self._take()
            return Not(self._negation(depth + 1))
        if self._next.kind == "sign" and self._next.text == "(":
            self._take()
            inner = self._disjunction(depth + 1)
            closing = self._take()
            if closing.text != ")" or closing.kind != "sign":
                raise _unexpected(closing, "`)`")
            return inner
        return self._comparison()

    def _comparison(self) -> Tree:
        begin = self._next
        left = self._operand()
        if self._next.kind != "sign" or self._next.text not in _COMPARISONS:
            if isinstance(left, Constant) and not isinstance(left.value, bool):
                raise _unexpected(begin, "a comparison")
            return IsTrue(left)
        operator = self._take().text
        return Comparison(left, operator, self._operand())

    def _operand(self) -> Operand:
        token = self._take()
        if token.kind == "path":
            return read_path(token.text)
        if token.kind == "string":
            return Constant(_string(token))
        if token.kind == "number":
            return Constant(_number(token))
        if token.kind == "word" and token.text in _CONSTANTS:
            return Constant(_CONSTANTS[token.text])
        raise _unexpected(token, "a path or a value")


def _tokens(text: str) -> Iterator[_Token]:
    at = 0
    while at < len(text):
        match = _TOKEN.match(text, at)
        if match is None:
            hint = " (equality is `==`)" if text[at] == "=" else ""
            raise ChainError("condition", f"unexpected {text[at]!r} at character {at + 1}{hint}")
        kind, found = match.lastgroup or "", match.group()
        if kind == "path" and found in WORDS:
            yield _Token("word", found, at)
        elif found in _SYNONYMS:
            yield _Token("word", _SYNONYMS[found], at)
        elif kind != "space":
            yield _Token(kind, found, at)
        at = match.end()
    yield _Token("end", "", at)


def _unexpected(token: _Token, wanted: str) -> ChainError:
    found = "the end" if token.kind == "end" else f"{token.text!r}, character {token.at + 1}"
    return ChainError("condition", f"{wanted} is expected instead of {found}")


def _string(token: _Token) -> str:
    quoted = token.text
    if quoted[0] == "'":
        inner = re.sub(r'\\(.)|(")', lambda match: _escaped(match[1], match[2]), quoted[1:-1], flags=re.DOTALL)
        quoted = f'"{inner}"'
    try:
        value: str = json.loads(quoted)
    except ValueError:
        raise ChainError("condition", f"{token.text} is not a valid string, character {token.at + 1}") from None
    return value


def _escaped(after_backslash: str | None, quote: str | None) -> str:
    """A character of a '…' string, escaped for a "…" string."""
    if quote or after_backslash == '"':
        return '\\"'
    return "'" if after_backslash == "'" else f"\\{after_backslash}"


def _number(token: _Token) -> int | float:
    try:
        value: int | float = json.loads(token.text)
    except ValueError:  # more digits than Python converts
        value = math.inf
    if isinstance(value, float) and not math.isfinite(value):
        raise ChainError("condition", f"a number is out of range, character {token.at + 1}")
    return value


def _holds(tree: Tree, scope: Scope) -> bool:
    match tree:
        case AllOf(parts):
            return all(_holds(part, scope) for part in parts)
        case AnyOf(parts):
            return any(_holds(part, scope) for part in parts)
        case Not(inner):
            return not _holds(inner, scope)
        case IsTrue(operand):
            return _value(operand, scope) is True
        case Comparison(left, operator, right):
            return _compare(_value(left, scope), operator, _value(right, scope))


def _value(operand: Operand, scope: Scope) -> Any:
    return operand.find(scope) if isinstance(operand, Path) else operand.value


def _compare(left: Any, operator: str, right: Any) -> bool:
    if left is MISSING or right is MISSING:
        return False
    kinds = _type_name(left), _type_name(right)
    if operator in _ORDER:
        return kinds[0] == kinds[1] and kinds[0] in ("number", "string") and _ORDER[operator](left, right)
    if kinds[0] != kinds[1]:
        # A comparison with null tests the type, so differing types are not a mismatch.
        return operator == "!=" and "null" in kinds
    return _same(left, right) == (operator == "==")


def _same(left: Any, right: Any) -> bool:
    if _type_name(left) != _type_name(right):
        return False
    if isinstance(left, list):
        return len(left) == len(right) and all(map(_same, left, right))
    if isinstance(left, dict):
        return left.keys() == right.keys() and all(_same(left[key], right[key]) for key in left)
    return bool(left == right)


def _type_name(value: Any) -> str:
    if value is None:
        return "null"
    if isinstance(value, bool):
        return "boolean"
    if isinstance(value, int | float):
        return "number"
    if isinstance(value, str):
        return "string"
    return "array" if isinstance(value, list) else "object"


def _paths(tree: Tree) -> Iterator[Path]:
    match tree:
        case AllOf(parts) | AnyOf(parts):
            for part in parts:
                yield from _paths(part)
        case Not(inner):
            yield from _paths(inner)
        case IsTrue(operand):
            yield from _path(operand)
        case Comparison(left, _, right):
            yield from _path(left)
            yield from _path(right)


def _path(operand: Operand) -> Iterator[Path]:
    if isinstance(operand, Path):
        yield operand
