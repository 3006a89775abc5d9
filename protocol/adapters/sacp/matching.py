"""Looking for a guardrail's pattern in text, in time linear in the text whatever the two hold.

All ways through the pattern are followed at once. A set of states that was met before is looked up, not computed again:
on ordinary text that is one look-up for a character.
"""

import re
from collections.abc import Iterable
from typing import Final

from aghbus.protocol.adapters.sacp.patterns import AssertState, CharState, compile_pattern

_MOST_KEPT: Final = 50_000  # transitions that are remembered, ours: at most some 6 MB; then it begins anew
_LAST_LINE_FEED: Final = "\n$"  # not a character: a line feed that ends the text, which `$` may stand before
_END: Final = ""  # nor is this: what comes after the last character
_WORD: Final = r"\w"


class _StateSet:
    """The states that are alive between two characters, with what is known of the character before."""

    __slots__ = ("before", "next", "states")

    def __init__(self, states: frozenset[int], before: tuple[bool, bool, bool]) -> None:
        self.states = states
        self.before = before  # at the very beginning; after a word character; after a line feed
        self.next: dict[str, _StateSet | None] = {}  # None: the pattern is found


class Matcher:
    """One pattern, compiled. Raises InvalidRequest when it cannot be taken."""

    def __init__(self, pattern: str) -> None:
        self._automaton = compile_pattern(pattern)
        flags = self._automaton.flags
        sources = {state.source for state in self._automaton.states if isinstance(state, CharState)}
        self._ones = {source: re.compile(source, flags).fullmatch for source in sources}
        self._word = re.compile(_WORD, flags & re.ASCII).fullmatch
        self._multiline = bool(flags & re.MULTILINE)
        self._forget()

    def found_in(self, text: str) -> bool:
        """Whether the pattern matches anywhere in `text`."""
        front = self._first
        last = len(text) - 1
        for index, char in enumerate(text):
            key = char if char != "\n" or index != last else _LAST_LINE_FEED
            try:
                following = front.next[key]
            except KeyError:
                following = self._advance(front, key)
            if following is None:
                return True
            front = following
        return self._advance(front, _END) is None

    def _forget(self) -> None:
        self._kept = 0
        self._fronts: dict[tuple[frozenset[int], tuple[bool, bool, bool]], _StateSet] = {}
        self._first = self._front(frozenset({self._automaton.start}), (True, False, False))

    def _front(self, states: frozenset[int], before: tuple[bool, bool, bool]) -> _StateSet:
        key = (states, before)
        if key not in self._fronts:
            self._fronts[key] = _StateSet(*key)
        return self._fronts[key]

    def _advance(self, front: _StateSet, key: str) -> _StateSet | None:
        if self._kept >= _MOST_KEPT:
            self._forget()
        reached = self._closure(front, key)
        following: _StateSet | None = None
        if 0 not in reached:
            char = key[:1]
            states = {self._automaton.start, *self._left(reached, char)}
            following = self._front(frozenset(states), (False, self._is_word(char), char == "\n"))
        front.next[key] = following
        self._kept += 1
        return following

    def _closure(self, front: _StateSet, key: str) -> set[int]:
        """All states that are alive without a further character, the next one being `key`."""
        reached: set[int] = set()
        todo = list(front.states)
        while todo:
            index = todo.pop()
            if index in reached:
                continue
            reached.add(index)
            state = self._automaton.states[index]
            if isinstance(state, CharState):
                continue
            if not isinstance(state, AssertState):
                todo.extend(state.then)
            elif self._holds(state.assertion, front.before, key):
                todo.append(state.then)
        return reached

    def _left(self, reached: Iterable[int], char: str) -> Iterable[int]:
        """The states that `char` leads to."""
        taken: dict[str, bool] = {}
        for index in reached:
            state = self._automaton.states[index]
            if isinstance(state, CharState):
                if state.source not in taken:
                    taken[state.source] = self._ones[state.source](char) is not None
                if taken[state.source]:
                    yield state.then

    def _holds(self, assertion: str, before: tuple[bool, bool, bool], key: str) -> bool:
        first, after_word, after_line_feed = before
        match assertion:
            case r"\A":
                return first
            case "^":
                return first or (self._multiline and after_line_feed)
            case r"\Z":
                return key == _END
            case "$":
                return key in (_END, _LAST_LINE_FEED) or (self._multiline and key == "\n")
            case r"\b":
                return after_word != self._is_word(key[:1])
            case _:
                return after_word == self._is_word(key[:1])

    def _is_word(self, char: str) -> bool:
        return self._word(char) is not None
