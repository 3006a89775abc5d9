"""Whois matching, brief and rich discovery, presence, and trust states."""

from typing import Any, Final

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import UNSET

from aghbus.protocol.agh.bodies import Greet, PeerCard, Whois
from aghbus.protocol.agh.capability_digest import capability_digest
from aghbus.protocol.agh.discovery import (
    BRIEF_KEY,
    CATALOG_KEY,
    SUMMARY_KEY,
    Record,
    build_card,
    matches,
    rich_response,
    should_answer,
    summary_of,
)
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.errors import UnsupportedProfile, VerificationFailed
from aghbus.protocol.agh.presence import PeerSeen, presence_of
from aghbus.protocol.agh.trust.trust import PROFILE, assess
from tests.support.wire import B, json_values, say

CATALOG: Final = tuple(
    Record(
        name, f"Does {name}.", f"sha256:{name}", {"id": name, "summary": f"Does {name}.", "digest": f"sha256:{name}"}
    )
    for name in ("code.patch", "test.run")
)
CARD: Final = build_card(
    B, display_name="Patch Worker", catalog=CATALOG, trust_modes=("unverified",), artifacts=("git-ref",)
)
HANDLE: Final = "ops@" + "a" * 32


class TestMatching:
    @pytest.mark.parametrize(
        "query",
        ["", "  ", B, " test.run ", "\u00a0code.patch", "Patch Worker", "agh-network/v0", "git-ref", "unverified"],
    )
    def test_a_query_matches_a_whole_entry_of_the_card_or_is_empty(self, query: str) -> None:
        assert matches(query, CARD)
        assert should_answer(query, None, CARD)

    @pytest.mark.parametrize(
        "query", ["test", "TEST.RUN", "patch worker", "test.run code.patch", "Does test.run.", "sha256:test.run"]
    )
    def test_a_query_matches_no_substring_and_is_case_sensitive(self, query: str) -> None:
        assert not matches(query, CARD)
        assert not should_answer(query, None, CARD)

    def test_a_directed_request_is_always_answered(self) -> None:
        assert should_answer("no such thing", B, CARD)

    def test_a_missing_display_name_matches_nothing(self) -> None:
        assert not matches("None", PeerCard(peer_id=B))


class TestCards:
    def test_a_catalog_is_listed_with_its_brief_in_the_same_order(self) -> None:
        wire = CARD.to_wire()
        assert wire["capabilities"] == ["code.patch", "test.run"]
        assert wire["ext"] == {BRIEF_KEY: [{"id": name, "summary": f"Does {name}."} for name in wire["capabilities"]]}

    def test_without_a_catalog_only_the_configured_capability_ids_are_listed(self) -> None:
        wire = build_card(B, capabilities=["b", "a", "b"]).to_wire()
        assert wire["capabilities"] == ["b", "a"]
        assert "ext" not in wire
        assert build_card(B).to_wire()["capabilities"] == []


class TestRichDiscovery:
    def answer(self, ext: dict[str, Any]) -> tuple[list[str], list[str] | None]:
        """The capabilities, which are the ids in the brief, and the ids of the records, None when the key is absent."""
        card, out = rich_response(CARD, CATALOG, ext)
        assert card.ext is not None
        assert list(card.capabilities) == [entry["id"] for entry in card.ext[BRIEF_KEY]]
        assert set(out) <= {CATALOG_KEY}
        records = out[CATALOG_KEY]["capabilities"] if CATALOG_KEY in out else None
        return [entry["id"] for entry in card.ext[BRIEF_KEY]], records and [record["id"] for record in records]

    @pytest.mark.parametrize(
        "ext", [{}, {"agh.include": []}, {"agh.include": ["other"]}, {"agh.include": "capability_catalog"}]
    )
    def test_without_the_include_option_no_catalog_is_sent(self, ext: dict[str, Any]) -> None:
        for filtered in (ext, {**ext, "agh.capability_ids": ["test.run"]}):
            assert self.answer(filtered) == (["code.patch", "test.run"], None)

    def test_with_the_include_option_full_records_are_in_catalog_order(self) -> None:
        ext = {"agh.include": ["future", "capability_catalog"]}
        assert self.answer(ext) == (["code.patch", "test.run"], ["code.patch", "test.run"])
        assert rich_response(CARD, CATALOG, ext)[1] == {
            CATALOG_KEY: {"capabilities": [record.document for record in CATALOG]}
        }

    def test_a_filter_applies_to_records_and_brief_in_catalog_order(self) -> None:
        ext = {"agh.include": ["capability_catalog"], "agh.capability_ids": ["test.run", "unknown"]}
        assert self.answer(ext) == (["test.run"], ["test.run"])
        ext["agh.capability_ids"] = ["test.run", "code.patch"]
        assert self.answer(ext) == (["code.patch", "test.run"], ["code.patch", "test.run"])

    def test_the_ids_of_a_filter_are_trimmed(self) -> None:
        ext = {"agh.include": ["capability_catalog"], "agh.capability_ids": [" test.run\t", "", 7]}
        assert self.answer(ext) == (["test.run"], ["test.run"])

    def test_claims_beside_a_catalog_line_up_with_the_brief(self) -> None:
        card = build_card(B, capabilities=["claimed", "test.run"], catalog=CATALOG)
        assert list(card.capabilities) == ["code.patch", "test.run", "claimed"]
        assert card.ext is not None
        assert [entry["id"] for entry in card.ext[BRIEF_KEY]] == list(card.capabilities)
        ext = {"agh.include": ["capability_catalog"], "agh.capability_ids": ["claimed"]}
        filtered, out = rich_response(card, CATALOG, ext)
        assert filtered.to_wire()["capabilities"] == ["claimed"]
        assert filtered.to_wire()["ext"] == {BRIEF_KEY: [{"id": "claimed", "summary": "claimed"}]}
        assert [record["id"] for record in out[CATALOG_KEY]["capabilities"]] == ["claimed"]
        whole, out = rich_response(card, CATALOG, {"agh.include": ["capability_catalog"]})
        assert [record["id"] for record in out[CATALOG_KEY]["capabilities"]] == list(whole.capabilities)
        claimed = out[CATALOG_KEY]["capabilities"][-1]
        assert claimed["digest"] == capability_digest(claimed)

    def test_unknown_ids_give_an_empty_list_not_an_absent_one(self) -> None:
        for wanted in ([], ["unknown"], None, "test.run", {"test.run": 1}):
            card, out = rich_response(
                CARD, CATALOG, {"agh.include": ["capability_catalog"], "agh.capability_ids": wanted}
            )
            assert out == {CATALOG_KEY: {"capabilities": []}}
            assert card.to_wire()["ext"] == {BRIEF_KEY: []}
            assert card.to_wire()["capabilities"] == []

    @given(st.dictionaries(st.sampled_from(["agh.include", "agh.capability_ids"]), json_values | st.lists(json_values)))
    def test_no_ext_of_a_peer_raises(self, ext: dict[str, Any]) -> None:
        card, _ = rich_response(CARD, CATALOG, ext)
        assert card.peer_id == B

    @pytest.mark.parametrize(
        ("body", "ext", "summary"),
        [
            (Greet(CARD, "of the greet"), {SUMMARY_KEY: "other"}, "of the greet"),
            (Greet(CARD, ""), {}, None),
            (Greet(CARD), {SUMMARY_KEY: "other"}, None),
            (Whois("response", card=CARD), {SUMMARY_KEY: "of the response"}, "of the response"),
            (Whois("response", card=CARD), {SUMMARY_KEY: 5}, UNSET),
        ],
    )
    def test_a_summary_is_that_of_the_greet_or_of_the_ext_of_a_response(
        self, body: Greet | Whois, ext: dict[str, Any], summary: object
    ) -> None:
        assert summary_of(body, ext) == summary


class TestPresence:
    @pytest.mark.parametrize(
        ("age_ms", "presence"),
        [
            (-5000, "active"),
            (0, "active"),
            (30_000, "active"),
            (30_001, "inactive"),
            (60_000, "inactive"),
            (60_001, "expired"),
        ],
    )
    def test_a_peer_is_active_for_one_interval_and_inactive_for_two(self, age_ms: int, presence: str) -> None:
        assert presence_of(1_000_000, 1_000_000 + age_ms) == presence

    def test_the_interval_is_an_argument(self) -> None:
        assert presence_of(0, 150, interval=0.1) == "inactive"

    def test_a_seen_peer_has_the_id_of_its_card(self) -> None:
        seen = PeerSeen(workspace_id="w", channel="c", card=CARD, trust="unverified", first_seen_ms=1, last_seen_ms=2)
        assert seen.peer_id == B


def _holds(envelope: Envelope) -> None:
    """A verifier whose check passes."""


def _fails(envelope: Envelope) -> None:
    raise UnsupportedProfile("is not taken here", "proof")


class TestTrustStates:
    @pytest.mark.parametrize(
        ("sender", "proof", "accepted"),
        [
            ("ops", None, True),
            (HANDLE, None, False),
            ("ops", {}, False),
            ("ops", {"profile": 5}, False),
            ("ops", {"profile": "acme/v1"}, True),
            (HANDLE, {"profile": "acme/v1"}, False),
            ("ops", {"profile": PROFILE}, False),
            (HANDLE, {"profile": PROFILE}, False),
        ],
    )
    def test_trust_states_without_a_verifier(self, sender: str, proof: dict[str, Any] | None, accepted: bool) -> None:
        envelope = say(sender=sender, proof=proof)
        if accepted:
            assert assess(envelope) == "unverified"
        else:
            with pytest.raises(VerificationFailed):
                assess(envelope)

    def test_the_verifier_decides_about_a_signed_handle(self) -> None:
        signed = say(sender=HANDLE, proof={"profile": PROFILE})
        assert assess(signed, _holds) == "verified"
        with pytest.raises(UnsupportedProfile):
            assess(signed, _fails)
