"""The active trust policy: the configured rules, the rules changed at runtime, and the pins of first use."""

import asyncio
import logging
from collections import ChainMap, OrderedDict
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.base.logs import EventLimiter
from aghbus.daemon.base.metrics import Counters
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.config.settings import Settings
from aghbus.daemon.config.trust_settings import policy_of
from aghbus.protocol.effects import Effects, RecordId
from aghbus.protocol.envelope import Envelope
from aghbus.protocol.trust.policy import ChannelRule, TrustPolicy, key_of
from aghbus.protocol.trust.proof import EnvelopeSigner
from aghbus.protocol.trust.trust import Trust
from aghbus.store.audit import events as audit
from aghbus.store.engine.database import Store
from aghbus.store.engine.transaction import Transaction
from aghbus.store.engine.trust_rules import Rule

_KEYS: Final = 10_000  # handles whose whole key id is cached; the least recently seen are dropped first
_CLAIMS: Final = 1_000  # pins made by greets and not yet committed


class _Pins(ChainMap[str, str]):
    """Pins by nickname; the first of the three maps that has one wins."""

    def __contains__(self, name: object) -> bool:
        """On the path of every message; ChainMap's own method takes ten times as long."""
        configured, decided, claimed = self.maps
        return name in configured or name in decided or name in claimed


class LivePolicy:
    """The policy that every envelope is judged by. It follows changes of the settings and of the stored rules immediately."""

    def __init__(
        self,
        settings: LiveSettings,
        store: Store,
        clock: Clock,
        signer: EnvelopeSigner | None,
        counters: Counters,
        log_limiter: EventLimiter,
    ) -> None:
        """`signer` is our own, None without a key."""
        self._settings = settings
        self._store = store
        self._clock = clock
        self._signer = signer
        self._counters = counters
        self._log_limiter = log_limiter
        self._claims: dict[str, str] = {}  # nicknames pinned by a greet, until the rule is committed
        self._keys: OrderedDict[str, str] = OrderedDict()
        settings.on_change(self._configure)
        self._configure(settings.current)

    def _configure(self, settings: Settings) -> None:
        self.configured = policy_of(settings.trust)
        self._revision = -1

    @property
    def now(self) -> TrustPolicy:
        """The active policy; its pins are live."""
        rules = self._store.memory.trust
        if self._revision != rules.revision:
            pins = _Pins(dict(self.configured.pins), rules.pins, self._claims)
            self._policy = merged(self.configured, rules, pins)
            self._revision = rules.revision
        return self._policy

    def key_of(self, handle: str) -> str | None:
        """The whole key id of a recently seen handle, which has only half of it as its fingerprint; None when it is not cached."""
        signer = self._signer
        if signer is not None and handle == signer.handle:
            return signer.key_id
        return self._keys.get(handle)

    def observe(self, tx: Transaction, envelope: Envelope, effects: Effects) -> None:
        """Pin the nickname of a verified sender at its first use, in the transaction `tx` that decided its message."""
        if "@" not in envelope.sender or RecordId not in map(type, effects):
            return  # a plain name, which is never pinned; or a refused, repeated or own message
        key = self._new_key(envelope)
        if key is not None:
            self._pin(tx, envelope, key)

    def observe_discovery(self, envelope: Envelope) -> None:
        """As `observe`, for accepted discovery messages, which are persisted asynchronously: the pin is active immediately."""
        key = self._new_key(envelope)
        if key is None or len(self._claims) >= _CLAIMS:
            return
        nickname = _nickname(envelope)
        self._claims[nickname] = key
        future = self._store.submit(lambda tx: self._pin(tx, envelope, key))
        future.add_done_callback(partial(self._settled, nickname))

    def _new_key(self, envelope: Envelope) -> str | None:
        """The key to pin the nickname of a verified sender to; None where there is nothing to pin."""
        if "@" not in envelope.sender:
            return None  # only a handle is verified
        key = self._remember(envelope)
        if self._settings.current.trust.first_use != "pin" or _nickname(envelope) in self.now.pins:
            return None
        if self._store.memory.trust.first_use_is_full:
            sentence = "trust: the list of nicknames pinned by first use is full; `aghctl trust unpin` makes room"
            self._counters.problem("trust.first_use", sentence, self._clock.monotonic())
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
        nickname, now_ms = _nickname(envelope), self._clock.millis()
        rules = tx.memory.trust
        if nickname in rules.pins or nickname in self.configured.pins or rules.first_use_is_full:
            return
        rules.put(tx, Rule("pin", nickname, key, "first_use", now_ms))
        audit.note_policy(tx, now_ms, "trust.first_use", f"pin {nickname}={key}", envelope=envelope)
        tx.after_commit(lambda: self._tell(nickname, key))

    def _tell(self, nickname: str, key: str) -> None:
        self._counters.add("trust.first_use")
        sentence = "trust on first use: the nickname is pinned to the first key seen with it"
        self._log_limiter.event(logging.WARNING, "trust.first_use", sentence, nickname=nickname, key_id=key)

    def _settled(self, nickname: str, future: asyncio.Future[Any]) -> None:
        self._claims.pop(nickname, None)  # committed; or not, and the next greet tries again
        if not future.cancelled() and future.exception() is not None:
            self._counters.add("trust.first_use_lost")


def merged(configured: TrustPolicy, rules: Iterable[Rule], pins: Mapping[str, str]) -> TrustPolicy:
    """The configured policy with the rules made at runtime: lists and channel rules are joined. `pins` are those of all origins."""
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
    return TrustPolicy(mode=configured.mode, allow=frozenset(allow), deny=frozenset(deny), pins=pins, channels=channels)


def denial_budget_key(peer: str, trust: Trust | None) -> str:
    """The key of the rate limit for receipts to a peer that the trust policy refuses: the fingerprint of a verified peer.

    An unverified claim of a peer's name gets its own key, so that it cannot use up that peer's budget.
    """
    if trust is None:
        return f"claimed {peer}"
    return peer.partition("@")[2] or peer


def _some(names: Mapping[str, set[str]], channel: str) -> frozenset[str] | None:
    found = names.get(channel)
    return None if found is None else frozenset(found)


def _nickname(envelope: Envelope) -> str:
    return envelope.sender.partition("@")[0]
