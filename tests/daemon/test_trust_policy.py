"""The policy that is in force: settings and run-time rules joined, first use, and what follows a rollback."""

import json
from collections.abc import AsyncIterator
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.config.settings import Settings
from aghbus.daemon.config.trust_settings import TrustSettings, policy_of
from aghbus.daemon.nats.link import Link
from aghbus.daemon.services.trust_rules import TrustRuleService
from aghbus.daemon.state.context import Core
from aghbus.daemon.state.presence import Roster
from aghbus.daemon.state.trust_policy import denied_as, merged
from aghbus.protocol.api.trust import TrustChangeRequest
from aghbus.protocol.effects import Quarantine, Remember
from aghbus.protocol.envelope import Envelope, parse
from aghbus.protocol.errors import ProtocolError, Refused
from aghbus.protocol.trust.explain import explain
from aghbus.protocol.trust.keys import SigningKey
from aghbus.protocol.trust.policy import ChannelRule, Policy
from aghbus.protocol.trust.proof import sign, verify_envelope
from aghbus.protocol.trust.trust import assess
from aghbus.store.engine.database import Store
from aghbus.store.engine.transaction import Transaction
from aghbus.store.engine.trust_rules import Rule
from aghbus.store.host.key_files import generate_key

NOW = 1_776_366_200
FIRST, SECOND = generate_key(), generate_key()
SEEN = (Remember(NOW + 300),)


def said_by(sender: str, key: SigningKey | None = None, **fields: Any) -> Envelope:
    """A say as it comes off the wire."""
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


@pytest.fixture
async def store(tmp_path: Path) -> AsyncIterator[Store]:
    opened = await Store.open(tmp_path / "store.db")
    yield opened
    await opened.close()


def core_of(store: Store, **trust: Any) -> Core:
    settings = Settings(
        name="ops", peer_id="ops", workspace="local", channels=("default",), trust=TrustSettings(**trust)
    )
    link = Link(_never, name="test", on_up=_nothing, on_down=_nothing, on_error=_nothing)
    return Core(settings, Clock(), store, link, Roster(30.0), 0)


async def _never() -> Any:
    raise AssertionError("no test here connects")


def _nothing(*_: object) -> None:
    return None


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
        assert found.deny == {FIRST.key_id, SECOND.key_id}
        assert found.allow == {FIRST.key_id}
        assert found.channels == {
            "default": ChannelRule(work=frozenset({"ops", "dave"}), talk=frozenset({"carol"})),
            "lobby": ChannelRule(work=None, talk=frozenset({"*@*"})),
        }
        assert found.pins == {"ops": FIRST.key_id}

    def test_nothing_added_is_what_was_configured(self) -> None:
        configured = policy_of(TrustSettings(mode="require", allow=(FIRST.key_id,), may_talk=("default=*",)))
        assert merged(configured, [], {}) == configured


class TestChanges:
    async def test_a_change_holds_in_the_policy_at_once_and_after_the_store_is_opened_again(
        self, store: Store, tmp_path: Path
    ) -> None:
        core = core_of(store)
        changes = TrustRuleService(core)
        envelope = said_by("ops", FIRST)
        core.trust.now.judge(envelope, "verified", opens_work=False)
        await changes.change("deny", TrustChangeRequest(who=FIRST.key_id))
        with pytest.raises(ProtocolError, match="is denied here"):
            core.trust.now.judge(envelope, "verified", opens_work=False)
        await changes.change("pin", TrustChangeRequest(who=f"carol={SECOND.key_id}"))
        await store.close()
        again = await Store.open(tmp_path / "store.db")
        try:
            policy = core_of(again).trust.now
            assert (policy.deny, dict(policy.pins)) == (frozenset({FIRST.key_id}), {"carol": SECOND.key_id})
        finally:
            await again.close()

    async def test_a_failed_transaction_leaves_the_policy_as_it_was(self, store: Store) -> None:
        core = core_of(store)
        changes = TrustRuleService(core)
        await changes.change("pin", TrustChangeRequest(who=f"carol={SECOND.key_id}"))
        before = core.trust.now

        def fails(tx: Transaction) -> None:
            rules = tx.memory.trust
            rules.put(tx, Rule("deny", "", FIRST.key_id, "operator", 1))
            rules.put(tx, Rule("pin", "dave", FIRST.key_id, "operator", 1))
            carol = rules.get("pin", "carol", SECOND.key_id)
            assert carol is not None
            rules.remove(tx, carol)
            assert FIRST.key_id in core.trust.now.deny  # within the transaction it holds
            raise RuntimeError("the job fails")

        with pytest.raises(RuntimeError):
            await store.write(fails)
        assert core.trust.now == before
        assert dict(core.trust.now.pins) == {"carol": SECOND.key_id}

    async def test_a_configured_pin_is_stronger_than_one_of_first_use(self, store: Store) -> None:
        await TrustRuleService(core_of(store)).change("pin", TrustChangeRequest(who=f"ops={FIRST.key_id}"))
        core = core_of(store, pins=(f"ops={SECOND.key_id}",))
        shown = {(rule.who, rule.origin, rule.in_force) for rule in (await TrustRuleService(core).list_rules()).rules}
        assert shown == {(SECOND.key_id, "configuration", True), (FIRST.key_id, "operator", False)}
        with pytest.raises(ProtocolError, match="pinned to another key"):
            core.trust.now.judge(said_by("ops", FIRST), "verified", opens_work=False)

    async def test_a_pin_is_not_replaced_without_a_word(self, store: Store) -> None:
        changes = TrustRuleService(core_of(store))
        await changes.change("pin", TrustChangeRequest(who=f"ops={FIRST.key_id}"))
        with pytest.raises(Refused) as refused:
            await changes.change("pin", TrustChangeRequest(who=f"ops={SECOND.key_id}"))
        assert refused.value.error_code == "conflict"


class TestFirstUse:
    async def heard(self, core: Core, envelope: Envelope, effects: tuple[Any, ...] = SEEN) -> None:
        await core.store.write(lambda tx: core.trust.heard(tx, envelope, effects))

    async def test_off_pins_nothing_but_knows_the_key_of_a_handle(self, store: Store) -> None:
        core = core_of(store)
        await self.heard(core, said_by("ops", FIRST))
        assert dict(core.trust.now.pins) == {}
        assert core.trust.key_of(f"ops@{FIRST.fingerprint}") == FIRST.key_id

    async def test_the_first_key_stays_and_the_second_is_refused_in_the_same_transaction(self, store: Store) -> None:
        core = core_of(store, first_use="pin")
        judged = core.trust.now  # taken once for a batch, as intake does

        def batch(tx: Transaction) -> None:
            core.trust.heard(tx, said_by("ops", FIRST), SEEN)
            with pytest.raises(ProtocolError, match="pinned to another key"):
                judged.judge(said_by("ops", SECOND), "verified", opens_work=False)
            judged.judge(said_by("ops", FIRST), "verified", opens_work=False)

        await store.write(batch)
        (rule,) = (await TrustRuleService(core).list_rules()).rules
        assert (rule.subject, rule.who, rule.origin, rule.in_force) == ("ops", FIRST.key_id, "first_use", True)

    async def test_who_was_refused_or_signs_nothing_pins_nothing(self, store: Store) -> None:
        core = core_of(store, first_use="pin")
        await self.heard(
            core, said_by("ops", FIRST), (Quarantine("verification_failed", "is denied here", "verified"),)
        )
        await self.heard(core, said_by("carol"))
        assert dict(core.trust.now.pins) == {}

    async def test_a_greet_pins_before_the_store_has_it(self, store: Store) -> None:
        core = core_of(store, first_use="pin")
        core.trust.greeted(said_by("ops", FIRST))
        core.trust.greeted(said_by("ops", SECOND))
        assert dict(core.trust.now.pins) == {"ops": FIRST.key_id}
        await store.write(lambda _: None)
        assert store.memory.trust.pins == {"ops": FIRST.key_id}
        assert dict(core.trust.now.pins) == {"ops": FIRST.key_id}

    async def test_the_table_is_bounded(self, store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
        monkeypatch.setattr("aghbus.store.engine.trust_rules.MAX_RULES", 2)
        core = core_of(store, first_use="pin")
        for name in ("a", "b", "c"):
            await self.heard(core, said_by(name, FIRST))
        assert set(core.trust.now.pins) == {"a", "b"}
        assert any("first use" in one for one in core.counters.problems(core.clock.monotonic()))
        await TrustRuleService(core).change("unpin", TrustChangeRequest(who="a"))
        await self.heard(core, said_by("c", FIRST))
        assert set(core.trust.now.pins) == {"b", "c"}


keys = st.sampled_from([FIRST, SECOND])
key_sets = st.frozensets(keys.map(lambda key: key.key_id))
who = st.sampled_from(["ops", f"ops@{FIRST.fingerprint}", SECOND.key_id, "*", "*@*"])
rules = st.builds(ChannelRule, work=st.none() | st.frozensets(who), talk=st.none() | st.frozensets(who))
policies = st.builds(
    Policy,
    mode=st.sampled_from(["verify", "require"]),
    allow=key_sets,
    deny=key_sets,
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
    def test_it_says_what_the_receiver_decides(self, policy: Policy, envelope: Envelope, opens: bool) -> None:
        refusal, trust = None, None
        try:
            trust = assess(envelope, verify_envelope)
            policy.judge(envelope, trust, opens_work=opens)
        except ProtocolError as error:
            refusal = f"{error.reason}: {error.detail}"
            assert trust is None or not policy.asks_nothing_of(envelope, trust)
        found = explain(envelope.raw, NOW, policy, {"us"}, opens_work=opens)
        assert (found.decided_by is None) == (refusal is None)
        assert refusal is None or found.steps[-1].detail.startswith(refusal)
        assert all(step.passed for step in found.steps[:-1])

    @pytest.mark.parametrize(
        ("change", "decided_by", "detail"),
        [
            ({"ts": NOW - 3600}, "envelope", "expired"),
            ({"proof": None}, "proof", "sends no envelope without a proof"),
            ({"body": {"text": "other"}}, "signature", "does not belong to this envelope"),
            ({"from": "ops"}, "proof", "is not the handle"),
        ],
    )
    def test_what_fails_before_policy(self, change: dict[str, Any], decided_by: str, detail: str) -> None:
        document = json.loads(said_by("ops", FIRST).raw) | change
        found = explain(encode(document), NOW, Policy(), {"us"}, opens_work=False)
        assert (found.verdict, found.decided_by, found.key_id) == ("rejected", decided_by, None)
        assert detail in found.steps[-1].detail

    def test_bytes_that_are_no_envelope_and_our_own(self) -> None:
        assert explain(b"\xff{", NOW, Policy(), {"us"}, opens_work=False).decided_by == "envelope"
        ours = said_by("ops", FIRST)
        found = explain(ours.raw, NOW, Policy(deny=frozenset({FIRST.key_id})), {ours.sender}, opens_work=False)
        assert (found.decided_by, found.steps[-1].check) == (None, "own")


def test_who_only_claims_a_name_is_told_apart_from_its_owner() -> None:
    handle = f"ops@{FIRST.fingerprint}"
    names = {
        denied_as(handle, "verified"),
        denied_as(handle, None),
        denied_as("ops", "unverified"),
        denied_as("ops", None),
    }
    assert len(names) == 4
    assert denied_as(handle, "verified") == denied_as(f"carol@{FIRST.fingerprint}", "verified")
