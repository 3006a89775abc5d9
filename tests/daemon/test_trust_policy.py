"""The active trust policy: settings and runtime rules joined, pins of first use, and rollbacks."""

import json
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.daemon.config.trust_settings import TrustSettings, policy_of
from aghbus.daemon.state.trust_policy import PAUSE_MS, UNUSED_MS, denial_budget_key, first_use_problems, merged
from aghbus.daemon.wiring import DaemonParts
from aghbus.host.key_files import generate_key
from aghbus.protocol.agh.bodies import PeerCard
from aghbus.protocol.agh.effects import Quarantine, RecordId
from aghbus.protocol.agh.envelope import Envelope, parse
from aghbus.protocol.agh.errors import ProtocolError
from aghbus.protocol.agh.trust.explain import explain
from aghbus.protocol.agh.trust.keys import SigningKey
from aghbus.protocol.agh.trust.policy import ChannelRule, TrustPolicy, identity_of, is_sender, split_sender
from aghbus.protocol.agh.trust.proof import sign, verify_envelope
from aghbus.protocol.agh.trust.trust import Trust, assess
from aghbus.protocol.api.trust import TrustChangeRequest
from aghbus.protocol.base.errors import Refused
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.engine.memory.trust import Rule
from tests.support.receiving import Stepped
from tests.support.wiring import parts_of

NOW = 1_776_366_200
FIRST, SECOND = generate_key(), generate_key()
SEEN = (RecordId(NOW + 300),)


def said_by(sender: str, key: SigningKey | None = None, **fields: Any) -> Envelope:
    """A received say."""
    document = {
        "protocol": "agh-network/v0",
        "workspace_id": "local",
        "id": "msg_1",
        "channel": "default",
        "kind": "say",
        "from": sender if key is None else f"{sender}@{key.fingerprint}",
        "to": None,
        "ts": NOW,
        "surface": "thread",
        "thread_id": "thread_abc",
        "body": {"text": "hello"},
        **fields,
    }
    return parse(encode(document if key is None else sign(document, key)), NOW)


def encode(document: dict[str, Any]) -> bytes:
    return json.dumps(document).encode()


def open_work_of_ops(tx: Transaction) -> None:
    columns = "workspace_id, channel, work_id, surface, container, initiator, target, role, state, trust, opening_id"
    values = (
        "local",
        "default",
        "work_1",
        "thread",
        "thread_1",
        "ops",
        "me",
        "target",
        "working",
        "unverified",
        "msg_1",
    )
    sql = f"INSERT INTO works ({columns}, advanced, opened_seq, opened_ms, last_seq, updated_ms, text) VALUES "
    tx.db.execute(f"{sql} ({'?, ' * len(values)} 0, 1, 1, 1, 1, '')", values)


def end_all_works(tx: Transaction) -> None:
    tx.db.execute("UPDATE works SET state = 'completed'")


class TestMerged:
    def test_lists_and_channel_rules_are_joined(self) -> None:
        configured = policy_of(
            TrustSettings(deny=(FIRST.key_id,), may_open_work=("default=ops",), may_talk=("default=carol",))
        )
        rules = [
            Rule("deny", "", SECOND.key_id, "operator", 1),
            Rule("allow", "", FIRST.key_id, "operator", 1),
            Rule("may_open_work", "default", "dave", "operator", 1),
            Rule("may_talk", "lobby", "*@*", "operator", 1),
            Rule("pin", "ops", FIRST.key_id, "first_use", 1),
        ]
        found = merged(configured, rules, {"ops": FIRST.key_id})
        assert found.deny == set(map(identity_of, (FIRST.key_id, SECOND.key_id)))
        assert found.allow == {FIRST.key_id}
        assert found.channels == {
            "default": ChannelRule(work=frozenset({"ops", "dave"}), talk=frozenset({"carol"})),
            "lobby": ChannelRule(work=None, talk=frozenset({"*@*"})),
        }
        assert found.pins == {"ops": FIRST.key_id}

    def test_without_rules_the_policy_is_the_configured_one(self) -> None:
        configured = policy_of(TrustSettings(mode="require", allow=(FIRST.key_id,), may_talk=("default=*",)))
        assert merged(configured, [], {}) == configured


class TestChanges:
    async def test_a_change_takes_effect_immediately_and_after_a_restart(self, store: Store, tmp_path: Path) -> None:
        parts = parts_of(store)
        changes = parts.trust_rules
        envelope = said_by("ops", FIRST)
        parts.trust.now.judge(envelope, "verified", opens_work=False)
        await changes.change("deny", TrustChangeRequest(who=FIRST.key_id))
        with pytest.raises(ProtocolError, match="is denied here"):
            parts.trust.now.judge(envelope, "verified", opens_work=False)
        await changes.change("pin", TrustChangeRequest(who=f"carol={SECOND.key_id}"))
        await store.close()
        again = await Store.open(tmp_path / "store.db")
        try:
            policy = parts_of(again).trust.now
            assert (policy.deny, dict(policy.pins)) == (
                frozenset({identity_of(FIRST.key_id)}),
                {"carol": SECOND.key_id},
            )
        finally:
            await again.close()

    async def test_a_failed_transaction_leaves_the_policy_as_it_was(self, store: Store) -> None:
        parts = parts_of(store)
        changes = parts.trust_rules
        await changes.change("pin", TrustChangeRequest(who=f"carol={SECOND.key_id}"))
        before = parts.trust.now

        def fails(tx: Transaction) -> None:
            rules = tx.memory.trust
            rules.put(tx, Rule("deny", "", FIRST.key_id, "operator", 1))
            rules.put(tx, Rule("pin", "dave", FIRST.key_id, "operator", 1))
            carol = rules.get("pin", "carol", SECOND.key_id)
            assert carol is not None
            rules.remove(tx, carol)
            assert identity_of(FIRST.key_id) in parts.trust.now.deny  # within the transaction it holds
            raise RuntimeError("the job fails")

        with pytest.raises(RuntimeError):
            await store.write(fails)
        assert parts.trust.now == before
        assert dict(parts.trust.now.pins) == {"carol": SECOND.key_id}

    async def test_a_configured_pin_is_stronger_than_one_of_first_use(self, store: Store) -> None:
        await parts_of(store).trust_rules.change("pin", TrustChangeRequest(who=f"ops={FIRST.key_id}"))
        parts = parts_of(store, pins=(f"ops={SECOND.key_id}",))
        shown = {(rule.who, rule.origin, rule.in_force) for rule in (await parts.trust_rules.list_rules()).rules}
        assert shown == {(SECOND.key_id, "configuration", True), (FIRST.key_id, "operator", False)}
        with pytest.raises(ProtocolError, match="pinned to another key"):
            parts.trust.now.judge(said_by("ops", FIRST), "verified", opens_work=False)

    async def test_a_pin_is_not_replaced_silently(self, store: Store) -> None:
        changes = parts_of(store).trust_rules
        await changes.change("pin", TrustChangeRequest(who=f"ops={FIRST.key_id}"))
        with pytest.raises(Refused) as refused:
            await changes.change("pin", TrustChangeRequest(who=f"ops={SECOND.key_id}"))
        assert refused.value.error_code == "conflict"


class TestFirstUse:
    async def observe(self, parts: DaemonParts, envelope: Envelope, effects: tuple[Any, ...] = SEEN) -> None:
        await parts.store.write(lambda tx: parts.trust.observe(tx, envelope, effects))

    async def test_without_first_use_a_handles_key_is_cached_but_not_pinned(self, store: Store) -> None:
        parts = parts_of(store)
        await self.observe(parts, said_by("ops", FIRST))
        assert dict(parts.trust.now.pins) == {}
        assert parts.trust.key_of(f"ops@{FIRST.fingerprint}") == FIRST.key_id

    async def test_first_key_is_pinned_and_second_refused_in_one_transaction(self, store: Store) -> None:
        parts = parts_of(store, first_use="pin")
        judged = parts.trust.now  # taken once for a batch, as intake does

        def batch(tx: Transaction) -> None:
            parts.trust.observe(tx, said_by("ops", FIRST), SEEN)
            with pytest.raises(ProtocolError, match="pinned to another key"):
                judged.judge(said_by("ops", SECOND), "verified", opens_work=False)
            judged.judge(said_by("ops", FIRST), "verified", opens_work=False)

        await store.write(batch)
        (rule,) = (await parts.trust_rules.list_rules()).rules
        assert (rule.subject, rule.who, rule.origin, rule.in_force) == ("ops", FIRST.key_id, "first_use", True)

    async def test_refused_and_unsigned_messages_pin_nothing(self, store: Store) -> None:
        parts = parts_of(store, first_use="pin")
        await self.observe(
            parts, said_by("ops", FIRST), (Quarantine("verification_failed", "is denied here", "verified"),)
        )
        await self.observe(parts, said_by("carol"))
        assert dict(parts.trust.now.pins) == {}

    async def test_the_first_of_two_greets_pins(self, store: Store) -> None:
        parts = parts_of(store, first_use="pin")
        parts.trust.observe_discovery(said_by("ops", FIRST))
        parts.trust.observe_discovery(said_by("ops", SECOND))
        await store.write(lambda _: None)
        assert store.memory.trust.pins == dict(parts.trust.now.pins) == {"ops": FIRST.key_id}

    async def test_a_nickname_that_a_plain_peer_bears_is_not_pinned(self, store: Store) -> None:
        parts = parts_of(store, first_use="pin")
        parts.presence.observe("local", "default", PeerCard(peer_id="ops"), "unverified", parts.clock.millis())
        parts.trust.observe_discovery(said_by("ops", FIRST))
        await self.observe(parts, said_by("ops", FIRST))
        assert dict(parts.trust.now.pins) == {}
        parts.trust.now.judge(said_by("ops"), "unverified", opens_work=True)

    async def test_the_nickname_of_a_plain_contact_is_not_pinned(self, store: Store) -> None:
        parts = parts_of(store, first_use="pin")
        await store.write(lambda tx: tx.memory.trust.put_addressed(tx, "ops", 1))
        parts.trust.observe_discovery(said_by("ops", FIRST))
        await self.observe(parts, said_by("ops", FIRST))
        assert dict(parts.trust.now.pins) == {}

    async def test_a_nickname_with_open_works_is_not_pinned_until_they_end(self, store: Store) -> None:
        clock = Stepped()
        parts = parts_of(store, clock, first_use="pin")
        await store.write(open_work_of_ops)
        await self.observe(parts, said_by("ops", FIRST))
        parts.trust.observe_discovery(said_by("ops", FIRST))
        await store.write(end_all_works)
        await self.observe(parts, said_by("ops", FIRST))
        assert dict(parts.trust.now.pins) == {}
        clock.advance(PAUSE_MS // 1000)
        await self.observe(parts, said_by("ops", FIRST))
        assert dict(parts.trust.now.pins) == {"ops": FIRST.key_id}

    async def test_an_unused_pin_is_forgotten_and_one_in_use_stays(self, store: Store) -> None:
        clock = Stepped()
        parts = parts_of(store, clock, first_use="pin")
        for name in ("ops", "carol", "dave"):
            await self.observe(parts, said_by(name, FIRST))
        await parts.trust_rules.change("pin", TrustChangeRequest(who=f"dave={FIRST.key_id}"))
        clock.advance(UNUSED_MS // 1000 - 1)
        await parts.trust.forget_unused(clock.millis())
        await self.observe(parts, said_by("carol", FIRST))
        assert set(parts.trust.now.pins) == {"ops", "carol", "dave"}
        clock.advance(1)
        await parts.trust.forget_unused(clock.millis())
        assert set(parts.trust.now.pins) == {"carol", "dave"}
        await self.observe(parts, said_by("ops", SECOND))
        assert parts.trust.now.pins["ops"] == SECOND.key_id

    async def test_the_pin_of_a_present_peer_is_not_forgotten(self, store: Store) -> None:
        clock = Stepped()
        parts = parts_of(store, clock, first_use="pin")
        await self.observe(parts, said_by("ops", FIRST))
        clock.advance(UNUSED_MS // 1000)
        card = PeerCard(peer_id=f"ops@{FIRST.fingerprint}")
        parts.presence.observe("local", "default", card, "verified", clock.millis())
        await parts.trust.forget_unused(clock.millis())
        assert set(parts.trust.now.pins) == {"ops"}

    async def test_the_table_is_bounded(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("aghbus.store.engine.memory.trust.MAX_RULES", 2)
        parts = parts_of(store, first_use="pin")
        for name in ("a", "b", "c"):
            await self.observe(parts, said_by(name, FIRST))
        assert set(parts.trust.now.pins) == {"a", "b"}
        assert any("first use" in one for one in first_use_problems(parts.settings, store, parts.presence))
        await parts.trust_rules.change("unpin", TrustChangeRequest(who="a"))
        await self.observe(parts, said_by("c", FIRST))
        assert set(parts.trust.now.pins) == {"b", "c"}


keys = st.sampled_from([FIRST, SECOND])
key_sets = st.frozensets(keys.map(lambda key: key.key_id))
who = st.sampled_from(["ops", f"ops@{FIRST.fingerprint}", SECOND.key_id, "*", "*@*"])
rules = st.builds(ChannelRule, work=st.none() | st.frozensets(who), talk=st.none() | st.frozensets(who))
policies = st.builds(
    TrustPolicy,
    mode=st.sampled_from(["verify", "require"]),
    allow=key_sets,
    deny=st.frozensets(st.sampled_from(["ops", identity_of(FIRST.key_id), identity_of(SECOND.key_id)])),
    pins=st.dictionaries(st.just("ops"), keys.map(lambda key: key.key_id)),
    channels=st.dictionaries(st.just("default"), rules),
)
envelopes = st.sampled_from(
    [
        said_by("ops", FIRST),
        said_by("ops", SECOND),
        said_by("ops"),
        said_by("ops", proof={"profile": "example.other/v1"}),
    ]
)


class TestWhy:
    @given(policies, envelopes, st.booleans())
    def test_the_explanation_agrees_with_the_decision(
        self, policy: TrustPolicy, envelope: Envelope, opens: bool
    ) -> None:
        refusal, trust = None, None
        try:
            trust = assess(envelope, verify_envelope)
            policy.judge(envelope, trust, opens_work=opens)
        except ProtocolError as error:
            refusal = f"{error.reason}: {error.detail}"
            assert trust is None or not policy.no_rule_applies(envelope, trust)
        found = explain(envelope.raw, NOW, policy, {"us"}, opens_work=opens)
        assert (found.decided_by is None) == (refusal is None)
        assert refusal is None or found.checks[-1].detail.startswith(refusal)
        assert all(step.passed for step in found.checks[:-1])

    @pytest.mark.parametrize(
        ("change", "decided_by", "detail"),
        [
            ({"ts": NOW - 3600}, "envelope", "expired"),
            ({"proof": None}, "proof", "sends no envelope without a proof"),
            ({"body": {"text": "other"}}, "signature", "does not belong to this envelope"),
            ({"from": "ops"}, "proof", "is not the handle"),
        ],
    )
    def test_failures_before_the_policy(self, change: dict[str, Any], decided_by: str, detail: str) -> None:
        document = json.loads(said_by("ops", FIRST).raw) | change
        found = explain(encode(document), NOW, TrustPolicy(), {"us"}, opens_work=False)
        assert (found.verdict, found.decided_by, found.key_id) == ("rejected", decided_by, None)
        assert detail in found.checks[-1].detail

    def test_unreadable_bytes_and_own_messages(self) -> None:
        assert explain(b"\xff{", NOW, TrustPolicy(), {"us"}, opens_work=False).decided_by == "envelope"
        ours = said_by("ops", FIRST)
        found = explain(
            ours.raw, NOW, TrustPolicy(deny=frozenset({identity_of(FIRST.key_id)})), {ours.sender}, opens_work=False
        )
        assert (found.decided_by, found.checks[-1].check) == (None, "own")


def test_a_claimed_name_has_another_denial_budget_than_its_owner() -> None:
    handle = f"ops@{FIRST.fingerprint}"
    names = {
        denial_budget_key(handle, "verified"),
        denial_budget_key(handle, None),
        denial_budget_key("ops", "unverified"),
        denial_budget_key("ops", None),
    }
    assert len(names) == 4
    assert denial_budget_key(handle, "verified") == denial_budget_key(f"carol@{FIRST.fingerprint}", "verified")


CALLED: dict[str, Any] = {"ext": {"aghbus.principal": {"name": "alice", "via": "a2a"}}}


@pytest.mark.parametrize(
    "who",
    ["gate/alice", f"gate@{FIRST.fingerprint}/alice", f"{FIRST.key_id}/alice"],
    ids=["name", "handle", "key"],  # the key is another one in each process of the tests
)
def test_a_rule_may_name_one_caller_of_a_peer(who: str) -> None:
    key = None if who.startswith("gate/") else FIRST
    alice, mallory, own = (
        said_by("gate", key, **ext)
        for ext in (CALLED, {"ext": {"aghbus.principal": {"name": "mallory"}}}, {"ext": {"aghbus.principal": "alice"}})
    )

    def refused(envelope: Envelope, policy: TrustPolicy) -> list[str]:
        quick = policy.no_rule_applies(envelope, trust)
        found = [check.rule for check in policy.checks(envelope, trust, opens_work=True) if check.error is not None]
        assert not (quick and found)
        return found

    trust: Trust = "unverified" if key is None else "verified"
    settings = TrustSettings(may_open_work=(f"default={who}",))
    assert refused(alice, policy_of(settings)) == []
    assert refused(mallory, policy_of(settings)) == refused(own, policy_of(settings)) == ["may_open_work"]
    denying = policy_of(TrustSettings(deny=(who,)))
    assert refused(alice, denying) == ["deny"]
    assert refused(mallory, denying) == refused(own, denying) == []


@pytest.mark.parametrize("who", ["gate/", "gate/a b", "gate/alice/x", "*/alice", f"gate/{'x' * 129}"])
def test_a_caller_in_a_rule_has_a_name(who: str) -> None:
    assert split_sender(f"default={who}") is None and not is_sender(who)


async def test_a_rule_for_one_caller_admits_its_peer(store: Store) -> None:
    parts = parts_of(store, may_open_work=("default=gate/alice@example.org",))
    assert parts.trust.admits("gate") and not parts.trust.admits("alice@example.org")
    made = await parts.trust_rules.change("deny", TrustChangeRequest(who="gate/mallory"))
    assert made.rule.who == "gate/mallory"
    assert "what the peer says" in " ".join(made.notes)
    assert parts.trust.admits("gate")
    assert not parts.trust.now.no_rule_applies(said_by("gate", **CALLED), "unverified")
