"""Trust rules: the local policy on which keys and senders are accepted, and for what (spec section 8)."""

import re
from collections.abc import Iterator, Mapping
from typing import Final, Literal

import msgspec

from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.errors import ProtocolError, UnsupportedProfile, VerificationFailed
from aghbus.protocol.agh.identifiers import NICKNAME, is_channel, is_key_id, is_peer
from aghbus.protocol.agh.trust.keys import FINGERPRINT_DIGITS
from aghbus.protocol.agh.trust.trust import PROFILE, Trust, claims_of

Mode = Literal["verify", "require"]

EVERYBODY: Final = "*"
VERIFIED: Final = "*@*"
"""All verified peers. Like `*` it cannot be a peer id."""

PRINCIPAL_KEY: Final = "aghbus.principal"
"""In `ext`: `{"name": …}`, the caller for whom the sender acts, as the sender says. A gateway gives it (docs/trust.md)."""
_PRINCIPAL: Final = re.compile(r"[A-Za-z0-9][A-Za-z0-9._:@+|-]{0,127}")


class ChannelRule(msgspec.Struct, frozen=True, kw_only=True):
    """The senders that may send on one channel: peer ids, handles, key ids, these with `/PRINCIPAL`, `*` or `*@*`; None for all.

    Senders in `work` may open work with us and send messages. Senders only in `talk` may send messages and continue works
    that we opened.
    """

    work: frozenset[str] | None = None
    talk: frozenset[str] | None = None


class RuleResult(msgspec.Struct, frozen=True):
    """The result of one trust rule for one envelope. `error` is the refusal, None if the rule accepts the envelope.

    `rule` is mode, deny, allow, pin, channel, may_open_work or may_talk; `detail` is the result in words.
    """

    rule: str
    detail: str
    error: ProtocolError | None = None


class TrustPolicy(msgspec.Struct, frozen=True, kw_only=True):
    """The trust rules of one daemon; the default accepts everything that the protocol allows.

    `allow` are key ids, none is every key; `deny` are identities (`identity_of`); `pins` maps a nickname to the only key id that
    may use it; `channels` maps a channel to its rule.
    """

    mode: Mode = "verify"
    allow: frozenset[str] = frozenset()
    deny: frozenset[str] = frozenset()
    pins: Mapping[str, str] = {}
    channels: Mapping[str, ChannelRule] = {}

    def judge(self, envelope: Envelope, trust: Trust, *, opens_work: bool) -> None:
        """Raises the refusal: VerificationFailed, or UnsupportedProfile for another profile in mode `require`.

        `trust` is the result of verification; `opens_work` says whether the envelope would open a work with us.
        """
        for check in self.checks(envelope, trust, opens_work=opens_work):
            if check.error is not None:
                raise check.error

    def no_rule_applies(self, envelope: Envelope, trust: Trust) -> bool:
        """Whether no rule applies to the envelope, so that all `checks` accept it: the common case, decided quickly."""
        if envelope.channel in self.channels:
            return False
        if self.deny and principal_of(envelope) is not None:
            return False
        if trust == "verified":
            return not (self.allow or self.deny) and envelope.sender.partition("@")[0] not in self.pins
        return self.mode != "require" and envelope.sender not in self.pins and envelope.sender not in self.deny

    def checks(self, envelope: Envelope, trust: Trust, *, opens_work: bool) -> Iterator[RuleResult]:
        """The result of every rule, in order; the first refusal decides."""
        key = key_of(envelope) if trust == "verified" else None
        principal = principal_of(envelope)
        names = _names(envelope.sender, key, principal)
        rule = self.channels.get(envelope.channel)
        if key is None:
            yield self._mode(envelope)
            yield self._denied(envelope.sender, principal, "the name is not denied", "from")
            yield self._pin_of_plain(envelope.sender)
        else:
            yield self._denied(key, principal, "the key is not denied", "proof.key_id")
            yield self._allowed(key)
            yield self._pin(envelope.sender.partition("@")[0], key)
        if rule is None:
            yield RuleResult("channel", "there is no rule for this channel: all senders may open work and talk")
            return
        yield _may_work(rule, names, opens_work=opens_work)
        yield _may_talk(rule, names)

    def _mode(self, envelope: Envelope) -> RuleResult:
        if self.mode != "require":
            return RuleResult("mode", "trust.mode = verify: unverified peers are accepted")
        if envelope.proof is None:
            return RuleResult("mode", "", VerificationFailed("only verified peers are accepted here", "proof"))
        return RuleResult("mode", "", UnsupportedProfile(f"only {PROFILE} is accepted here", "proof.profile"))

    def _pin_of_plain(self, sender: str) -> RuleResult:
        if sender in self.pins:  # the pinned peer always signs, so this is another one
            return RuleResult(
                "pin", "", VerificationFailed("is pinned to a key here, and the envelope has no proof", "from")
            )
        return RuleResult("pin", "the name is not pinned to a key")

    def _denied(self, who: str, principal: str | None, accepted: str, field: str) -> RuleResult:
        if self.deny and identity_of(who) in self.deny:
            return RuleResult("deny", "", VerificationFailed("is denied here", field))
        if principal is not None and identity_of(f"{who}/{principal}") in self.deny:
            return RuleResult("deny", "", VerificationFailed("is denied here", f"ext.{PRINCIPAL_KEY}"))
        return RuleResult("deny", accepted)

    def _allowed(self, key: str) -> RuleResult:
        if not self.allow:
            return RuleResult("allow", "there is no allow list: every key is accepted")
        if key not in self.allow:
            return RuleResult("allow", "", VerificationFailed("is not on the allow list", "proof.key_id"))
        return RuleResult("allow", "the key is on the allow list")

    def _pin(self, nickname: str, key: str) -> RuleResult:
        pinned = self.pins.get(nickname)
        if pinned is None:
            return RuleResult("pin", "the nickname is not pinned")
        if pinned != key:
            error = VerificationFailed("has a nickname that is pinned to another key here", "from")
            return RuleResult("pin", f"the nickname is pinned to {pinned}", error)
        return RuleResult("pin", "the nickname is pinned to this key")


def identity_of(who: str) -> str:
    """What identifies a peer: `@` and the fingerprint for a key id or a handle, whatever the nickname; else the plain name.

    Of `PEER/PRINCIPAL` this is the peer's identity with `/PRINCIPAL`.
    """
    peer, slash, principal = who.partition("/")
    at = peer.find("@")
    if at >= 0:
        return who[at:]
    if not peer.startswith("sha256:"):  # as no name does
        return who
    return f"@{peer.removeprefix('sha256:')[:FINGERPRINT_DIGITS]}{slash}{principal}"


def principal_of(envelope: Envelope) -> str | None:
    """The name of the caller for whom the sender acts, as the sender says; None for the sender itself."""
    principal = envelope.extensions().get(PRINCIPAL_KEY)
    name = principal.get("name") if isinstance(principal, dict) else None
    return name if isinstance(name, str) and _PRINCIPAL.fullmatch(name) else None


def is_sender(text: str) -> bool:
    """A peer id, a handle or a key id, of which `/PRINCIPAL` names one caller."""
    peer, slash, principal = text.partition("/")
    return (is_peer(peer) or is_key_id(peer)) and (not slash or _PRINCIPAL.fullmatch(principal) is not None)


def split_pin(text: str) -> tuple[str, str] | None:
    """Nickname and key id of `NICKNAME=KEY_ID`; None for anything else."""
    nickname, _, key = text.partition("=")
    return (nickname, key) if NICKNAME.fullmatch(nickname) and is_key_id(key) else None


def split_sender(text: str) -> tuple[str, str] | None:
    """Channel and entry of `CHANNEL=WHO` (see ChannelRule); None for anything else."""
    channel, _, who = text.partition("=")
    known = who in (EVERYBODY, VERIFIED) or is_sender(who)
    return (channel, who) if is_channel(channel) and known else None


def _may_work(rule: ChannelRule, names: frozenset[str], *, opens_work: bool) -> RuleResult:
    if not opens_work:
        return RuleResult("may_open_work", "it opens no work with us")
    if rule.work is not None and names.isdisjoint(rule.work):
        return RuleResult("may_open_work", "", VerificationFailed("may not open work on this channel", "from"))
    return RuleResult("may_open_work", "the sender may open work on this channel")


def _may_talk(rule: ChannelRule, names: frozenset[str]) -> RuleResult:
    listed = rule.work is not None and not names.isdisjoint(rule.work)
    if rule.talk is not None and names.isdisjoint(rule.talk) and not listed:
        return RuleResult("may_talk", "", VerificationFailed("may not send on this channel", "from"))
    return RuleResult("may_talk", "the sender may talk on this channel")


def _names(sender: str, key: str | None, principal: str | None) -> frozenset[str]:
    names = (sender, EVERYBODY) if key is None else (sender, EVERYBODY, VERIFIED, key)
    if principal is None:
        return frozenset(names)
    return frozenset((*names, f"{sender}/{principal}", f"{key}/{principal}"))


def key_of(envelope: Envelope) -> str | None:
    """The key id that the proof names; for a verified envelope the id of the signing key."""
    key = None if envelope.proof is None else claims_of(envelope.proof).key_id
    return key if isinstance(key, str) else None
