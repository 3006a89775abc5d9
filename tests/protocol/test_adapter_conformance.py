"""Rules of the seeds that the adapters must not read too strictly or too loosely."""

import json
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aghbus.protocol.base.secret_patterns import secret_paths
from aghbus.protocol.formats.agentos.rules import check
from aghbus.protocol.formats.sentient.message import SentientMessage
from aghbus.protocol.formats.sentient.rules import quality_warnings
from aghbus.protocol.formats.timestamps import read_timestamp

VECTORS = Path(__file__).parent.parent / "vectors" / "seed_examples.jsonl"
EXAMPLES = [json.loads(line) for line in VECTORS.read_text().splitlines()]
GOALS = next(
    one["value"]
    for one in EXAMPLES
    if one["format"] == "sentient" and one["value"]["output"]["content_type"] == "goals"
)
QUERY = next(one["value"] for one in EXAMPLES if one["format"] == "agentos" and one["value"]["type"] == "query")


def rules_of(said: str, content: Any = None) -> list[str]:
    """The rules that the seed's Example 2 (ten goals) breaks with these words as its status message."""
    value = {**GOALS, "status": {"code": "success", "message": said}}
    if content is not None:
        value["output"] = {"content": content, "content_type": "goals"}
    return [finding.rule for finding in quality_warnings(msgspec.convert(value, SentientMessage))]


@pytest.mark.parametrize(
    "said",
    [
        "decomposed 2 objectives into actionable goals",
        "objective 1: 4 goals, objective 2: 6 goals",
        "10 goals from 2 objectives, 3 goals each at least",
        "1.9 goals a minute, 10 goals in all",
    ],
)
def test_a_number_of_other_things_is_not_a_goal_count(said: str) -> None:
    assert "goal_count" not in rules_of(said)


@pytest.mark.parametrize(
    "said", ["9 goals", "2 objectives into 9 actionable goals", "objective 1: 4 goals, objective 2: 5 goals"]
)
def test_a_wrong_goal_count_is_reported(said: str) -> None:
    assert "goal_count" in rules_of(said)


@pytest.mark.parametrize(
    "content",
    [
        {"objective_1": {"objective": "o", "goals": {"goal_1": "a", "goal_2": "b"}}, "objective_2": {"goals": ["c"]}},
        {"goals": {"objective_1": ["a", "b"], "objective_2": ["c"]}},
        {"goals": {"objective_1": {"goals": ["a", "b"]}, "objective_2": {"goals": {"goal_1": "c"}}}},
        {"goals": {"goal_1": "a", "goal_2": {"goal": "b"}, "goal_3": "c"}},
    ],
)
def test_goals_may_have_names_of_their_own(content: Any) -> None:
    assert "goal_count" not in rules_of("3 goals", content)
    assert "goal_count" in rules_of("4 goals", content)


def test_the_first_mention_in_an_object_of_goals_owes_its_provenance() -> None:
    content = {"objective_1": {"goals": {"goal_1": "Transcribe store_1", "goal_2": "Analyze store_1"}}}
    findings = quality_warnings(
        msgspec.convert({**GOALS, "output": {"content": content, "content_type": "goals"}}, SentientMessage)
    )
    assert [finding.path for finding in findings if finding.rule == "provenance"] == [
        "/output/content/objective_1/goals/goal_1"
    ]


@pytest.mark.parametrize(
    ("text", "seconds"),
    [
        ("2026-01-27T14:30:52+08", 1_769_495_452),
        ("2026-01-27T14:30:52-0130", 1_769_529_652),
        ("2026-01-27T14:30:52.1234567890123Z", 1_769_524_252),
    ],
)
def test_offsets_of_hours_and_fine_fractions_are_iso_8601(text: str, seconds: int) -> None:
    stamp = read_timestamp(text)
    assert stamp is not None
    assert stamp.seconds == seconds


@pytest.mark.parametrize(
    "text", ["2026-01-27T14:30:52+", "2026-01-27T14:30:52+8", "2026-01-27T14:30:52+24", "2026-01-27T14:30:52.Z"]
)
def test_other_time_zone_forms_are_invalid(text: str) -> None:
    assert read_timestamp(text) is None


def test_the_prefix_of_an_agentos_id_is_taken_as_written() -> None:
    uuid = "33333333-3333-4333-8333-33333333333A"
    named = {
        form: {finding.rule for finding in check({**QUERY, "id": form}, 0)}
        for form in (uuid, f"msg-{uuid}", f"MSG-{uuid}")
    }
    assert ["uuid" in rules for rules in named.values()] == [False, False, True]


@pytest.mark.parametrize("key", ["secret_key", "AWS_SECRET_ACCESS_KEY", "accessKey"])
def test_keys_of_cloud_accounts_look_like_secrets(key: str) -> None:
    assert list(secret_paths({"a": {key: "x"}})) == [("a", key)]


def test_fine_grained_tokens_are_secrets_and_other_keys_are_not() -> None:
    assert list(secret_paths(["use github_pat_11ABCDEFG0abcdefghij_klmn"])) == [(0,)]
    assert list(secret_paths({"primary_key": "id", "key": "v", "access_keys_count": 2})) == []
