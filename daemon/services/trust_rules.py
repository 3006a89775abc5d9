"""The trust rules of a running daemon: listing and changing them. The store's are added to those of the configuration."""

import logging
from dataclasses import dataclass
from typing import Final

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.base.logs import event
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.config.trust_settings import TrustSettings
from aghbus.daemon.services.inbox_purge import InboxPurge
from aghbus.daemon.state.identity import Identity
from aghbus.daemon.state.inbox_waiters import InboxWaiters
from aghbus.daemon.state.trust_policy import LivePolicy
from aghbus.protocol.agh.identifiers import is_handle, is_key_id, is_peer
from aghbus.protocol.agh.trust.policy import TrustPolicy, identity_of, is_sender, split_pin, split_sender
from aghbus.protocol.api import trust as trust_api
from aghbus.protocol.base.errors import InvalidRequest, NotFound, Refused
from aghbus.store.audit import events as audit
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.engine.memory.trust import MAX_RULES, Rule, RuleKind

_log = logging.getLogger("aghbus.node")

_ADDS: Final[dict[str, RuleKind]] = {"pin": "pin", "allow": "allow", "deny": "deny", "refuse": "deny", "admit": "admit"}
_TAKES: Final[dict[str, RuleKind]] = {"unpin": "pin", "disallow": "allow", "undeny": "deny", "unadmit": "admit"}


class _PreviewedError(Exception):
    """Undoes a change that is only a preview."""

    def __init__(self, answer: trust_api.TrustChangeResponse) -> None:
        super().__init__("a preview")
        self.answer = answer


@dataclass(frozen=True, slots=True, eq=False)
class TrustRuleService:
    """The trust rules of one daemon as the operator sees and changes them."""

    settings: LiveSettings
    identity: Identity
    clock: Clock
    store: Store
    trust: LivePolicy
    purge: InboxPurge
    waiters: InboxWaiters

    async def list_rules(self) -> trust_api.TrustRulesResponse:
        """Every rule: the configuration's first, then those made while running, oldest first."""
        configured = [
            _shown(rule, None, in_force=True, origin="configuration")
            for rule in _configured(self.settings.current.trust)
        ]
        return trust_api.TrustRulesResponse(
            mode=self.trust.now.mode,
            first_use=self.settings.current.trust.first_use,
            peer_id=self.identity.self_id,
            key_id=None if self.identity.signer is None else self.identity.signer.key_id,
            rules=configured + [self._shown(rule) for rule in self.store.memory.trust],
        )

    async def change(
        self, verb: trust_api.TrustVerb, request: trust_api.TrustChangeRequest
    ) -> trust_api.TrustChangeResponse:
        """Apply one change; it is active for every later decision. Raises InvalidRequest, NotFound, Refused, StoreUnavailable."""
        wanted = self._wanted(verb, request)
        carry_out = self._add if verb in _ADDS else self._take
        if request.dry_run:
            return await self._preview(verb, wanted)
        answer = await self.store.write(lambda tx: carry_out(tx, wanted))
        if verb == "admit":  # consumers that take nothing of others may take what the peer sent before
            self.waiters.wake_all()
        if verb == "refuse":
            answer.purged = await self.purge.refuse(wanted.who)
        return answer

    async def _preview(self, verb: trust_api.TrustVerb, wanted: Rule) -> trust_api.TrustChangeResponse:
        """What a change would answer: it is made in a transaction, and undone."""
        carry_out = self._add if verb in _ADDS else self._take

        def job(tx: Transaction) -> None:
            raise _PreviewedError(carry_out(tx, wanted))

        try:
            await self.store.write(job)
        except _PreviewedError as previewed:
            answer = previewed.answer
            if verb == "refuse":
                answer.purged = await self.purge.refuse(wanted.who, dry_run=True)
            return answer
        raise AssertionError

    # the rule of a request

    def _wanted(self, verb: trust_api.TrustVerb, request: trust_api.TrustChangeRequest) -> Rule:
        kind = _ADDS[verb] if verb in _ADDS else _TAKES[verb]
        now_ms = self.clock.millis()
        if request.channel is not None or request.talk:
            kind, subject, who = self._channel_rule(kind, request)
        elif kind == "pin":
            subject, who = self._pin(verb, request.who)
        elif kind == "allow":
            subject, who = "", self._key(request.who)
        else:
            subject, who = "", self._peer(kind, request.who)
        return Rule(kind, subject, who, "operator", now_ms)

    def _channel_rule(self, kind: RuleKind, request: trust_api.TrustChangeRequest) -> tuple[RuleKind, str, str]:
        if kind != "allow":
            raise InvalidRequest("channel: only allow and disallow take a channel")
        if request.channel is None:
            raise InvalidRequest("talk: requires channel")
        if (self.identity.workspace, request.channel) not in self.identity.joined:
            raise InvalidRequest("channel: is not joined here")
        if split_sender(f"{request.channel}={request.who}") is None:
            raise InvalidRequest("who: must be a peer id, a handle or a key id, one of these with /PRINCIPAL, * or *@*")
        return "may_talk" if request.talk else "may_open_work", request.channel, request.who

    def _pin(self, verb: str, who: str) -> tuple[str, str]:
        """Nickname and key id; the key id is empty when a pin is removed."""
        if verb == "unpin":
            return who.partition("@")[0].partition("=")[0], ""
        pin = split_pin(who)
        if pin is None and is_handle(who):
            pin = who.partition("@")[0], self._key(who)
        if pin is None:
            raise InvalidRequest("who: must be NICKNAME=KEY_ID or a handle", hint="`aghctl peers` shows the handles")
        return pin

    def _peer(self, kind: RuleKind, who: str) -> str:
        """The peer of a rule that is about one: as an earlier rule names it, by its key id, or as in the request."""
        if not (is_sender(who) if kind == "deny" else is_peer(who) or is_key_id(who)):
            raise InvalidRequest(
                "who: must be a peer id, a handle or a key id",
                hint="`aghctl requests` and `aghctl peers` show peers whole",
            )
        if kind == "deny" and is_handle(who):
            who = self.trust.key_of(who) or who
        return next((rule.who for rule in self.store.memory.trust if _is_about(rule, kind, who)), who)

    def _key(self, who: str) -> str:
        if is_key_id(who):
            return who
        if not is_handle(who):
            raise InvalidRequest(
                "who: must be a key id or a handle: a peer without a key cannot be distinguished from others of its name",
                hint="channel rules, `aghctl trust deny` and trust.mode = require are for peers without a key",
            )
        key = self.trust.key_of(who)
        if key is None:
            raise InvalidRequest(
                "who: no recent message came from that handle, and a handle contains only half of a key id",
                hint="give the key id: `aghctl key show` prints it on the peer's side, `aghctl trust why` for a message",
            )
        return key

    # carrying it out

    def _add(self, tx: Transaction, wanted: Rule) -> trust_api.TrustChangeResponse:
        rules, before = tx.memory.trust, self.trust.now
        self._check_contradictions(wanted, before)
        old = rules.get(*wanted.key)
        if self._is_configured(wanted):
            note = f"the configuration has this rule ({_setting(wanted)})"
            shown = _shown(wanted, None, in_force=True, origin="configuration")
            return trust_api.TrustChangeResponse(rule=shown, changed=False, notes=[note])
        if old is not None and old.origin == "operator":
            return trust_api.TrustChangeResponse(
                rule=self._shown(old), changed=False, notes=["the rule existed already"]
            )
        if old is None and rules.is_full:
            raise Refused(
                f"the store already has {MAX_RULES} rules, the most it keeps",
                hint="remove some, or put rules into the configuration",
            )
        rules.put(tx, wanted)
        if wanted.rule == "deny":
            for rule in [rule for rule in rules if _is_about(rule, "admit", wanted.who)]:
                rules.remove(tx, rule)
        self._note(tx, "trust.added", wanted)
        return trust_api.TrustChangeResponse(rule=self._shown(wanted), changed=True, notes=_added(wanted, before))

    def _take(self, tx: Transaction, wanted: Rule) -> trust_api.TrustChangeResponse:
        rules = tx.memory.trust
        if wanted.rule == "pin":
            pinned = rules.pins.get(wanted.subject) or self.trust.configured.pins.get(wanted.subject, "")
            wanted = Rule("pin", wanted.subject, pinned, "operator", wanted.since_ms)
        found = rules.get(*wanted.key)
        if found is None:
            self._refuse_taking(wanted)
        assert found is not None
        rules.remove(tx, found)
        self._note(tx, "trust.removed", found)
        notes = _taken(found, self.trust.now, first_use=self.settings.current.trust.first_use)
        if self._is_configured(found):
            notes.append(f"it is still active: the configuration has it too ({_setting(found)})")
        return trust_api.TrustChangeResponse(
            rule=_shown(found, found.since_ms, in_force=False), changed=True, notes=notes
        )

    def _refuse_taking(self, wanted: Rule) -> None:
        if self._is_configured(wanted):
            setting = _setting(wanted)
            raise Refused(
                f"that is a rule of the configuration: {setting}", hint="change it there, and reload the daemon"
            )
        raise NotFound("there is no such rule", hint="`aghctl trust list` shows them")

    def _check_contradictions(self, wanted: Rule, policy: TrustPolicy) -> None:
        """Refuse a rule without effect, and one that would silently replace a pin."""
        if wanted.rule in ("allow", "admit") and identity_of(wanted.who) in policy.deny:
            what = "key" if identity_of(wanted.who) != wanted.who else "name"
            raise Refused(
                f"that {what} is denied, which takes precedence",
                hint=f"first `aghctl trust deny {wanted.who} --remove`",
            )
        if wanted.rule == "deny" and identity_of(wanted.who) == identity_of(self.identity.self_id):
            raise InvalidRequest("who: is this daemon's own key or name")
        pinned = policy.pins.get(wanted.subject, wanted.who) if wanted.rule == "pin" else wanted.who
        if pinned != wanted.who:
            raise Refused(
                f"{wanted.subject} is pinned to {pinned}",
                hint=f"if the new key is right: `aghctl trust unpin {wanted.subject}` first",
                code="conflict",
            )

    def _is_configured(self, rule: Rule) -> bool:
        return any(
            other.key == rule.key or (rule.rule == "deny" and _is_about(other, "deny", rule.who))
            for other in _configured(self.settings.current.trust)
        )

    def _note(self, tx: Transaction, outcome: str, rule: Rule) -> None:
        names = " ".join(part for part in rule.key if part)
        audit.note_policy(tx, self.clock.millis(), outcome, names)
        tx.after_commit(lambda: event(_log, logging.INFO, "trust rules changed", **{outcome: names}))

    def _shown(self, rule: Rule) -> trust_api.TrustRule:
        held = rule.rule != "pin" or self.trust.now.pins.get(rule.subject) == rule.who
        return _shown(rule, rule.since_ms, in_force=held)


def _is_about(rule: Rule, kind: RuleKind, who: str) -> bool:
    return rule.rule == kind and identity_of(rule.who) == identity_of(who)


def _setting(rule: Rule) -> str:
    """The configuration key of such rules."""
    return f"trust.{'pins' if rule.rule == 'pin' else rule.rule}"


def _configured(settings: TrustSettings) -> list[Rule]:
    """The rules of the configuration, in its order."""
    rows: list[tuple[RuleKind, str, str]] = [("pin", *pin) for pin in filter(None, map(split_pin, settings.pins))]
    rows += [("allow", "", key) for key in settings.allow]
    rows += [("deny", "", key) for key in settings.deny]
    rows += [("may_open_work", *pair) for pair in filter(None, map(split_sender, settings.may_open_work))]
    rows += [("may_talk", *pair) for pair in filter(None, map(split_sender, settings.may_talk))]
    return [Rule(kind, subject, who, "operator", 0) for kind, subject, who in rows]


def _shown(
    rule: Rule, since_ms: int | None, *, in_force: bool, origin: trust_api.TrustOrigin | None = None
) -> trust_api.TrustRule:
    return trust_api.TrustRule(
        rule=rule.rule,
        subject=rule.subject or None,
        who=rule.who,
        origin=origin or rule.origin,
        since_ms=since_ms,
        used_ms=rule.used_ms,
        in_force=in_force,
    )


def _added(rule: Rule, before: TrustPolicy) -> list[str]:
    """What else follows from a new rule, where the operator may not expect it."""
    if rule.rule == "allow" and not before.allow:
        plain = "" if before.mode == "require" else "; unsigned peers are still taken (trust.mode = verify)"
        return [f"this is the first allowed key: messages of every other key are refused now{plain}"]
    if rule.rule == "deny" and "/" in rule.who:
        return ["who calls is what the peer says: deny the peer itself where its word does not count"]
    if rule.rule == "deny" and identity_of(rule.who) == rule.who:
        return ["a peer without a key can take another name: trust.mode = require refuses all of them"]
    known = before.channels.get(rule.subject)
    if rule.rule == "may_open_work" and (known is None or known.work is None):
        return [f"this is the first rule of its kind: no other peer may open work on channel {rule.subject} now"]
    if rule.rule == "may_talk" and (known is None or known.talk is None):
        return [
            "this is the first rule of its kind: only these peers, and those that may open work, "
            f"may send on channel {rule.subject}"
        ]
    return []


def _taken(rule: Rule, now: TrustPolicy, *, first_use: str) -> list[str]:
    if rule.rule == "allow" and not now.allow:
        return ["the allow list is empty: messages of every key that is not denied are accepted"]
    if rule.rule == "pin" and first_use == "pin" and rule.subject not in now.pins:
        return ["trust.first_use is on: the next key that bears the nickname will be pinned to it"]
    known = now.channels.get(rule.subject)
    if rule.rule == "may_open_work" and (known is None or known.work is None):
        return [f"no such rule is left: every peer that may send may open work on channel {rule.subject}"]
    if rule.rule == "may_talk" and (known is None or known.talk is None):
        return [f"no such rule is left: every peer may send on channel {rule.subject}"]
    return []
