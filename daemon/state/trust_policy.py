"""Whom we listen to now: what the configuration says, what was decided while running, and what first use has pinned."""

import logging
from collections import ChainMap, OrderedDict
from collections.abc import Iterable, Mapping
from functools import partial
from typing import TYPE_CHECKING, Any, Final

from aghbus.daemon.config.trust_settings import policy_of
from aghbus.protocol.effects import Effects, Remember
from aghbus.protocol.envelope import Envelope
from aghbus.protocol.trust.policy import ChannelRule, Policy, key_of
from aghbus.protocol.trust.trust import Trust
from aghbus.store.audit import events as audit
from aghbus.store.engine.transaction import Transaction
from aghbus.store.engine.trust_rules import Rule

if TYPE_CHECKING:
    import asyncio

    from aghbus.daemon.state.context import Core

_KEYS: Final = 10_000  # handles whose whole key id is remembered; the least recently heard go first
_CLAIMS: Final = 1_000  # pins by greets that wait for the store


class _Pins(ChainMap[str, str]):
    """Pins by nickname, from where they stand first."""

    def __contains__(self, name: object) -> bool:
        """Asked of every message; ChainMap's own takes ten times as long."""
        configured, decided, claimed = self.maps
        return name in configured or name in decided or name in claimed


class LivePolicy:
    """The policy that every envelope is judged by. It follows the settings and the store's rules at once."""

    def __init__(self, core: "Core") -> None:
        self._core = core
        self._claims: dict[str, str] = {}  # nicknames that a greet has pinned, until the store has the rule
        self._keys: OrderedDict[str, str] = OrderedDict()
        self._revision = -1
        self.configure()

    def configure(self) -> None:
        """Take over the settings of `core`."""
        self.configured = policy_of(self._core.settings.trust)
        self._revision = -1

    @property
    def now(self) -> Policy:
        """The policy as of now; its pins are live."""
        rules = self._core.store.memory.trust
        if self._revision != rules.revision:
            pins = _Pins(dict(self.configured.pins), rules.pins, self._claims)
            self._policy = merged(self.configured, rules, pins)
            self._revision = rules.revision
        return self._policy

    def key_of(self, handle: str) -> str | None:
        """The whole key id of a handle that was heard lately; its fingerprint is only the half of it."""
        signer = self._core.signer
        if signer is not None and handle == signer.handle:
            return signer.key_id
        return self._keys.get(handle)

    def heard(self, tx: Transaction, envelope: Envelope, effects: Effects) -> None:
        """A message was decided in `tx`: where the nickname of a verified sender is new and first use pins, it is pinned."""
        if "@" not in envelope.sender or Remember not in map(type, effects):
            return  # a plain name, which nothing pins; or refused, seen before, or our own
        key = self._new_key(envelope)
        if key is not None:
            self._pin(tx, envelope, key)

    def greeted(self, envelope: Envelope) -> None:
        """The same for discovery that was let in, which is committed behind: the pin holds from now on."""
        key = self._new_key(envelope)
        if key is None or len(self._claims) >= _CLAIMS:
            return
        nickname = _nickname(envelope)
        self._claims[nickname] = key
        future = self._core.store.submit(lambda tx: self._pin(tx, envelope, key))
        future.add_done_callback(partial(self._settled, nickname))

    def _new_key(self, envelope: Envelope) -> str | None:
        """The key of a verified sender whose nickname is to be pinned by it."""
        if "@" not in envelope.sender:
            return None  # nobody gets in under a handle without being verified
        key = self._remember(envelope)
        if self._core.settings.trust.first_use != "pin" or _nickname(envelope) in self.now.pins:
            return None
        if self._core.store.memory.trust.first_use_is_full:
            sentence = (
                "trust: so many nicknames are pinned by first use that no more are; `aghctl trust unpin` makes room"
            )
            self._core.counters.problem("trust.first_use", sentence, self._core.clock.monotonic())
            return None
        return key

    def _remember(self, envelope: Envelope) -> str | None:
        key = self._keys.get(envelope.sender)
        if key is None and (key := key_of(envelope)) is not None:
            self._keys[envelope.sender] = key
            if len(self._keys) > _KEYS:
                self._keys.popitem(last=False)
        elif key is not None:
            self._keys.move_to_end(envelope.sender)
        return key

    def _pin(self, tx: Transaction, envelope: Envelope, key: str) -> None:
        nickname, now_ms = _nickname(envelope), self._core.clock.millis()
        rules = tx.memory.trust
        if nickname in rules.pins or nickname in self.configured.pins or rules.first_use_is_full:
            return
        rules.put(tx, Rule("pin", nickname, key, "first_use", now_ms))
        audit.note_policy(tx, now_ms, "trust.first_use", f"pin {nickname}={key}", envelope=envelope)
        tx.after_commit(lambda: self._tell(nickname, key))

    def _tell(self, nickname: str, key: str) -> None:
        self._core.counters.add("trust.first_use")
        sentence = "trust on first use: a nickname is pinned to the first key that bore it"
        self._core.noise.event(logging.WARNING, "trust.first_use", sentence, nickname=nickname, key_id=key)

    def _settled(self, nickname: str, future: "asyncio.Future[Any]") -> None:
        self._claims.pop(nickname, None)  # the store has the rule, or could not keep it and the next greet tries again
        if not future.cancelled() and future.exception() is not None:
            self._core.counters.add("trust.first_use_lost")


def merged(configured: Policy, rules: Iterable[Rule], pins: Mapping[str, str]) -> Policy:
    """The configured policy with the rules that were made while running: lists and channel rules are joined.

    `pins` are those that hold, of all origins.
    """
    allow, deny = set(configured.allow), set(configured.deny)
    work = {channel: set(rule.work) for channel, rule in configured.channels.items() if rule.work is not None}
    talk = {channel: set(rule.talk) for channel, rule in configured.channels.items() if rule.talk is not None}
    for rule in rules:
        match rule.rule:
            case "allow":
                allow.add(rule.who)
            case "deny":
                deny.add(rule.who)
            case "may_open_work":
                work.setdefault(rule.subject, set()).add(rule.who)
            case "may_talk":
                talk.setdefault(rule.subject, set()).add(rule.who)
            case "pin":
                pass
    channels = {channel: ChannelRule(work=_some(work, channel), talk=_some(talk, channel)) for channel in work | talk}
    return Policy(mode=configured.mode, allow=frozenset(allow), deny=frozenset(deny), pins=pins, channels=channels)


def denied_as(peer: str, trust: Trust | None) -> str:
    """The name under which a receipt to somebody who is not listened to is counted: of a verified peer its key.

    Who only claims the name of a peer has another one, so that he cannot use up what that peer would be told.
    """
    if trust is None:
        return f"claimed {peer}"
    return peer.partition("@")[2] or peer


def _some(names: Mapping[str, set[str]], channel: str) -> frozenset[str] | None:
    found = names.get(channel)
    return None if found is None else frozenset(found)


def _nickname(envelope: Envelope) -> str:
    return envelope.sender.partition("@")[0]
