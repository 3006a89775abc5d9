"""The test vectors in tests/vectors, one test for each file; they can be used from any language."""

import json
from pathlib import Path
from typing import Any, Final

import pytest

from aghbus.protocol.agh.capability_digest import canonical_bytes, capability_digest
from aghbus.protocol.agh.envelope import parse
from aghbus.protocol.agh.identifiers import direct_id, route_token
from aghbus.protocol.agh.replay import Replay, check
from tests.support.wire import dump

FOLDER: Final = Path(__file__).parent.parent / "vectors"
# What the vectors of the lifecycle call a refusal, and the reason that it has here (spec section 6, last paragraph).
REFUSALS: Final = {
    "reject_work": "work_closed",
    "container_mismatch": "work_container_mismatch",
    "actor_not_allowed": "actor_not_allowed",
    "invalid_transition": "invalid_transition",
    "not_found": "not_found",
}


def lines(name: str) -> list[Any]:
    cases = [json.loads(line) for line in (FOLDER / name).read_text("utf-8").splitlines()]
    assert cases, f"{name} is empty"
    return [pytest.param(case, id=f"{number}-{case.get('name', '')}") for number, case in enumerate(cases, 1)]


@pytest.mark.parametrize("case", [*lines("envelopes.jsonl"), *lines("rules.jsonl")])
def test_envelopes_get_the_recorded_verdict(case: dict[str, Any]) -> None:
    verdict = check(dump(case["envelope"]), case["now"])
    assert verdict.accept is case["accept"], verdict.detail
    if not case["accept"]:
        assert verdict.reason in case["reasons"]
        assert verdict.detail


@pytest.mark.parametrize("case", lines("capability_digests.jsonl"))
def test_digests_match_the_recorded_ones(case: dict[str, Any]) -> None:
    assert capability_digest(case["capability"]) == case["digest"], canonical_bytes(case["capability"])


@pytest.mark.parametrize("case", lines("direct_ids.jsonl"))
def test_direct_ids_match_the_recorded_ones_for_both_peers(case: dict[str, Any]) -> None:
    place = (case["workspace_id"], case["channel"])
    assert direct_id(*place, case["peer_a"], case["peer_b"]) == case["direct_id"]
    assert direct_id(*place, case["peer_b"], case["peer_a"]) == case["direct_id"]


@pytest.mark.parametrize("case", lines("route_tokens.jsonl"))
def test_route_tokens_match_the_recorded_ones(case: dict[str, Any]) -> None:
    assert route_token(case["peer_id"]) == case["route_token"]


@pytest.mark.parametrize("case", lines("lifecycles.jsonl"))
def test_lifecycles_match_the_recorded_steps(case: dict[str, Any]) -> None:
    assert len(case["envelopes"]) == len(case["steps"])
    replay = Replay()
    for envelope, wanted in zip(case["envelopes"], case["steps"], strict=True):
        got = replay.feed(dump(envelope), case["now"])
        if wanted["outcome"] in REFUSALS:
            conversation = envelope["kind"] in ("say", "capability") and wanted["outcome"] != "actor_not_allowed"
            assert (got.outcome, got.reason) == ("rejected" if conversation else "ignored", REFUSALS[wanted["outcome"]])
        else:
            assert (got.outcome, got.reason) == (wanted["outcome"], None)
        if "state" in wanted:
            assert got.state == wanted["state"]


@pytest.mark.parametrize("case", lines("kind_examples.jsonl"))
def test_every_example_of_the_page_of_message_kinds_is_valid(case: dict[str, Any]) -> None:
    envelope = case["envelope"]
    verdict = check(dump(envelope), envelope["ts"] + 1)
    if envelope["kind"] == "capability":  # its printed digest is a known placeholder (spec section 3)
        assert (verdict.accept, verdict.reason) == (False, "verification_failed")
        envelope["body"]["capability"]["digest"] = capability_digest(envelope["body"]["capability"])
        verdict = check(dump(envelope), envelope["ts"] + 1)
    assert verdict.accept, verdict.detail
    assert parse(dump(envelope), envelope["ts"]).document() == envelope


def test_all_examples_are_recorded() -> None:
    kinds = [case.values[0]["envelope"]["kind"] for case in lines("kind_examples.jsonl")]
    assert kinds == ["greet", "whois", "whois", "say", "say", "say", "capability", "receipt", "trace"]


def test_the_room_id_in_the_examples_is_not_the_derived_one() -> None:
    derived = direct_id("ws_alpha", "builders", "ops-coordinator.session-42", "patch-worker.session-19")
    assert derived == "direct_a610973e3c0d915853982f4bfe1534e8"  # spec section 4
