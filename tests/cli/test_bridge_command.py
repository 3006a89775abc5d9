"""`aghctl bridge` without a daemon: its command line, reading of lines, and names of three words."""

import json
import os
import socket
import subprocess
import sys
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.cli.app.findings import print_findings
from aghbus.cli.app.input import quoted_text
from aghbus.cli.app.output import Output
from aghbus.cli.app.registry import PROGRAM
from aghbus.cli.bridge.pending import UnansweredWorks, reports_on_work
from aghbus.cli.bridge.submit import MAX_LINE_BYTES, REQUEST_FIELDS, read_lines
from aghbus.cli.commands.bridge import FORMATS
from aghbus.cli.commands.convert import FORMATS as CONVERTED
from aghbus.cli.main import entry
from aghbus.protocol.api.bridge import BridgeSubmitRequest
from aghbus.protocol.formats import registry


def ctl(*args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "aghbus.cli", *args]
    env = {"PATH": os.environ["PATH"], "XDG_RUNTIME_DIR": "/nonexistent"}
    return subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False, env=env)


def test_the_formats_are_those_that_have_adapters() -> None:
    assert registry.FORMATS == FORMATS
    assert ("agh", *registry.FORMATS) == CONVERTED


def test_the_members_of_a_line_with_meta_are_those_of_the_api() -> None:
    assert set(REQUEST_FIELDS) == set(BridgeSubmitRequest.__struct_fields__)


@pytest.mark.parametrize(
    ("words", "name"),
    [
        (["bridge", "sacp", "log", "--limit", "1"], "bridge sacp log"),
        (["bridge", "sacp", "--", "log"], "bridge"),
        (["bridge", "sacp"], "bridge"),
        (["bridge"], "bridge"),
        (["work", "open"], "work open"),
        (["nothing"], ""),
    ],
)
def test_the_longest_name_is_the_command(words: list[str], name: str) -> None:
    assert PROGRAM.longest(words) == name


def test_three_words_are_offered_word_by_word() -> None:
    assert list(PROGRAM.below("bridge")) == ["humaninloop", "sentient", "agentos", "sacp", "synadia"]
    assert list(PROGRAM.below("bridge sacp")) == ["log", "prompt"]


@pytest.mark.parametrize(
    "words",
    [
        ["bridge"],
        ["bridge", "xml"],
        ["bridge", "sacp", "--once"],
        ["bridge", "sacp", "--accept", "kind=say"],
        ["bridge", "sacp", "--meta", "--", "cat"],
        ["bridge", "sacp", "--work", "w", "--", "cat"],
        ["bridge", "sacp", "--", "no-such-command-here"],
    ],
)
def test_contradictions_are_usage_errors(words: list[str]) -> None:
    done = ctl(*words)
    assert (done.returncode, done.stdout) == (2, b"")
    assert done.stderr.startswith(b"aghctl: ")


def test_subcommand_of_another_format_gets_a_hint() -> None:
    done = ctl("bridge", "humaninloop", "prompt")
    assert (done.returncode, done.stdout) == (2, b"")
    assert b"`bridge sacp prompt`" in done.stderr
    assert b"`bridge humaninloop apply`" in done.stderr
    assert b"after --" in done.stderr


def test_submitting_lines_without_a_daemon_exits_3() -> None:
    done = ctl("bridge", "sacp", "--send-only", "--timeout", "0.1s", stdin=b"hello\n")
    assert done.returncode == 3


def test_the_prompt_has_its_example_and_needs_no_daemon() -> None:
    text = ctl("bridge", "sacp", "prompt").stdout.decode()
    answer = json.loads(ctl("bridge", "sacp", "prompt", "-o", "json").stdout)
    assert answer == {"v": 1, "prompt": answer["prompt"]}
    assert answer["prompt"].strip() == text.strip()
    assert '"thought": "I need to calculate the sum. 5+5 is 10."' in text


@given(
    st.lists(st.binary(max_size=40).filter(lambda line: b"\n" not in line), max_size=20),
    st.booleans(),
    st.integers(5, 50),
)
def test_lines_are_split_at_line_feeds_in_any_packets(lines: list[bytes], ended: bool, size: int) -> None:
    text = b"\n".join(lines) + (b"\n" if ended else b"")
    reader, writer = socket.socketpair(socket.AF_UNIX, socket.SOCK_SEQPACKET)  # each packet is read by itself
    with reader:
        with writer:
            for start in range(0, len(text), size):
                writer.send(text[start : start + size])
        assert list(read_lines(reader.fileno())) == [line for line in lines if line.strip()]


def test_a_line_without_an_end_is_cut_at_a_bound(tmp_path: Path) -> None:
    file = tmp_path / "endless"
    file.write_bytes(b"x" * (2 * MAX_LINE_BYTES) + b"\nnext\n")
    with file.open("rb") as stream:
        first, second = read_lines(stream.fileno())
    assert MAX_LINE_BYTES <= len(first) <= MAX_LINE_BYTES + 100_000
    assert second == b"next"


@pytest.mark.parametrize(
    ("line", "text"),
    [
        ("plain words", None),
        ('{"status": 1}', None),
        ('"two\\nlines"', "two\nlines"),
        ('"not closed', None),
        ('"a" and more', None),
        ('"\\ud800"', "\ud800"),
    ],
)
def test_a_json_string_is_the_text_of_an_sacp_agent(line: str, text: str | None) -> None:
    assert quoted_text(line) == text


def test_findings_are_escaped_for_people_and_whole_for_machines(capsys: pytest.CaptureFixture[str]) -> None:
    finding: dict[str, Any] = {"path": "/a\x1b[2J", "rule": "type", "severity": "error", "message": "is\nforged\u202e"}
    print_findings(Output("human"), "line", 3, [finding])
    told = capsys.readouterr().err
    assert told == "line 3: error /a\\x1b[2J type: is\\nforged\\u202e\n"
    print_findings(Output("jsonl"), "seq", 9, [finding])
    assert json.loads(capsys.readouterr().err) == {"seq": 9, **finding}


def test_help_shows_that_the_trailing_command_is_optional(capsys: pytest.CaptureFixture[str]) -> None:
    assert entry(["bridge", "--help"]) == 0
    assert "usage: aghctl bridge FORMAT [options] [-- COMMAND ...]" in capsys.readouterr().out


def words(**more: Any) -> dict[str, Any]:
    return {"kind": "say", "channel": "default", "work_id": "work_1", "work_role": "target", **more}


def test_works_printed_for_our_agent_count_as_unanswered() -> None:
    printed = UnansweredWorks("sacp")
    for item in (
        words(),
        words(),
        words(channel="ops"),
        words(work_id="work_2", work_role="initiator"),
        words(work_id="work_3", kind="trace"),
        words(work_id=None, work_role=None),
    ):
        printed.add(item)
    assert printed.waiting(None) == [("default", "work_1"), ("ops", "work_1")]
    printed.forget("default", "work_1")
    assert (printed.waiting("default"), printed.waiting("ops")) == ([], [("ops", "work_1")])
    agentos = UnansweredWorks("agentos")
    agentos.add(words())
    assert agentos.waiting(None) == []


@pytest.mark.parametrize(
    ("format", "ask", "reporting"),
    [
        ("sacp", {"text": "x"}, True),
        ("sacp", {"text": "x", "target": "b"}, False),
        ("humaninloop", {"text": '{"success":true}', "target": "b"}, True),
        ("humaninloop", {"message": {"success": True}}, True),
        ("humaninloop", {"message": {"task": {}}}, False),
        ("humaninloop", {"text": "no json"}, False),
        ("agentos", {"text": "{}"}, False),
    ],
)
def test_which_messages_report_on_a_work(format: str, ask: dict[str, Any], reporting: bool) -> None:
    assert reports_on_work(format, ask) is reporting
