"""Matches a guardrail's pattern against text in time linear in the text: a lazily built DFA.

All states of the automaton are followed at once, and transitions between sets of states are cached: on ordinary text that is
one dictionary access per character.
"""

import re
from collections.abc import Iterable
from typing import Final

from aghbus.protocol.formats.sacp.patterns import AssertState, CharState, compile_pattern

_MAX_TRANSITIONS: Final = 50_000  # cached transitions: about 6 MB; then the cache is cleared
_LAST_LINE_FEED: Final = "\n$"  # a key, not a character: a line feed at the end of the text, which `$` may precede
_END: Final = ""  # a key for the end of the text
_WORD: Final = r"\w"


class _StateSet:
    """The active states between two characters, and properties of the previous character."""

    __slots__ = ("before", "next", "states")

    def __init__(self, states: frozenset[int], before: tuple[bool, bool, bool]) -> None:
        self.states = states
        self.before = before  # at the beginning; after a word character; after a line feed
        self.next: dict[str, _StateSet | None] = {}  # None: the pattern matches


class Matcher:
    """One compiled pattern. Raises InvalidRequest for an invalid one."""

    def __init__(self, pattern: str) -> None:
        self._automaton = compile_pattern(pattern)
        flags = self._automaton.flags
        sources = {state.source for state in self._automaton.states if isinstance(state, CharState)}
        self._char_matchers = {source: re.compile(source, flags).fullmatch for source in sources}
        self._word = re.compile(_WORD, flags & re.ASCII).fullmatch
        self._multiline = bool(flags & re.MULTILINE)
        self._reset_cache()

    def found_in(self, text: str) -> bool:
        """Whether the pattern matches anywhere in `text`."""
        current = self._first
        last = len(text) - 1
        for index, char in enumerate(text):
            key = char if char != "\n" or index != last else _LAST_LINE_FEED
            try:
                following = current.next[key]
            except KeyError:
                following = self._advance(current, key)
            if following is None:
                return True
            current = following
        return self._advance(current, _END) is None

    def _reset_cache(self) -> None:
        self._transition_count = 0
        self._state_sets: dict[tuple[frozenset[int], tuple[bool, bool, bool]], _StateSet] = {}
        self._first = self._state_set(frozenset({self._automaton.start}), (True, False, False))

    def _state_set(self, states: frozenset[int], before: tuple[bool, bool, bool]) -> _StateSet:
        key = (states, before)
        if key not in self._state_sets:
            self._state_sets[key] = _StateSet(*key)
        return self._state_sets[key]

    def _advance(self, current: _StateSet, key: str) -> _StateSet | None:
        if self._transition_count >= _MAX_TRANSITIONS:
            self._reset_cache()
        reached = self._closure(current, key)
        following: _StateSet | None = None
        if 0 not in reached:
            char = key[:1]
            states = {self._automaton.start, *self._successors(reached, char)}
            following = self._state_set(frozenset(states), (False, self._is_word(char), char == "\n"))
        current.next[key] = following
        self._transition_count += 1
        return following

    def _closure(self, current: _StateSet, key: str) -> set[int]:
        """All states reachable without consuming a character, the next one being `key`."""
        reached: set[int] = set()
        todo = list(current.states)
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
            elif self._holds(state.assertion, current.before, key):
                todo.append(state.then)
        return reached

    def _successors(self, reached: Iterable[int], char: str) -> Iterable[int]:
        """The states after consuming `char`."""
        taken: dict[str, bool] = {}
        for index in reached:
            state = self._automaton.states[index]
            if isinstance(state, CharState):
                if state.source not in taken:
                    taken[state.source] = self._char_matchers[state.source](char) is not None
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
