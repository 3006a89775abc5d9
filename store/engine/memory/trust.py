"""Trust rules that were made while the daemon runs: the rows, and the same in memory, where every envelope is judged
by them."""

import sqlite3
from collections import Counter
from collections.abc import Iterator
from typing import Final, Literal

import msgspec

from aghbus.store.engine.sql import placeholders
from aghbus.store.engine.unit_of_work import UnitOfWork

MAX_RULES: Final = 10_000
"""Of the operator. The same number of pins by first use is allowed besides, because unknown senders make those, and of peers that
our agent has addressed: the oldest give way."""

RuleKind = Literal["pin", "allow", "deny", "may_open_work", "may_talk", "admit"]
Origin = Literal["operator", "first_use", "addressed"]
Key = tuple[RuleKind, str, str]


class Rule(msgspec.Struct, frozen=True):
    """One row. `subject` is the nickname of a pin or the channel of may_open_work and may_talk, else empty. `who` is a
    key id, of admit and deny also a peer id, of channel rules a peer id, `*` or `*@*`. `since_ms` is when the rule was made,
    `used_ms` when a pin of first use was last used (None for all others), both in Unix milliseconds."""

    rule: RuleKind
    subject: str
    who: str
    origin: Origin
    since_ms: int
    used_ms: int | None = None

    @property
    def key(self) -> Key:
        """What identifies the rule."""
        return self.rule, self.subject, self.who


_COLUMNS: Final = ", ".join(Rule.__struct_fields__)
_PUT: Final = f"INSERT OR REPLACE INTO trust_rules ({_COLUMNS}) VALUES ({placeholders(Rule.__struct_fields__)})"  # noqa: S608 - constants


class TrustRules:
    """The rules in memory. A change within a transaction is active immediately and is undone with it.

    `pins` is a live map from nickname to key id, `admitted` a live set of peer ids; `revision` counts the changes of all rules of
    the operator.
    """

    def __init__(self) -> None:
        self.pins: dict[str, str] = {}
        self.admitted: set[str] = set()
        self.revision = 0
        self._rules: dict[Key, Rule] = {}
        self._counts: Counter[Origin] = Counter()

    def load(self, db: sqlite3.Connection) -> None:
        """Reads the rules of a store that is being opened."""
        for row in db.execute(f"SELECT {_COLUMNS} FROM trust_rules ORDER BY since_ms, subject"):  # noqa: S608 - constants
            self._put(Rule(*row))

    def __iter__(self) -> Iterator[Rule]:
        """The rules in the order in which they were made."""
        return iter(tuple(self._rules.values()))

    def get(self, rule: RuleKind, subject: str, who: str) -> Rule | None:
        """The rule; None when there is none."""
        return self._rules.get((rule, subject, who))

    @property
    def first_use_is_full(self) -> bool:
        """Whether no more nickname is pinned by first use."""
        return self._counts["first_use"] >= MAX_RULES

    @property
    def is_full(self) -> bool:
        """Whether the operator has made as many rules as are kept."""
        return self._counts["operator"] >= MAX_RULES

    def put(self, tx: UnitOfWork, rule: Rule) -> None:
        """Adds or replaces a rule. The caller has removed a pin of another key before."""
        before = self._rules.get(rule.key)
        tx.db.execute(_PUT, msgspec.structs.astuple(rule))
        self._put(rule)
        tx.undo.append(lambda: self._put(before) if before is not None else self._drop(rule.key))

    def put_addressed(self, tx: UnitOfWork, peer: str, now_ms: int) -> Rule | None:
        """Our agent addresses `peer` for the first time. Returns the rule that gave way."""
        dropped = None
        if self._counts["addressed"] >= MAX_RULES:
            dropped = next(rule for rule in self._rules.values() if rule.origin == "addressed")
            self.remove(tx, dropped)
        self.put(tx, Rule("admit", "", peer, "addressed", now_ms))
        return dropped

    def remove(self, tx: UnitOfWork, rule: Rule) -> None:
        """Removes a rule."""
        tx.db.execute("DELETE FROM trust_rules WHERE rule = ? AND subject = ? AND who = ?", rule.key)
        self._drop(rule.key)
        tx.undo.append(lambda: self._put(rule))

    def _put(self, rule: Rule) -> None:
        self._drop(rule.key)
        self._rules[rule.key] = rule
        self._counts[rule.origin] += 1
        self.revision += rule.origin == "operator"
        if rule.rule == "pin":
            self.pins[rule.subject] = rule.who
        elif rule.rule == "admit":
            self.admitted.add(rule.who)

    def _drop(self, key: Key) -> None:
        rule = self._rules.pop(key, None)
        if rule is None:
            return
        self._counts[rule.origin] -= 1
        self.revision += rule.origin == "operator"
        if rule.rule == "pin":
            del self.pins[rule.subject]
        elif rule.rule == "admit":
            self.admitted.discard(rule.who)
