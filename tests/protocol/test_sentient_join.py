"""The join of branches as a pure function."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.protocol.formats.sentient.join import (
    Branch,
    branches_in,
    end_message,
    joined_body,
    merged_log,
    shorter_results,
)
from aghbus.protocol.formats.sentient.log import LOG_BYTES, SentientLogEntry, record_of
from aghbus.protocol.formats.sentient.message import SentientMessage, check_shape
from aghbus.protocol.formats.sentient.native import SentientIds
from tests.support.sentient_peers import NOW

STATES = ("completed", "failed", "canceled")
ANYTHING = st.one_of(st.none(), st.booleans(), st.integers(-1, 9), st.text(max_size=3), st.just([]), st.just({}))
ERRORS = st.dictionaries(st.sampled_from(["error_code", "error_message", "retry_count", "recoverable"]), ANYTHING)
RESULTS = st.one_of(
    st.none(),
    st.integers(),
    st.text(max_size=9),
    st.lists(st.integers(), max_size=3),
    st.fixed_dictionaries(
        {"content": st.text(max_size=9)},
        optional={"partial": st.sampled_from([True, False, 1]), "error": st.one_of(ERRORS, st.text(max_size=3))},
    ),
)
BODIES = st.fixed_dictionaries(
    {"state": st.sampled_from(STATES)},
    optional={
        "message": st.text(max_size=300),
        "result": RESULTS,
        "artifact_refs": st.lists(st.fixed_dictionaries({"uri": st.sampled_from("abc")}), max_size=4),
    },
)
ENTRIES = st.builds(SentientLogEntry, st.just("20260501"), st.text("ab\n", max_size=4))
BRANCHES = st.lists(
    st.builds(
        Branch, st.sampled_from(["one", "two", "three"]), BODIES, st.none(), st.lists(ENTRIES, max_size=3).map(tuple)
    ),
    min_size=2,
    max_size=6,
)


def branch(agent: str, state: str = "completed", **body: Any) -> Branch:
    return Branch(agent, {"state": state, **body})


@given(BRANCHES)
def test_every_branch_is_in_the_result_in_order(branches: list[Branch]) -> None:
    content = joined_body(branches)["result"]["content"]
    assert [(part["agent"], part["state"]) for part in content] == [(one.agent, one.body["state"]) for one in branches]
    assert [part.get("result") for part in content] == [one.body.get("result") for one in branches]


@given(BRANCHES)
def test_the_state_follows_from_how_many_branches_completed(branches: list[Branch]) -> None:
    body = joined_body(branches)
    done = [one for one in branches if one.body["state"] == "completed"]
    assert body["state"] == ("completed" if done else "failed")
    assert body["message"].startswith(f"{len(done)} of {len(branches)} branches completed")
    assert ("error" in body["result"]) is (len(done) < len(branches))
    assert (body["result"]["status"] == "failed") is (not done)
    assert ("partial" in body["result"]) is (body["result"]["status"] == "partial")
    if body["result"]["status"] == "success":
        assert len(done) == len(branches)


@given(BRANCHES, st.randoms())
def test_the_status_does_not_depend_on_the_order(branches: list[Branch], random: Any) -> None:
    before = joined_body(branches)
    random.shuffle(branches)
    after = joined_body(branches)
    assert (before["state"], before["result"]["status"]) == (after["state"], after["result"]["status"])


@given(BRANCHES)
def test_the_join_is_a_valid_message_with_a_log_entry(branches: list[Branch]) -> None:
    body = joined_body(branches)
    message = end_message(body, branches, message_id="m", now=NOW, chain=SentientIds("s", "r"))
    assert check_shape(message) == ()
    record = record_of(msgspec.convert(message, SentientMessage))
    assert record["ends_chain"]
    assert (record["session_id"], record["request_id"], record["message_id"]) == ("s", "r", "m")
    assert f"[STATUS: {body['result']['status']}] {len([b for b in branches if b.completed])} of " in record["entry"]


@given(BRANCHES)
def test_merged_log_has_each_entry_once_in_branch_order(branches: list[Branch]) -> None:
    merged = merged_log(branches)
    assert len(set(merged)) == len(merged)
    assert set(merged) == {entry for one in branches for entry in one.log}
    first = list(dict.fromkeys(branches[0].log))
    assert list(merged[: len(first)]) == first


@given(BRANCHES)
def test_each_artifact_ref_is_in_the_join_once(branches: list[Branch]) -> None:
    refs = [ref["uri"] for ref in joined_body(branches).get("artifact_refs", [])]
    assert len(set(refs)) == len(refs)
    assert set(refs) == {ref["uri"] for one in branches for ref in one.body.get("artifact_refs", ())}


@given(BRANCHES)
def test_a_stored_branch_is_read_back(branches: list[Branch]) -> None:
    assert [msgspec.json.decode(msgspec.json.encode(one), type=Branch) for one in branches] == branches


def test_a_partial_branch_makes_the_join_partial_without_an_error() -> None:
    body = joined_body([branch("a"), branch("b", result={"partial": True})])
    assert (body["state"], body["result"]["status"], body["result"]["partial"]) == ("completed", "partial", True)
    assert "error" not in body["result"]


def test_message_names_failed_branches_and_error_is_of_the_first() -> None:
    fault = {"error_code": "TIMEOUT", "error_message": "too late", "retry_count": 1, "recoverable": True}
    failed = [branch("b", "failed", message="x" * 900, result={"error": fault}), branch("c", "canceled")]
    body = joined_body([branch("a"), *failed])
    assert body["message"].startswith("1 of 3 branches completed; failed: b (xxx")
    assert body["message"].endswith(", c (canceled)")
    assert len(body["message"]) < 300
    assert body["result"]["error"] == fault
    native = joined_body([branch("a"), branch("d", "failed", message="no time")])["result"]["error"]
    assert (native["error_code"], native["error_message"], native["retry_count"]) == (
        "PROCESSING_ERROR",
        "no time",
        None,
    )


def test_many_failed_branches_are_counted() -> None:
    body = joined_body([branch(f"a{number}", "failed") for number in range(9)])
    assert body["message"].endswith("a4 (failed), 4 more")


def test_large_results_of_branches_are_truncated_one_by_one() -> None:
    body = joined_body([branch("a", result={"content": "x" * 200_000}), branch("b", result={"content": "small"})])
    large, small = shorter_results(body)["result"]["content"]
    assert large["result"]["truncated"] == ["content"]
    assert len(json.dumps(large)) < 70_000
    assert small["result"] == {"content": "small"}


def test_the_merged_log_is_bounded() -> None:
    entries = [SentientLogEntry("20260501", f"{number}" * 3_000) for number in range(9)]
    merged = merged_log(
        [Branch("a", {"state": "completed"}, None, tuple(entries[:5])), Branch("b", {}, None, tuple(entries))]
    )
    assert len(msgspec.json.encode(merged)) <= LOG_BYTES


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        (b'{"a": 1}', [b'{"a": 1}']),
        (b' [{"a": 1, "a": 2}, 3 ]', [b'{"a": 1, "a": 2}', b"3"]),
        (b"[]", [b"[]"]),
        (b"[1, 2", [b"[1, 2"]),
        (b"[" * 5_000, [b"[" * 5_000]),
        (b"\xff", [b"\xff"]),
    ],
)
def test_an_array_is_split_into_the_texts_of_its_messages(text: bytes, parts: list[bytes]) -> None:
    assert list(branches_in(text)) == parts
