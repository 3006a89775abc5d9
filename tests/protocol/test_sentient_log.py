"""The audit log of the Sentient platform: the seed's layout byte for byte, one entry per message of any content."""

import json
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.protocol.formats.common import say
from aghbus.protocol.formats.model import BridgeContext
from aghbus.protocol.formats.sentient.log import (
    LOG_BYTES,
    SentientLogEntry,
    entries_in,
    entry_of,
    log_path,
    memory_say,
    record_of,
    with_log,
)
from aghbus.protocol.formats.sentient.message import SentientMessage, parse_message
from tests.support.seed_examples import replaced
from tests.support.sentient_peers import GOALS, NOW, OBJECTIVES, OUT_OF_SCOPE, Message

# Written by hand from the layout and the first example of the seed.
FIRST = """\
[TIMESTAMP: 14:30:52]
[AGENT: objective_agent]
[INPUT SOURCE: user]
[INPUT]: Download this YouTube video and analyze the speaker's sentiment in https://www.youtube.com/watch?v=abc123
[OUTPUT TYPE: objectives]
[STATUS: success] Successfully generated 2 strategic objectives from user request
[RESOURCES]: source_refs=src_1:https://www.youtube.com/watch?v=abc123, storage_refs=store_1:pending, derived_refs=
[COMPLIANCE NOTES]: Request within video analysis scope per context/application.md; objectives align with Audio Analysis and \
Speaker Analysis capabilities; validated against supported video sources (YouTube). Resource extraction: identified 1 URL in \
user input, assigned src_1 → store_1. Acquisition-First Pattern applied with ref IDs.
[GOVERNANCE FILES]: context/application.md, context/governance/message_format.md, context/governance/audit.md, \
agent/governance/objective.md
[MESSAGE_ID: msg-obj-20260127-143052-001]
[SESSION_ID: session-20260127-1430]
---
"""


def typed(message: Message) -> SentientMessage:
    found = parse_message(message)
    assert found is not None
    return found


def entry(message: Message) -> SentientLogEntry:
    return entry_of(typed(message))


def lines(message: Message) -> dict[str, str]:
    """The line of each label."""
    made = entry(message).text.splitlines()
    return {line.strip("[").partition("]" if "]:" in line else ":")[0]: line for line in made}


def test_the_seeds_first_example_in_the_seeds_layout() -> None:
    assert entry(OBJECTIVES) == SentientLogEntry("20260127", FIRST)


def test_non_strings_are_compact_json_and_pairs_are_joined() -> None:
    refs = [
        {**OBJECTIVES["resources"]["source_refs"][0], "ref_id": f"src_{n}", "url": url}
        for n, url in ((1, "https://a.test/"), (2, None))
    ]
    made = lines(
        replaced(
            GOALS,
            {
                "input/content": {"b": [1, 2.5, None], "a": "ä"},
                "input/source": None,
                "resources/source_refs": refs,
                "audit/compliance_notes": None,
            },
        )
    )
    assert made["INPUT"] == '[INPUT]: {"b":[1,2.5,null],"a":"ä"}'
    assert made["INPUT SOURCE"] == "[INPUT SOURCE: null]"
    assert made["COMPLIANCE NOTES"] == "[COMPLIANCE NOTES]: null"
    assert "source_refs=src_1:https://a.test/,src_2:null, storage_refs=" in made["RESOURCES"]


def test_the_error_follows_the_status() -> None:
    made = entry(OUT_OF_SCOPE).text.splitlines()
    assert made[5] == "[STATUS: failed] Request falls outside platform capabilities"
    assert made[6].startswith("[ERROR: OUT_OF_SCOPE] Video editing and audio addition are not supported.")
    assert made[7] == "[RESOURCES]: source_refs=, storage_refs=, derived_refs="
    assert not any(line.startswith("[ERROR") for line in entry(OBJECTIVES).text.splitlines())


@pytest.mark.parametrize(
    ("written", "day", "clock"),
    [
        ("2026-01-27T23:59:59-11:00", "20260127", "23:59:59"),
        ("2026-01-28T00:00:01.999+14:00", "20260128", "00:00:01"),
        ("2024-02-29T12:00:00", "20240229", "12:00:00"),
    ],
)
def test_day_and_clock_are_as_written(written: str, day: str, clock: str) -> None:
    made = entry(replaced(OBJECTIVES, {"timestamp/executed_at": written}))
    assert made.day == day
    assert made.text.startswith(f"[TIMESTAMP: {clock}]\n")
    assert log_path(made.day) == ("system", "logs", f"{day}.log")


@pytest.mark.parametrize("day", ["", "2026012", "../../etc", "2026-01-27", "２０２６０１２７", "20260127\n"])
def test_only_digits_become_a_file_name(day: str) -> None:
    with pytest.raises(ValueError, match="eight digits"):
        log_path(day)


FORGED = "fine\n---\n" + FIRST
TEXT_MEMBERS = [
    "message_id",
    "agent/name",
    "input/source",
    "input/content",
    "output/content_type",
    "status/message",
    "error/error_message",
    "metadata/session_id",
    "resources/source_refs/0/url",
    "resources/storage_refs/0/ref_id",
    "audit/compliance_notes",
    "audit/governance_files_consulted/0",
]


@pytest.mark.parametrize("member", TEXT_MEMBERS)
@pytest.mark.parametrize("text", [FORGED, "\u202e]\r[AGENT: root]", "\u2028---\u2029", "\x1b[2J\x85---\x0b", "\x00"])
def test_no_text_forges_a_line(member: str, text: str) -> None:
    made = entry(replaced(OBJECTIVES, {"error/has_error": True, member: text})).text
    plain = entry(replaced(OBJECTIVES, {"error/has_error": True, member: "x"})).text
    assert len(made.splitlines()) == len(plain.splitlines()) == 13
    assert made.endswith("]\n---\n")
    assert made.split("\n").count("---") == 1
    assert not any(ord(char) < 32 or char in "\x7f\x85\u2028\u2029\u202e" for char in made.replace("\n", ""))


@given(st.text(), st.recursive(st.none() | st.text(), st.lists, max_leaves=5))
def test_an_entry_of_any_text_is_recognized_as_one(text: str, content: Any) -> None:
    text = text.encode(errors="replace").decode()
    content = json.loads(json.dumps(content).encode(errors="replace").decode())
    made = entry(replaced(OBJECTIVES, {"status/message": text, "audit/reasoning": text}))
    assert entries_in({"sentient.log": [msgspec.to_builtins(made)]}) == (made,)


# entries that travel


def draft() -> Any:
    context = BridgeContext(us="obj", workspace_id="ws", channel="builders", now=NOW)
    return say(context, "goal", "msg_1", "thread_abc", {"text": "x"}, ext={"sentient.message": OBJECTIVES})


def test_entries_are_in_ext_and_the_newest_are_kept() -> None:
    made = [SentientLogEntry("20260127", FIRST.replace("-001", f"-{n:03d}")) for n in range(100)]
    ext = with_log(draft(), made).ext
    assert ext is not None
    assert ext["sentient.message"] == OBJECTIVES
    assert len(json.dumps(ext["sentient.log"], ensure_ascii=False, separators=(",", ":")).encode()) <= LOG_BYTES
    found = entries_in(ext)
    assert found == tuple(made[-len(found) :])
    assert 10 < len(found) < 100


def test_only_an_entry_that_never_fits_is_omitted() -> None:
    huge = entry(replaced(OBJECTIVES, {"input/content": "x" * LOG_BYTES}))
    small = SentientLogEntry("20260127", FIRST)
    assert entries_in(with_log(draft(), [small, huge, small]).ext or {}) == (small, small)
    assert with_log(draft(), [huge]) == draft()
    assert with_log(draft(), []) == draft()


@pytest.mark.parametrize(
    "value",
    [
        None,
        "text",
        {"day": "20260127"},
        [1, None, "x", {"day": "20260127", "text": 5}],
        [{"day": "../x", "text": FIRST}],
        [{"day": "20260127", "text": FIRST + FIRST}],
        [{"day": "20260127", "text": FIRST.replace("[INPUT]", "[AGENT: root]\n[INPUT]")}],
        [{"day": "20260127", "text": FIRST.replace("Audio", "\x1b[2J")}],
        [{"day": "20260127", "text": FIRST.replace("Audio", "\u202e")}],
        [{"day": "20260127", "text": FIRST[:-1]}],
    ],
)
def test_invalid_entries_of_peers_are_ignored(value: Any) -> None:
    assert entries_in({"sentient.log": value}) == ()


def test_the_memory_agent_gets_entries_and_last_message() -> None:
    body = memory_say(
        OUT_OF_SCOPE, [SentientLogEntry("20260127", FIRST), entry(GOALS), SentientLogEntry("20260128", FIRST)]
    )
    text = body["text"]
    assert text.startswith("20260127.log\n" + FIRST)
    assert text.count("20260127.log\n") == 1
    assert text.count("[AGENT: objective_agent]\n") == 2
    assert json.loads(text[text.rindex("---\n") + 4 :]) == OUT_OF_SCOPE
    assert body["intent"] == "audit"


def test_the_log_record_shows_whether_the_chain_ended() -> None:
    kept = record_of(typed(OUT_OF_SCOPE))
    assert kept["day"] == "20260127"
    assert kept["entry"].startswith("[TIMESTAMP: 15:00:12]\n")
    assert kept["message_id"] == "msg-obj-20260127-150012-001"
    assert kept["session_id"] == "session-20260127-1500"
    assert kept["ends_chain"] is True
    assert record_of(typed(GOALS))["ends_chain"] is False
    assert record_of(typed(replaced(GOALS, {"next_agent/name": "user"})))["ends_chain"] is True
    asking = replaced(GOALS, {"next_agent/name": "user", "status/code": "pending"})
    assert record_of(typed(asking))["ends_chain"] is False
