"""The active trust policy: the configured rules, the rules changed at runtime, and the pins of first use."""

import asyncio
import logging
from collections import ChainMap, OrderedDict
from collections.abc import Iterable, Mapping
from functools import partial
from typing import Any, Final

import msgspec

from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.config.settings import Settings
from aghbus.daemon.config.trust_settings import policy_of
from aghbus.daemon.state.context import DaemonContext
from aghbus.daemon.state.presence import PresenceTable
from aghbus.protocol.agh.effects import Effects, RecordId
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.trust.keys import PublicKey
from aghbus.protocol.agh.trust.policy import EVERYBODY, VERIFIED, ChannelRule, TrustPolicy, identity_of
from aghbus.protocol.agh.trust.proof import public_key_in
from aghbus.protocol.agh.trust.trust import Trust
from aghbus.store.audit import events as audit
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.engine.memory.trust import Rule
from aghbus.store.tables.works import open_works

_KEYS: Final = 10_000  # handles whose public key is cached; the least recently seen are dropped first
_PAUSED: Final = 1_000  # nicknames that are not tried again before PAUSE_MS

PAUSE_MS: Final = 60_000
"""Time between two attempts to pin one nickname. An attempt reads the open works."""

USE_MS: Final = 3_600_000
"""Age of a recorded use of a pin from which a new one is recorded."""

UNUSED_MS: Final = 30 * 86_400_000
"""Age of the last use from which a pin of first use is removed."""

_FORGOTTEN_AT_ONCE: Final = 1_000  # pins removed in one transaction


class _Pins(ChainMap[str, str]):
    """Pins by nickname; those of the configuration win."""

    def __contains__(self, name: object) -> bool:
        """On the path of every message; ChainMap's own method takes ten times as long."""
        configured, stored = self.maps
        return name in configured or name in stored


class LivePolicy:
    """The policy that every envelope is judged by. It follows changes of the settings and of the stored rules immediately."""

    def __init__(self, context: DaemonContext, store: Store, presence: PresenceTable) -> None:
        self._settings = context.settings
        self._store = store
        self._clock = context.clock
        self._presence = presence
        self._signer = context.identity.signer
        self._counters = context.counters
        self._log_limiter = context.log_limiter
        self._paused: dict[str, int] = {}  # nicknames, with the time in Unix ms of the next attempt to pin them
        self._keys: OrderedDict[str, PublicKey] = OrderedDict()
        context.settings.on_change(self._configure)
        self._configure(context.settings.current)

    def _configure(self, settings: Settings) -> None:
        self.configured = policy_of(settings.trust)
        self._revision = self._named_at = -1

    @property
    def now(self) -> TrustPolicy:
        """The active policy; its pins are live."""
        rules = self._store.memory.trust
        if self._revision != rules.revision:
            pins = _Pins(dict(self.configured.pins), rules.pins)
            self._policy = merged(self.configured, rules, pins)
            self._revision = rules.revision
        return self._policy

    def admits(self, sender: str) -> bool:
        """Whether this side admitted `sender`: a rule of the user names it or its key, or our agent has addressed it.

        Pins of first use do not count: any peer can cause one.
        """
        rules = self._store.memory.trust
        if sender in rules.admitted:
            return identity_of(sender) not in self.now.deny
        if self._named_at != rules.revision:
            self._named, self._named_at = self._names(), rules.revision
        return identity_of(sender) in self._named

    def _names(self) -> frozenset[str]:
        """The identities that rules of the user accept: admitted peers, pins, allowed keys and senders of channels."""
        named = set(self.configured.pins.values()) | self.now.allow
        for rule in self.now.channels.values():
            named |= (rule.work or frozenset()) | (rule.talk or frozenset())
        named |= {
            rule.who for rule in self._store.memory.trust if rule.rule in ("pin", "admit") and rule.origin == "operator"
        }
        peers = {who.partition("/")[0] for who in named - {EVERYBODY, VERIFIED}}
        return frozenset(map(identity_of, peers)) - self.now.deny

    def key_of(self, handle: str) -> str | None:
        """The whole key id of a recently seen handle, which has only half of it as its fingerprint; None when it is not cached."""
        signer = self._signer
        if signer is not None and handle == signer.handle:
            return signer.key_id
        public = self._keys.get(handle)
        return None if public is None else public.key_id

    def public_key_of(self, handle: str) -> PublicKey | None:
        """The public key of a recently seen handle; None when it is not cached."""
        return self._keys.get(handle)

    def observe(self, tx: Transaction, envelope: Envelope, effects: Effects) -> None:
        """Pin the nickname of a verified sender at its first use, or record the use, in the transaction `tx` that decided
        its message."""
        if "@" not in envelope.sender or RecordId not in map(type, effects):
            return  # a plain name, which is never pinned; or a refused, repeated or own message
        key = self._remember(envelope)
        if key is not None and self._is_due(envelope, key):
            self._note_use(tx, envelope, key)

    def observe_discovery(self, envelope: Envelope) -> None:
        """As `observe`, for accepted discovery messages, which are persisted asynchronously."""
        if "@" not in envelope.sender:
            return
        key = self._remember(envelope)
        if key is not None and self._is_due(envelope, key):
            self._pause(_nickname(envelope))
            future = self._store.submit(lambda tx: self._note_use(tx, envelope, key))
            future.add_done_callback(partial(self._settled, _nickname(envelope)))

    async def forget_unused(self, now_ms: int) -> None:
        """Remove pins of first use that were not used for UNUSED_MS, at Unix millisecond `now_ms`."""
        old = now_ms - UNUSED_MS
        unused = [rule for rule in self._store.memory.trust if rule.used_ms is not None and rule.used_ms <= old]
        if unused:
            present = {peer.peer_id for peer in self._presence.all() if self._presence.of(peer, now_ms) != "expired"}
            unused = [rule for rule in unused if _pinned_handle(rule) not in present]
        if unused:
            await self._store.write(lambda tx: self._forget(tx, unused[:_FORGOTTEN_AT_ONCE], now_ms))

    def _forget(self, tx: Transaction, unused: list[Rule], now_ms: int) -> None:
        for rule in unused:
            if tx.memory.trust.get(*rule.key) == rule:
                tx.memory.trust.remove(tx, rule)
                audit.note_policy(tx, now_ms, "trust.unused", f"pin {rule.subject}={rule.who}")
        tx.after_commit(lambda: self._counters.add("trust.first_use_forgotten", len(unused)))

    def _is_due(self, envelope: Envelope, key: str) -> bool:
        """Whether the nickname of a verified sender is to be pinned to `key`, or the use of its pin to be recorded."""
        settings = self._settings.current
        if settings.trust.first_use != "pin":
            return False
        nickname, now_ms = _nickname(envelope), self._clock.millis()
        if nickname in self.now.pins:
            rule = self._store.memory.trust.get("pin", nickname, key)
            return rule is not None and rule.used_ms is not None and now_ms - rule.used_ms >= USE_MS
        if now_ms < self._paused.get(nickname, 0):
            return False
        if any(self._presence.knows(settings.workspace, channel, nickname) for channel in settings.channels):
            return False  # a plain peer has this name, and the pin would refuse its messages
        if not self._presence.complete:
            return False  # a plain peer that is not in it any more may have this name
        return not self._store.memory.trust.first_use_is_full

    def _pause(self, nickname: str) -> None:
        if len(self._paused) >= _PAUSED:
            self._paused.clear()
        self._paused[nickname] = self._clock.millis() + PAUSE_MS

    def _remember(self, envelope: Envelope) -> str | None:
        public = self._keys.get(envelope.sender)
        if public is not None:
            self._keys.move_to_end(envelope.sender)
        elif (public := public_key_in(envelope.proof)) is not None:
            self._keys[envelope.sender] = public
            if len(self._keys) > _KEYS:
                self._keys.popitem(last=False)
        return None if public is None else public.key_id

    def _note_use(self, tx: Transaction, envelope: Envelope, key: str) -> None:
        nickname, now_ms = _nickname(envelope), self._clock.millis()
        rules = tx.memory.trust
        rule = rules.get("pin", nickname, key)
        if rule is not None and rule.used_ms is not None:
            rules.put(tx, msgspec.structs.replace(rule, used_ms=now_ms))
        elif nickname not in rules.pins and nickname not in self.configured.pins and not rules.first_use_is_full:
            self._pin(tx, envelope, key, now_ms)

    def _pin(self, tx: Transaction, envelope: Envelope, key: str, now_ms: int) -> None:
        nickname = _nickname(envelope)
        if open_works.has_open(tx, nickname) or self.admits(nickname):
            self._pause(nickname)
            return
        tx.memory.trust.put(tx, Rule("pin", nickname, key, "first_use", now_ms, now_ms))
        audit.note_policy(tx, now_ms, "trust.first_use", f"pin {nickname}={key}", envelope=envelope)
        tx.after_commit(lambda: self._tell(nickname, key))

    def _tell(self, nickname: str, key: str) -> None:
        self._counters.add("trust.first_use")
        sentence = "trust on first use: the nickname is pinned to the first key seen with it"
        self._log_limiter.event(logging.WARNING, "trust.first_use", sentence, nickname=nickname, key_id=key)

    def _settled(self, nickname: str, future: asyncio.Future[Any]) -> None:
        if not future.cancelled() and future.exception() is not None:
            self._paused.pop(nickname, None)  # the next greet tries again
            self._counters.add("trust.first_use_lost")


def first_use_problems(settings: LiveSettings, store: Store, presence: PresenceTable) -> list[str]:
    """What keeps a nickname from being pinned at its first use, as sentences for the operator."""
    if settings.current.trust.first_use != "pin":
        return []
    if not presence.complete:
        return ["trust: no nickname is pinned by first use, because the presence table was full; a restart tries again"]
    if not store.memory.trust.first_use_is_full:
        return []
    return ["trust: the list of nicknames pinned by first use is full; `aghctl trust unpin --unused` makes room"]


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
                deny.add(identity_of(rule.who))
            case "may_open_work":
                work.setdefault(rule.subject, set()).add(rule.who)
            case "may_talk":
                talk.setdefault(rule.subject, set()).add(rule.who)
            case "pin" | "admit":
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


def _pinned_handle(rule: Rule) -> str:
    return rule.subject + identity_of(rule.who)


def _nickname(envelope: Envelope) -> str:
    return envelope.sender.partition("@")[0]
