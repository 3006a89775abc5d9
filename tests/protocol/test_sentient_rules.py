"""The rules of a Sentient message: the Required tables, the refs, the orchestration layer's checks (seed 000)."""

import copy
import json
from typing import Any

import pytest

from aghbus.protocol.formats.sentient.message import FIELDS, REF_FIELDS, check_shape
from tests.support.seed_examples import examples, replaced
from tests.support.sentient_peers import (
    GOALS,
    NOW,
    OBJECTIVES,
    OUT_OF_SCOPE,
    Message,
    SentientBus,
    SentientPeer,
    at,
    rules,
)

DERIVED: Message = {
    "ref_id": "derived_1",
    "parent_ref_id": "store_1",
    "storage_uri": None,
    "asset_type": "audio_track",
    "capability_id": "CAP-AUD-001",
    "created_at_sequence": None,
    "status": "pending",
}
# Every member named in the seed's Required tables, by the seed's own words; written down here a second time.
_REQUIRED = """message_id timestamp/executed_at timestamp/timezone agent/name agent/type input/source input/content output/content
    output/content_type next_agent/name next_agent/reason status/code status/message error/has_error error/error_code
    error/error_message error/retry_count error/recoverable metadata/session_id metadata/request_id
    metadata/sequence_number metadata/parent_message_id resources/source_refs resources/storage_refs resources/derived_refs
    audit/compliance_notes audit/governance_files_consulted audit/reasoning"""
REQUIRED = _REQUIRED.split()
# adapters.md: null is legal except in these, and the arrays.
_NOT_NULL = """message_id timestamp/executed_at timestamp/timezone agent/name status/code error/has_error metadata/session_id
    metadata/request_id metadata/sequence_number resources/source_refs resources/storage_refs resources/derived_refs
    audit/governance_files_consulted"""
NOT_NULL = _NOT_NULL.split()


def judged(message: Message, **more: Any) -> list[tuple[str, str]]:
    """Findings of a first message submitted at its own timestamp."""
    return rules(SentientPeer("obj", user="front").plan(message, now=NOW, **more).findings)


def chained(changes: dict[str, Any], before: dict[str, Any] | None = None) -> list[tuple[str, str]]:
    """Findings of the seed's Example 2 after its Example 1, both with changes."""
    bus = SentientBus(SentientPeer("obj"), SentientPeer("goal"), SentientPeer("plan"))
    bus.submit("obj", replaced(OBJECTIVES, before or {}))
    return rules(bus.peers["goal"].plan(replaced(GOALS, changes)).findings)


@pytest.mark.parametrize("example", examples("sentient"), ids=lambda example: example.value["message_id"])
def test_the_seeds_examples_deserve_no_finding_but_their_age(example: Any) -> None:
    bus = SentientBus(
        SentientPeer("obj", user="front"), SentientPeer("goal"), SentientPeer("plan"), SentientPeer("front")
    )
    name = "goal" if example.value == GOALS else "obj"
    if name == "goal":
        bus.submit("obj", OBJECTIVES)
    assert bus.peers[name].plan(example.value, now=at(example.value)).findings == ()
    late = bus.peers[name].plan(example.value, now=at(example.value) + 301).findings
    assert rules(late) == [("/timestamp/executed_at", "clock_skew")]


@pytest.mark.parametrize("path", REQUIRED)
def test_every_required_member_must_be_present_even_if_null(path: str) -> None:
    assert ("/" + path, "required") in judged(replaced(OBJECTIVES, {path: ...}))
    nulled = judged(replaced(OBJECTIVES, {path: None}))
    assert (("/" + path, "null") in nulled) == (path in NOT_NULL)
    if path not in NOT_NULL:
        assert not rules(SentientPeer("obj", user="front").plan(replaced(OBJECTIVES, {path: None})).findings, "error")


def test_the_tables_name_no_other_members() -> None:
    named = {f"{group}/{name}".strip("/") for group, fields in FIELDS.items() for name in fields}
    assert named == set(REQUIRED)


@pytest.mark.parametrize("group", [group for group in FIELDS if group])
def test_a_missing_group_is_one_finding(group: str) -> None:
    assert judged(replaced(OBJECTIVES, {group: ...})) == [("/" + group, "required")]
    assert judged(replaced(OBJECTIVES, {group: [1]})) == [("/" + group, "type")]


@pytest.mark.parametrize(
    ("path", "value", "rule"),
    [
        ("message_id", 5, "type"),
        ("message_id", " \n", "blank"),
        ("timestamp/executed_at", "2026-02-30T10:00:00Z", "timestamp"),
        ("timestamp/executed_at", "yesterday", "timestamp"),
        ("agent/type", "Governance", "enum"),
        ("input/source", ["user"], "type"),
        ("output/content", 7, "type"),
        ("output/content", True, "type"),
        ("status/code", "done", "enum"),
        ("error/has_error", 0, "type"),
        ("error/error_code", "OOPS", "enum"),
        ("error/retry_count", -1, "range"),
        ("error/retry_count", True, "type"),
        ("error/retry_count", 1.0, "type"),
        ("metadata/sequence_number", 0, "range"),
        ("metadata/sequence_number", "1", "type"),
        ("resources/source_refs", {}, "type"),
        ("resources/source_refs/0", "src_1", "type"),
        ("resources/source_refs/0/url", ..., "required"),
        ("resources/source_refs/0/ref_id", None, "null"),
        ("resources/source_refs/0/extracted_at_sequence", 0, "range"),
        ("resources/storage_refs/0/status", "created", "enum"),
        ("resources/storage_refs/0/storage_uri", ..., "required"),
        ("audit/governance_files_consulted/0", None, "type"),
    ],
)
def test_types_and_enums(path: str, value: Any, rule: str) -> None:
    assert judged(replaced(OBJECTIVES, {path: value})) == [("/" + path, rule)]


def test_derived_refs_have_their_own_statuses_and_members() -> None:
    for name in DERIVED:
        broken = {**DERIVED}
        del broken[name]
        found = rules(check_shape(replaced(OBJECTIVES, {"resources/derived_refs": [broken]})))
        assert found == [(f"/resources/derived_refs/0/{name}", "required")]
    stored = replaced(OBJECTIVES, {"resources/derived_refs": [{**DERIVED, "status": "stored"}]})
    assert judged(stored) == [("/resources/derived_refs/0/status", "enum")]
    assert set(REF_FIELDS["derived_refs"]) == set(DERIVED)


@pytest.mark.parametrize("content", [None, 3, "text", ["a"], {"b": [1]}, False, -2.5])
def test_input_content_is_any_json(content: Any) -> None:
    assert judged(replaced(OBJECTIVES, {"input/content": content})) == []


@pytest.mark.parametrize("text", [b"", b"[]", b'"x"', b"null", b"{", b'{"a":NaN}', b"\xff", b'{"a":1,"a":1}'])
def test_an_invalid_message_is_refused_with_a_finding(text: bytes) -> None:
    plan = SentientPeer("obj").plan(text)
    assert plan.refused
    assert plan.drafts == ()


# the chain


def test_only_request_and_session_are_inherited_from_the_parent() -> None:
    bus = SentientBus(SentientPeer("obj"), SentientPeer("goal"), SentientPeer("plan"))
    bus.submit("obj", OBJECTIVES)
    wrong = replaced(GOALS, {"metadata/request_id": "req-made-up", "metadata/session_id": "session-made-up"})
    plan = bus.submit("goal", wrong)
    assert rules(plan.findings, "warning") == [
        ("/metadata/request_id", "inherited"),
        ("/metadata/session_id", "inherited"),
    ]
    assert "req-made-up" in plan.findings[0].message
    assert "session-made-up" in plan.findings[1].message
    assert plan.message == GOALS
    assert bus.peers["plan"].delivered[-1].message == GOALS
    assert json.dumps(bus.peers["plan"].delivered[-1].message) == json.dumps(GOALS)


@pytest.mark.parametrize("value", [..., None, 7, ""])
def test_overwriting_comes_before_any_other_check(value: Any) -> None:
    found = chained({"metadata/request_id": value, "metadata/session_id": value})
    assert found == [("/metadata/request_id", "inherited"), ("/metadata/session_id", "inherited")]


def test_a_first_message_keeps_its_own_ids() -> None:
    plan = SentientPeer("obj").plan(replaced(OBJECTIVES, {"metadata/request_id": "r", "metadata/session_id": "s"}))
    assert (plan.findings, plan.message["metadata"]["request_id"], plan.scope) == ((), "r", "s")


@pytest.mark.parametrize("sequence", [1, 3, 4])
def test_the_sequence_is_the_parents_plus_one(sequence: int) -> None:
    assert ("/metadata/sequence_number", "sequence") in chained({"metadata/sequence_number": sequence})


def test_the_parent_must_be_known_with_a_complete_history() -> None:
    unknown = {"metadata/parent_message_id": "msg-nobody"}
    assert ("/metadata/parent_message_id", "parent_unknown") in chained(unknown)
    assert ("/metadata/parent_message_id", "parent") in chained({"metadata/parent_message_id": None})
    itself = {"metadata/parent_message_id": GOALS["message_id"]}
    assert ("/metadata/parent_message_id", "parent") in chained(itself)
    offline = SentientPeer("goal")
    offline.whole = False
    assert offline.plan(GOALS).findings == ()


def test_a_first_message_has_no_parent() -> None:
    assert judged(replaced(OBJECTIVES, {"metadata/parent_message_id": "x"})) == [
        ("/metadata/sequence_number", "sequence")
    ]


# refs


@pytest.mark.parametrize("ref", ["src_0", "src_01", "source_1", "src_", "src_1 ", "store_1", "src_1234567890", "SRC_1"])
def test_ref_grammar(ref: str) -> None:
    renamed = {"resources/source_refs/0/ref_id": ref, "resources/storage_refs": [], "output/content": "x"}
    found = judged(replaced(OBJECTIVES, renamed))
    assert found == [("/resources/source_refs/0/ref_id", "ref_grammar")]


def test_twice_used_dangling_and_circular_refs() -> None:
    source = OBJECTIVES["resources"]["source_refs"][0]
    found = judged(replaced(OBJECTIVES, {"resources/source_refs": [source, {**source, "url": "https://x.test/"}]}))
    assert found == [("/resources/source_refs/1/ref_id", "ref_twice")]
    found = judged(replaced(OBJECTIVES, {"resources/storage_refs/0/source_ref_id": "src_2", "output/content": "x"}))
    assert found == [("/resources/storage_refs/0/source_ref_id", "ref_dangling")]
    found = judged(replaced(OBJECTIVES, {"resources/derived_refs": [{**DERIVED, "parent_ref_id": "store_9"}]}))
    assert found == [("/resources/derived_refs/0/parent_ref_id", "ref_dangling")]
    circle = [
        {**DERIVED, "ref_id": f"derived_{here}", "parent_ref_id": f"derived_{parent}"}
        for here, parent in ((1, 2), (2, 3), (3, 2), (4, 4))
    ]
    found = judged(replaced(OBJECTIVES, {"resources/derived_refs": circle}))
    assert found == [(f"/resources/derived_refs/{index}/parent_ref_id", "ref_circular") for index in (1, 2, 3)]


def test_a_chain_of_ten_thousand_derived_refs_is_judged_quickly() -> None:
    long = [
        {**DERIVED, "ref_id": f"derived_{n}", "parent_ref_id": f"derived_{n - 1}" if n > 1 else "store_1"}
        for n in range(10_000, 0, -1)
    ]
    assert judged(replaced(OBJECTIVES, {"resources/derived_refs": long})) == []


def test_refs_of_the_parent_are_neither_dropped_nor_renamed() -> None:
    assert chained({"resources/source_refs": [], "resources/storage_refs": []}) == [
        ("/resources/source_refs", "ref_dropped"),
        ("/resources/storage_refs", "ref_dropped"),
    ]
    renamed = {"resources/source_refs/0/ref_id": "src_2", "resources/storage_refs/0/source_ref_id": "src_2"}
    found = chained({**renamed, "output/content": "x", "status/message": None})
    assert ("/resources/source_refs", "ref_renamed") in found
    assert ("/resources/storage_refs/0/source_ref_id", "ref_changed") in found


@pytest.mark.parametrize(
    ("member", "value"),
    [
        ("source_refs/0/url", "https://www.youtube.com/watch?v=other"),
        ("storage_refs/0/source_ref_id", None),
        ("storage_refs/0/storage_uri", "s3://bucket/other"),
        ("storage_refs/0/storage_uri", None),
        ("derived_refs/0/parent_ref_id", "src_1"),
        ("derived_refs/0/asset_type", "frame_set"),
    ],
)
def test_fixed_members_of_refs_must_not_change(member: str, value: Any) -> None:
    given = {"resources/storage_refs/0/storage_uri": "s3://bucket/a", "resources/derived_refs": [DERIVED]}
    found = chained({**given, f"resources/{member}": value}, given)
    assert ("/resources/" + member, "ref_changed") in found
    assert chained(given, given) == []


def test_pending_uris_statuses_and_new_refs_may_change() -> None:
    stored = {
        "resources/storage_refs/0/storage_uri": "s3://bucket/a",
        "resources/storage_refs/0/status": "stored",
        "resources/storage_refs/0/created_at_sequence": 2,
        "resources/derived_refs": [DERIVED],
    }
    assert chained(stored) == []


def test_a_second_chain_of_a_session_does_not_reuse_a_ref() -> None:
    bus = SentientBus(SentientPeer("obj"), SentientPeer("goal"))
    bus.submit("obj", OBJECTIVES)
    again = {"message_id": "msg-2", "metadata/request_id": "req-2"}
    assert rules(bus.peers["obj"].plan(replaced(OBJECTIVES, again)).findings) == []
    other = replaced(OBJECTIVES, {**again, "resources/source_refs/0/url": "https://vimeo.com/1"})
    assert rules(bus.peers["obj"].plan(other).findings) == [("/resources/source_refs/0/ref_id", "ref_reused")]
    elsewhere = replaced(other, {"metadata/session_id": "another"})
    assert rules(bus.peers["obj"].plan(elsewhere).findings) == []


# warnings


@pytest.mark.parametrize(
    ("said", "right"),
    [
        ("Successfully decomposed 2 objectives into 10 actionable goals", True),
        ("Successfully decomposed 2 objectives into 9 actionable goals", False),
        ("10 goals from 2 objectives", True),
        ("2 objectives, 11 Goals", False),
        ("Objective 1 is done. All goals are ready", True),
        ("Goals are ready", True),
        (None, True),
    ],
)
def test_goal_count(said: str | None, right: bool) -> None:
    expected = [] if right else [("/status/message", "goal_count")]
    assert chained({"status/message": said}) == expected


def test_goals_are_counted_over_all_objectives_and_only_for_goals() -> None:
    assert chained({"output/content/objective_2/goals": ["From store_1 (acquired from src_1), listen"]}) == [
        ("/status/message", "goal_count")
    ]
    assert chained({"output/content_type": "plan", "agent/name": "goal", "status/message": "11 goals"}) == []
    flat = {"output/content": ["a", "b"], "status/message": "2 goals"}
    assert chained(flat) == []
    assert chained({**flat, "output/content": {"objective_1": ["a", "b"]}}) == []


@pytest.mark.parametrize(
    ("path", "right"),
    [
        ("context/governance/audit.md", True),
        ("audit.md", False),
        ("/context/audit.md", False),
        ("~/context/audit.md", False),
        ("../context/audit.md", False),
        ("context/./audit.md", False),
        ("context//audit.md", False),
        ("C:/context/audit.md", False),
        ("https://host/audit.md", False),
        ("context\\audit.md", False),
        ("context/a\\audit.md", False),
        ("", False),
    ],
)
def test_governance_paths_are_relative_to_the_root(path: str, right: bool) -> None:
    found = judged(replaced(OBJECTIVES, {"audit/governance_files_consulted/1": path}))
    assert found == ([] if right else [("/audit/governance_files_consulted/1", "governance_path")])


@pytest.mark.parametrize("name", ["Mars/Olympus", "GMT+1"])
def test_the_time_zone_is_one_of_iana(name: str) -> None:
    assert judged(replaced(OBJECTIVES, {"timestamp/timezone": name})) == [("/timestamp/timezone", "timezone")]


def test_only_the_objective_agent_assigns_source_and_storage_refs() -> None:
    new = {**GOALS["resources"]["source_refs"][0], "ref_id": "src_2", "url": "https://example.org/another"}
    refs = [*GOALS["resources"]["source_refs"], new]
    assert chained({"resources/source_refs": refs}) == [("/resources/source_refs/1/ref_id", "ref_late")]
    assert chained({"resources/source_refs": refs, "output/content_type": "objectives"}) == []


@pytest.mark.parametrize("reasoning", [None, "", " \n\u3000"])
def test_reasoning_is_not_empty(reasoning: str | None) -> None:
    assert judged(replaced(OBJECTIVES, {"audit/reasoning": reasoning})) == [("/audit/reasoning", "reasoning")]


def test_error_code_and_message_are_there_exactly_when_there_is_an_error() -> None:
    assert judged(replaced(OBJECTIVES, {"error/error_code": "TIMEOUT"})) == [("/error/error_code", "error_fields")]
    assert judged(replaced(OBJECTIVES, {"error/has_error": True, "error/error_code": "TIMEOUT"})) == [
        ("/error/error_message", "error_fields")
    ]


OBTAIN = "Obtain video content from src_1 and store as store_1"


@pytest.mark.parametrize(
    ("objectives", "faulty"),
    [
        ([OBTAIN, "From store_1 (acquired from src_1), analyze speech"], None),
        ([OBTAIN, "From store_1, analyze speech"], 1),
        ([OBTAIN, "From store_1 (acquired from src_2), analyze speech"], 1),
        ([OBTAIN, "From store_1 (acquired from src_1), analyze speech", "From store_1, analyze faces"], None),
        ([OBTAIN, "Analyze speech", "From store_1, analyze faces", "From store_1, analyze text"], 2),
        (["From store_1, analyze speech (acquired from src_1)"], 0),
        (["Compare store_1 with store_1 (acquired from src_1)"], 0),
        (["Watch my_store_1 and store_12x"], None),
    ],
)
def test_provenance_among_objectives(objectives: list[str], faulty: int | None) -> None:
    found = judged(replaced(OBJECTIVES, {"output/content": objectives}))
    assert found == ([] if faulty is None else [(f"/output/content/{faulty}", "provenance")])


@pytest.mark.parametrize(
    ("goals", "faulty"),
    [
        (["Extract audio from store_1 (acquired from src_1)", "Transcribe store_1"], None),
        (["Extract audio from store_1", "Transcribe store_1 (acquired from src_1)"], 0),
        (["Download src_1 as store_1", "Verify store_1"], None),
        (["Verify store_1", "Download src_1 as store_1"], 0),
    ],
)
def test_provenance_in_each_objectives_goals(goals: list[str], faulty: int | None) -> None:
    content = {"objective_1": {"objective": "x", "goals": goals}, "objective_2": {"objective": "y", "goals": goals}}
    found = chained({"output/content": content, "status/message": None})
    expected = [(f"/output/content/objective_{n}/goals/{faulty}", "provenance") for n in (1, 2)]
    assert found == ([] if faulty is None else expected)


def test_provenance_binds_objectives_and_goals_only() -> None:
    plan = replaced(
        OBJECTIVES, {"output/content": ["Run on store_1"], "output/content_type": "plan", "agent/name": "obj"}
    )
    assert judged(plan) == []


def test_secrets_are_warned_about_and_never_quoted() -> None:
    secret = "sk-" + "a1B2" * 8
    plan = SentientPeer("obj").plan(
        replaced(OBJECTIVES, {"input/content": {"api_key": "hunter2", "note": f"use {secret}"}})
    )
    assert rules(plan.findings) == [("/input/content/api_key", "secret_like"), ("/input/content/note", "secret_like")]
    assert not any("hunter2" in one.message or secret in one.message for one in plan.findings)


def test_a_message_full_of_faults_has_a_bounded_list() -> None:
    names = ["audit.md"] * 5_000
    assert len(judged(replaced(OBJECTIVES, {"audit/governance_files_consulted": names}))) == 100
    assert len(judged(replaced(OBJECTIVES, {"resources/source_refs": [None] * 5_000}))) == 100


def test_the_given_message_is_not_modified() -> None:
    before = copy.deepcopy(GOALS)
    chained({})
    assert before == GOALS


def test_an_out_of_scope_message_is_complete() -> None:
    assert check_shape(OUT_OF_SCOPE) == ()


def test_a_text_that_names_very_many_refs_is_read_once() -> None:
    """Reading it once for every ref, 100 000 times 1 MB, would take hours."""
    text = "src_1 " + " ".join(f"store_{n}" for n in range(1, 100_001))
    assert judged(replaced(OBJECTIVES, {"output/content": [text]})) == []


def test_a_status_message_of_a_megabyte_of_numbers_is_read_quickly() -> None:
    assert chained({"status/message": "9 a " * 250_000 + "goals"}) == [("/status/message", "goal_count")]
