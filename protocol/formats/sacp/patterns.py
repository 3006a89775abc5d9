"""Parses patterns of guardrails: a subset of Python's regular expressions without backtracking.

Backreferences, look-around and atomic groups are refused. Everything else becomes an automaton, which matching.py runs in time
linear in the text. With `re`, a text of a language model could block the daemon for hours on a pattern like `(a+)+$`.
"""

import re
from typing import Final, NoReturn

import msgspec

from aghbus.protocol.base.errors import InvalidRequest

MAX_PATTERN_CHARACTERS: Final = 1_000  # of a pattern
MAX_STATES: Final = 500  # of an automaton: `x{500}` has 500
_MAX_BUILD_STEPS: Final = 5_000  # of building one: repetitions of an empty part add no states
_MAX_NESTING: Final = 20  # nested groups: far below the interpreter's recursion limit

_FLAGS: Final = re.compile(r"\(\?([aims]+)\)")
_COUNT: Final = re.compile(r"\{(?=[\d,])(\d*)(?:(,)(\d*))?\}", re.ASCII)
_CLASS: Final = re.compile(r"\[\^?+\]?+(?:[^\]\\]|\\.)*+\]", re.DOTALL)
_ESCAPE: Final = re.compile(r"\\(?:x[0-9a-fA-F]{2}|u[0-9a-fA-F]{4}|U[0-9a-fA-F]{8}|N\{[^}]*+\}|[^0-9xuUN])", re.DOTALL)
_GROUP: Final = re.compile(r"\((?:\?:|\?P<\w+>|(?!\?))")
_ASSERTIONS: Final = ("^", "$", r"\b", r"\B", r"\A", r"\Z")
_HINT: Final = "docs/adapters/sacp.md lists the supported syntax"


class CharState(msgspec.Struct, frozen=True):
    """A state that consumes one character; `source` is the pattern of that character."""

    source: str
    then: int


class ForkState(msgspec.Struct, frozen=True):
    """A state that leads to each of `then` without consuming a character."""

    then: tuple[int, ...]


class AssertState(msgspec.Struct, frozen=True):
    """A state that leads to `then` where `assertion` (`^`, `$`, `\\b`, …) holds."""

    assertion: str
    then: int


AutomatonState = CharState | ForkState | AssertState


class Automaton(msgspec.Struct, frozen=True):
    """A compiled pattern. State 0 is the accepting state; `flags` are the flags of `re` for single characters."""

    states: tuple[AutomatonState, ...]
    start: int
    flags: int


def check_pattern(source: str) -> None:
    """Raises InvalidRequest when `source` is not a regular expression, or is outside of the subset."""
    compile_pattern(source)


def compile_pattern(source: str) -> Automaton:
    """Compile `source`. Raises InvalidRequest."""
    if len(source) > MAX_PATTERN_CHARACTERS:
        raise InvalidRequest(
            f"the pattern has {len(source)} characters, over the limit of {MAX_PATTERN_CHARACTERS}",
            hint="write several patterns",
        )
    try:
        re.compile(source)
    except (re.error, RecursionError, OverflowError) as fault:
        raise InvalidRequest(f"the pattern is not a regular expression: {fault}", hint=_HINT) from None
    leading = _FLAGS.match(source)
    flags = 0
    for letter in leading[1] if leading else "":
        flags |= re.RegexFlag[letter.upper()]
    tree = _PatternParser(source, leading.end() if leading else 0).parse()
    builder = _Builder()
    start = builder.build(tree, 0)
    return Automaton(tuple(builder.states), start, int(flags))


class _Char(msgspec.Struct, frozen=True):
    source: str


class _Assertion(msgspec.Struct, frozen=True):
    assertion: str


class _Sequence(msgspec.Struct, frozen=True):
    parts: "tuple[_Tree, ...]"


class _Choice(msgspec.Struct, frozen=True):
    branches: "tuple[_Tree, ...]"


class _Repeat(msgspec.Struct, frozen=True):
    part: "_Tree"
    least: int
    most: int | None


_Tree = _Char | _Assertion | _Sequence | _Choice | _Repeat


class _PatternParser:
    """Parses a pattern that `re` accepts, so that the only errors are constructs outside of the subset."""

    def __init__(self, source: str, at: int) -> None:
        self._source = source
        self._at = at
        self._nested = 0

    def parse(self) -> _Tree:
        tree = self._choice()
        if self._at < len(self._source):
            self._refuse("an unmatched parenthesis")
        return tree

    def _choice(self) -> _Tree:
        branches = [self._sequence()]
        while self._take("|"):
            branches.append(self._sequence())
        return branches[0] if len(branches) == 1 else _Choice(tuple(branches))

    def _sequence(self) -> _Tree:
        parts: list[_Tree] = []
        while self._at < len(self._source) and self._source[self._at] not in "|)":
            parts.append(self._repeated(self._atom()))
        return _Sequence(tuple(parts))

    def _repeated(self, part: _Tree) -> _Tree:
        bounds = self._bounds()
        if bounds is None:
            return part
        if self._take("+"):
            self._refuse("a possessive repetition")
        self._take("?")  # a lazy repetition matches the same texts
        return _Repeat(part, *bounds)

    def _bounds(self) -> tuple[int, int | None] | None:
        for sign, bounds in (("*", (0, None)), ("+", (1, None)), ("?", (0, 1))):
            if self._take(sign):
                return bounds
        count = _COUNT.match(self._source, self._at)
        if count is None:
            return None
        self._at = count.end()
        least = int(count[1] or 0)
        if count[2] is None:
            return least, least
        return least, int(count[3]) if count[3] else None

    def _atom(self) -> _Tree:
        char = self._source[self._at]
        if char == "(":
            return self._group()
        for assertion in _ASSERTIONS:
            if self._take(assertion):
                return _Assertion(assertion)
        if char in "[\\":
            match = (_CLASS if char == "[" else _ESCAPE).match(self._source, self._at)
            if match is None:
                self._refuse("a backreference or an octal escape")
            self._at = match.end()
            return _Char(match[0])
        self._at += 1
        return _Char(char if char == "." else re.escape(char))

    def _group(self) -> _Tree:
        opening = _GROUP.match(self._source, self._at)
        if opening is None:
            self._refuse("look-around, an atomic or conditional group, or flags inside the pattern")
        self._nested += 1
        if self._nested > _MAX_NESTING:
            self._refuse(f"more than {_MAX_NESTING} groups within groups")
        self._at = opening.end()
        inner = self._choice()
        self._take(")")
        self._nested -= 1
        return inner

    def _take(self, text: str) -> bool:
        if not self._source.startswith(text, self._at):
            return False
        self._at += len(text)
        return True

    def _refuse(self, what: str) -> NoReturn:
        raise InvalidRequest(f"the pattern contains {what} at character {self._at + 1}", hint=_HINT)


class _Builder:
    """Builds the states from the end of the pattern to its beginning, so that each successor exists."""

    def __init__(self) -> None:
        self.states: list[AutomatonState] = [ForkState(())]
        self._steps = 0

    def build(self, tree: _Tree, then: int) -> int:
        """The first state of `tree`, which leads to `then`."""
        self._steps += 1
        if self._steps > _MAX_BUILD_STEPS:
            self._refuse()
        match tree:
            case _Char():
                return self._add(CharState(tree.source, then))
            case _Assertion():
                return self._add(AssertState(tree.assertion, then))
            case _Sequence():
                for part in reversed(tree.parts):
                    then = self.build(part, then)
                return then
            case _Choice():
                return self._add(ForkState(tuple(self.build(branch, then) for branch in tree.branches)))
            case _Repeat():
                return self._repeat(tree, then)

    def _repeat(self, tree: _Repeat, then: int) -> int:
        if tree.most is None:
            loop = self._add(ForkState(()))
            self.states[loop] = ForkState((self.build(tree.part, loop), then))
            start = loop
        else:
            start = then
            for _ in range(tree.most - tree.least):
                start = self._add(ForkState((self.build(tree.part, start), then)))
        for _ in range(tree.least):
            start = self.build(tree.part, start)
        return start

    def _add(self, state: AutomatonState) -> int:
        if len(self.states) > MAX_STATES * 2:  # an optional character needs two
            self._refuse()
        self.states.append(state)
        return len(self.states) - 1

    def _refuse(self) -> NoReturn:
        raise InvalidRequest(
            "the pattern repeats too much", hint=f"counts may multiply to about {MAX_STATES} characters"
        )
