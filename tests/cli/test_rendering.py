"""Text for a terminal: escaped, aligned, cut to its width."""

import subprocess
import time
from collections.abc import Iterator
from datetime import UTC, datetime, timedelta

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.cli.app.message_text import artifact, body_line, event_line, message_line
from aghbus.cli.app.output import dumps
from aghbus.cli.app.text import (
    MIN_LAST_COLUMN,
    counted,
    cut,
    fields,
    local_times,
    readable,
    safe,
    shell,
    size,
    span,
    table,
    width,
    wrapped,
)
from aghbus.cli.commands.status import counter_lines
from aghbus.protocol.base.text import escape

HOSTILE = "\x1b[31mred\x07\r\n\u202egnp.exe\u200b\x9b2J\x7f"
FORBIDDEN = {
    *map(chr, range(0x20)),
    *map(chr, range(0x7F, 0xA0)),
    *"\u200b\u200e\u200f\u202a\u202b\u202c\u202d\u202e\u2028\u2029\u2066\u2067\u2068\u2069\ufeff",
}


def is_harmless(text: str) -> bool:
    return not FORBIDDEN & set(text.replace("\n", ""))


@given(st.text())
def test_safe_is_escape(text: str) -> None:
    assert safe(text) == escape(text)
    assert is_harmless(safe(text))
    assert "\n" not in safe(text)


@given(st.lists(st.tuples(st.text(), st.text()), max_size=5), st.integers(0, 60))
def test_a_table_keeps_its_lines_and_its_width(rows: list[tuple[str, str]], columns: int) -> None:
    text = table(["ONE", "TWO"], rows, columns)
    lines = text.split("\n")
    assert len(lines) == len(rows) + 1
    assert is_harmless(text)
    first = max(width(safe(row[0])) for row in [*rows, ("ONE", "")])
    if columns:
        assert all(width(line) <= first + 2 + max(16, columns - first - 2) for line in lines)


@given(st.text(), st.integers(1, 20))
def test_cut_never_exceeds(text: str, columns: int) -> None:
    assert width(cut(text, columns)) <= columns or width(cut(text, columns)) == 1


def test_wide_and_combining_characters_are_measured() -> None:
    assert width("日本") == 4
    assert width("e\u0301") == 1
    assert cut("日本語", 5) == "日本…"


MESSAGE = {
    "seq": 7,
    "id": HOSTILE,
    "direction": "in",
    "kind": "say",
    "sender": HOSTILE,
    "to": HOSTILE,
    "thread_id": HOSTILE,
    "direct_id": None,
    "work_id": None,
    "trust": HOSTILE,
    "received_ms": 1_776_366_200_000,
}


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("say", {"text": HOSTILE, "artifacts": [{"uri": HOSTILE}]}),
        ("capability", {"capability": {"id": HOSTILE, "summary": HOSTILE}}),
        ("receipt", {"status": HOSTILE, "reason_code": HOSTILE, "detail": HOSTILE}),
        ("trace", {"state": HOSTILE, "message": HOSTILE, "result": {HOSTILE: HOSTILE}, "artifact_refs": [HOSTILE]}),
        ("whois", {"type": HOSTILE, "query": HOSTILE}),
        (HOSTILE, {}),
        ("say", {}),
        ("capability", {"capability": 7}),
    ],
)
def test_a_message_is_one_harmless_line(kind: str, body: dict[str, object]) -> None:
    message = {**MESSAGE, "kind": kind, "envelope": {"body": body}}
    change = {"outcome": "ignored", "reason": HOSTILE, "before": None, "after": HOSTILE}
    for line in (body_line(kind, body), message_line(message)):
        assert is_harmless(line)
        assert "\n" not in line
    event = event_line({"seq": 7, "type": "envelope", "message": message, "work": change})
    assert is_harmless(event)
    assert "\n" not in event


@pytest.mark.parametrize(
    ("kind", "body"),
    [
        ("say", {"text": "L" * 200_000}),
        ("capability", {"capability": {"id": "a.b", "summary": "\x1b" * 200_000}}),
        ("receipt", {"status": "rejected", "detail": "字" * 200_000}),
        ("trace", {"state": "working", "message": "L" * 200_000, "result": {"log": "L" * 200_000}}),
    ],
)
def test_a_huge_text_is_cut_in_a_line_and_its_length_is_shown(kind: str, body: dict[str, object]) -> None:
    line = body_line(kind, body)
    assert len(line) < 5_000
    assert "…” (200000 characters)" in line
    assert is_harmless(line)


def test_a_gap_names_the_last_missing_sequence() -> None:
    assert "#41" in event_line({"seq": 41, "type": "gap", "message": None, "work": None})


@given(st.text())
def test_json_is_ascii_and_one_line(text: str) -> None:
    line = dumps({"text": text, text: [text]})
    assert line.isascii()
    assert not FORBIDDEN - {"\x7f"} & set(line)


@given(st.text(st.characters(min_codepoint=32, max_codepoint=126), min_size=1, max_size=30))
def test_a_pasted_hint_is_one_word_of_the_shell(text: str) -> None:
    done = subprocess.run(["sh", "-c", f"printf %s {shell(text)}"], capture_output=True, check=True)
    assert done.stdout.decode() == text


def test_fields_without_a_value_are_left_out() -> None:
    assert fields([("a", None), ("bb", ""), ("ccc", 0), ("d", "x\ny")]) == "ccc  0\nd    x\\ny"


def test_values_are_broken_between_words_only() -> None:
    shown = fields([("broker", "up, nats://127.0.0.1:4222, round trip 1 ms"), ("at", "x" * 40)], columns=30)
    assert shown.splitlines() == [
        "broker  up,",
        "        nats://127.0.0.1:4222,",
        "        round trip 1 ms",
        "at      " + "x" * 40,
    ]


@given(st.text(st.characters(exclude_categories=["Cs", "Cc", "Zl", "Zp"])), st.integers(20, 100))
def test_a_broken_text_has_its_words_and_its_width(text: str, columns: int) -> None:
    lines = wrapped("ok    ", text, columns).split("\n")
    assert " ".join(line[6:] for line in lines) == text
    assert all(line[:6] == ("      " if number else "ok    ") for number, line in enumerate(lines))
    assert all(" " not in line[6:] for line in lines if width(line) > max(columns, 6 + MIN_LAST_COLUMN))


@pytest.fixture
def in_india(monkeypatch: pytest.MonkeyPatch) -> Iterator[None]:
    """A user five and a half hours before UTC."""
    monkeypatch.setenv("TZ", "IST-5:30")
    time.tzset()
    yield
    monkeypatch.undo()
    time.tzset()


@pytest.mark.parametrize(("days", "shown"), [(1, "tomorrow 12:00"), (-1, "yesterday 12:00")])
def test_times_of_sentences_are_local(in_india: None, days: int, shown: str) -> None:
    noon = datetime.now().replace(hour=12, minute=0, second=0, microsecond=0)
    other = (noon + timedelta(days=days)).astimezone(UTC)
    assert local_times(f"expires {other:%Y-%m-%dT%H:%M:%SZ}; x") == f"expires {shown}; x"
    assert local_times(f"at {noon.astimezone(UTC):%Y-%m-%d %H:%M:%S} UTC") == "at 12:00:00"
    assert local_times("since 2020-02-28T19:00:00Z") == "since 2020-02-29 00:30"
    assert local_times("at 2020-99-28T19:00:00Z, 2020-02-28") == "at 2020-99-28T19:00:00Z, 2020-02-28"


def test_counters_have_a_line_for_each_part_and_no_zeros() -> None:
    shown = counter_lines({"outbox.published": 2, "receive.early": 0, "outbox.retried": 1, "acks": 3})
    assert shown == ["counters", "  acks    acks 3\n  outbox  published 2, retried 1"]
    assert counter_lines({"outbox.published": 0}) == []


def test_one_is_singular() -> None:
    assert [counted(number, "open work") for number in (0, 1, 2)] == ["0 open works", "1 open work", "2 open works"]


def test_units() -> None:
    assert [span(value) for value in (0, 42.9, 190, 18_120, 273_600, -5)] == [
        "0s",
        "42s",
        "3m 10s",
        "5h 2m",
        "3d 4h",
        "0s",
    ]
    assert [size(value) for value in (0, 1023, 1536, 5 << 30)] == ["0 B", "1023 B", "1.5 KiB", "5.0 GiB"]


def test_a_narrow_table_keeps_ids_and_cuts_the_other_columns() -> None:
    rows = [
        (
            "work_0b7341c6c140e542e2aba3de6f7b925c",
            "submitted",
            "for a-peer-with-a-long-name",
            "unverified",
            "a long text " * 9,
        )
    ]
    lines = table(["WORK", "STATE", "PEER", "TRUST", "TEXT"], rows, 80).split("\n")
    assert max(map(width, lines)) <= 80
    assert lines[1].startswith(rows[0][0])
    assert table(["WORK", "STATE", "PEER", "TRUST", "TEXT"], rows, 0).split("\n")[1] == "  ".join(rows[0]).rstrip()


def test_an_id_in_a_later_column_stays_whole_and_optional_columns_give_way() -> None:
    titles = ["SEQ", "STATE", "FROM", "WORK", "MESSAGE"]
    rows = [("12", "ready", "a-peer-with-a-long-name", "work_0b7341c6c140e542e2aba3de6f7b925c", "a long text " * 9)]
    lines = table(titles, rows, 60, ids=("WORK",), optional=("STATE",)).split("\n")
    assert max(map(width, lines)) <= 60
    assert lines[0].split() == ["SEQ", "FROM", "WORK", "MESSAGE"]
    assert rows[0][3] in lines[1]
    assert table(titles, rows, 120, ids=("WORK",), optional=("STATE",)).startswith("SEQ  STATE")


def test_columns_with_wide_characters_and_marks_are_aligned() -> None:
    rows = [("日本", "x"), ("\u2764\ufe0f", "x"), ("e\u0301", "x"), ("plain", "x")]
    offsets = {width(line[: line.rindex("x")]) for line in table(["A", "B"], rows, 0).split("\n")[1:]}
    assert offsets == {len("plain") + 2}


def test_texts_of_a_result_are_shown_line_by_line() -> None:
    shown = readable({"exit_code": 0, "stdout": "one\ntwo\x1b[31m\n", "stderr": "", "output": {"a": [1]}})
    assert shown == 'exit_code:  0\nstdout:\n  one\n  two\\x1b[31m\nstderr:  \noutput:  {"a":[1]}'
    assert readable([1, "x"]) == '[1,"x"]'


@pytest.mark.parametrize(
    ("entry", "shown"),
    [
        ({"name": "a.xml", "uri": "agh://artifacts/w/a.xml", "size": 2048}, "a.xml  2.0 KiB  agh://artifacts/w/a.xml"),
        ({"uri": "s3://bucket/\x1b[31m"}, "s3://bucket/\\x1b[31m"),
        ({"name": "only", "size": "big"}, "only"),
        ({"type": "x"}, '{"type":"x"}'),
        ("text", '"text"'),
    ],
)
def test_an_artifact_is_shown_by_name_size_and_uri(entry: object, shown: str) -> None:
    assert artifact(entry) == shown
