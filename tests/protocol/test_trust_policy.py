"""Trust rules: which senders are accepted after verification."""

from typing import Any, Final

import pytest

from aghbus.protocol.agh.effects import Deliver, Discovered, Ignore, Quarantine, Queue, StoreEnvelope
from aghbus.protocol.agh.envelope import Envelope, parse
from aghbus.protocol.agh.errors import UnsupportedProfile, VerificationFailed
from aghbus.protocol.agh.lifecycle import WorkView, opened_by
from aghbus.protocol.agh.receive import Receiver, StoredState, decide
from aghbus.protocol.agh.trust.keys import SigningKey, handle_of
from aghbus.protocol.agh.trust.policy import ChannelRule, TrustPolicy, identity_of
from aghbus.protocol.agh.trust.proof import EnvelopeSigner, sign, verify_envelope
from aghbus.protocol.agh.trust.trust import Trust, assess
from tests.support.wire import CARD, CHANNEL, JOINED, NOW, B, dump, wire

OPS_KEY: Final = SigningKey(bytes(range(32)))
OUR_KEY: Final = SigningKey(bytes([1]) * 32)
OPS: Final = handle_of("ops", OPS_KEY.public)
US: Final = handle_of("patch-worker", OUR_KEY.public)


def verified(kind: str = "say", key: SigningKey = OPS_KEY, name: str = "ops", **changes: Any) -> Envelope:
    document = wire(kind, **{"sender": handle_of(name, key.public), **changes})
    return parse(dump(sign(document, key)), NOW)


def plain(kind: str = "say", **changes: Any) -> Envelope:
    return parse(dump(wire(kind, **changes)), NOW)


def judged(policy: TrustPolicy, envelope: Envelope, *, opens: bool = False) -> str:
    """ "" when it is taken, else the wire's reason and the field. What asks nothing of it takes it."""
    trust: Trust | None = None
    try:
        trust = assess(envelope, verify_envelope)
        policy.judge(envelope, trust, opens_work=opens)
    except (VerificationFailed, UnsupportedProfile) as error:
        assert trust is None or not policy.no_rule_applies(envelope, trust)
        return f"{error.reason} {error.field}"
    return ""


def test_the_default_rules_accept_every_verified_and_unverified_peer() -> None:
    for envelope in (verified(), plain(), plain(proof={"profile": "acme/v1"})):
        assert judged(TrustPolicy(), envelope, opens=True) == ""


def test_rules_are_checked_only_if_one_applies_to_the_sender() -> None:
    assert TrustPolicy().no_rule_applies(verified(), "verified")
    assert TrustPolicy(mode="require", pins={"other": OUR_KEY.key_id}).no_rule_applies(verified(), "verified")
    rules = [
        TrustPolicy(allow=frozenset({OPS_KEY.key_id})),
        TrustPolicy(deny=frozenset({identity_of(OUR_KEY.key_id)})),
        TrustPolicy(pins={"ops": OPS_KEY.key_id}),
        TrustPolicy(channels={verified().channel: ChannelRule()}),
    ]
    assert not any(policy.no_rule_applies(verified(), "verified") for policy in rules)


class TestRequire:
    def test_only_verified_peers_are_accepted(self) -> None:
        policy = TrustPolicy(mode="require")
        assert judged(policy, verified()) == ""
        assert judged(policy, plain()) == "verification_failed proof"
        assert judged(policy, plain(proof={"profile": "acme/v1"})) == "unsupported_profile proof.profile"

    def test_an_unverified_greet_refreshes_no_presence(self) -> None:
        greet = plain("greet")
        assert [type(effect) for effect in decide(greet, StoredState(), receiver(mode="require"))] == [Quarantine]
        ours = verified("greet", body={"peer_card": {**CARD, "peer_id": OPS}})
        received = [
            effect for effect in decide(ours, StoredState(), receiver(mode="require")) if isinstance(effect, Discovered)
        ]
        assert [effect.trust for effect in received] == ["verified"]


class TestKeys:
    def test_a_denied_key_is_refused(self) -> None:
        policy = TrustPolicy(deny=frozenset({identity_of(OPS_KEY.key_id)}))
        assert judged(policy, verified()) == "verification_failed proof.key_id"
        assert judged(policy, verified(key=OUR_KEY)) == ""
        assert judged(policy, plain()) == ""

    def test_only_allowed_keys_are_accepted(self) -> None:
        policy = TrustPolicy(allow=frozenset({OPS_KEY.key_id}))
        assert judged(policy, verified()) == ""
        assert judged(policy, verified(key=OUR_KEY)) == "verification_failed proof.key_id"
        assert judged(policy, plain()) == ""  # unsigned peers are the mode's affair

    def test_deny_overrides_allow(self) -> None:
        policy = TrustPolicy(allow=frozenset({OPS_KEY.key_id}), deny=frozenset({identity_of(OPS_KEY.key_id)}))
        assert judged(policy, verified()) == "verification_failed proof.key_id"

    def test_an_unverified_proof_does_not_count_as_a_key(self) -> None:
        """A plain peer may write any key id into a proof of another profile: nothing follows from it."""
        named = plain(proof={"profile": "acme/v1", "key_id": OPS_KEY.key_id})
        assert judged(TrustPolicy(deny=frozenset({identity_of(OPS_KEY.key_id)})), named) == ""
        rule = ChannelRule(talk=frozenset({OPS_KEY.key_id}))
        assert judged(TrustPolicy(channels={CHANNEL: rule}), named) == "verification_failed from"


class TestPins:
    POLICY: Final = TrustPolicy(pins={"ops": OPS_KEY.key_id})

    def test_the_pinned_key_may_use_the_name(self) -> None:
        assert judged(self.POLICY, verified()) == ""

    def test_another_key_may_not_use_a_pinned_name(self) -> None:
        assert judged(self.POLICY, verified(key=OUR_KEY)) == "verification_failed from"
        assert judged(self.POLICY, verified(key=OUR_KEY, name="other")) == ""

    def test_a_plain_peer_may_not_use_a_pinned_name(self) -> None:
        assert judged(self.POLICY, plain(sender="ops")) == "verification_failed from"
        assert judged(self.POLICY, plain(sender="ops2")) == ""

    def test_the_pinned_key_may_use_another_name(self) -> None:
        assert judged(self.POLICY, verified(name="ops-2")) == ""


class TestChannels:
    @pytest.mark.parametrize("entry", [OPS, OPS_KEY.key_id, "*", "*@*"])
    def test_a_verified_peer_matches_each_form_of_entry(self, entry: str) -> None:
        policy = TrustPolicy(channels={CHANNEL: ChannelRule(work=frozenset({entry}))})
        assert judged(policy, verified(), opens=True) == ""

    @pytest.mark.parametrize(("entry", "taken"), [("ops", True), ("*", True), ("*@*", False), (OPS, False)])
    def test_a_plain_peer_matches_its_id_and_the_wildcard(self, entry: str, taken: bool) -> None:
        policy = TrustPolicy(channels={CHANNEL: ChannelRule(work=frozenset({entry}))})
        assert (judged(policy, plain(sender="ops"), opens=True) == "") is taken

    def test_a_peer_that_may_only_talk_opens_no_work(self) -> None:
        policy = TrustPolicy(channels={CHANNEL: ChannelRule(work=frozenset({OPS}), talk=frozenset({"outsider"}))})
        assert judged(policy, verified(), opens=True) == judged(policy, verified()) == ""
        assert judged(policy, plain(sender="outsider")) == ""
        assert judged(policy, plain(sender="outsider"), opens=True) == "verification_failed from"
        assert judged(policy, plain(sender="another")) == "verification_failed from"

    def test_without_a_talk_list_all_peers_may_talk(self) -> None:
        policy = TrustPolicy(channels={CHANNEL: ChannelRule(work=frozenset({OPS}))})
        assert judged(policy, plain()) == ""
        assert judged(policy, plain(), opens=True) == "verification_failed from"

    def test_without_a_work_list_every_talker_may_open_work(self) -> None:
        policy = TrustPolicy(channels={CHANNEL: ChannelRule(talk=frozenset({"ops"}))})
        assert judged(policy, plain(sender="ops"), opens=True) == ""
        assert judged(policy, plain(sender="outsider"), opens=True) == "verification_failed from"

    def test_another_channel_has_no_rule(self) -> None:
        policy = TrustPolicy(channels={"elsewhere": ChannelRule(work=frozenset(), talk=frozenset())})
        assert judged(policy, plain(), opens=True) == ""


def receiver(us: str = B, **policy: Any) -> Receiver:
    signer = EnvelopeSigner(OUR_KEY, "patch-worker") if us == US else None
    return Receiver(
        self_id=us, now=NOW, mint=lambda: "msg_ours", channels=JOINED, verifier=verify_envelope, signer=signer,
        policy=TrustPolicy(**policy),
    )  # fmt: skip


def work(envelope: Envelope, initiator: str, target: str) -> WorkView:
    del envelope
    return opened_by(plain(sender=initiator, to=target) if "@" not in initiator else verified(to=target))


class TestInTheReceiver:
    TALKERS: Final = {CHANNEL: ChannelRule(work=frozenset({"nobody"}))}

    def test_a_refused_opening_is_answered_with_its_reason(self) -> None:
        effects = decide(plain(), StoredState(), receiver(channels=self.TALKERS))
        assert isinstance(effects[0], Quarantine)
        assert effects[0].reason == "verification_failed"
        queued = [effect for effect in effects if isinstance(effect, Queue)]
        assert [effect.envelope.document()["body"]["reason_code"] for effect in queued] == ["verification_failed"]

    def test_a_talker_may_continue_an_open_work(self) -> None:
        known = StoredState(work=work(plain(), B, "ops"))
        assert any(isinstance(effect, Deliver) for effect in decide(plain(), known, receiver(channels=self.TALKERS)))

    def test_talk_without_work_is_delivered(self) -> None:
        effects = decide(plain(work_id=None), StoredState(), receiver(channels=self.TALKERS))
        assert any(isinstance(effect, Deliver) for effect in effects)

    def test_an_envelope_to_another_peer_opens_no_work_with_us(self) -> None:
        effects = decide(plain(to="outsider"), StoredState(), receiver(channels=self.TALKERS))
        assert [effect.reason for effect in effects if isinstance(effect, Quarantine)] == ["not_target"]

    def test_our_own_messages_are_not_judged(self) -> None:
        ours = verified(key=OUR_KEY, name="patch-worker", to=None, work_id=None)
        assert ours.sender == US
        effects = decide(
            ours,
            StoredState(sent_by_us=True),
            receiver(US, mode="require", deny=frozenset({identity_of(OUR_KEY.key_id)})),
        )
        assert effects == (Ignore("own"),)

    def test_a_forgery_in_our_name_is_not_a_conflict(self) -> None:
        forged = parse(dump(sign(wire("say", sender=US), OPS_KEY)), NOW)
        assert [type(effect) for effect in decide(forged, StoredState(), receiver(US))] == [Quarantine]

    def test_the_receipts_of_a_keyed_daemon_are_signed(self) -> None:
        effects = decide(verified(to=US), StoredState(), receiver(US, deny=frozenset({identity_of(OPS_KEY.key_id)})))
        (queued,) = [effect for effect in effects if isinstance(effect, Queue)]
        assert assess(queued.envelope, verify_envelope) == "verified"
        assert queued.envelope.sender == US
        stored = [effect for effect in queued.effects if isinstance(effect, StoreEnvelope)]
        assert [effect.trust for effect in stored] == ["verified"]
