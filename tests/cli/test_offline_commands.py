"""The offline commands have fixed output formats: run as processes over the conformance vectors."""

import json
import os
import subprocess
import sys
from collections import defaultdict
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given, settings
from hypothesis import strategies as st

from aghbus.cli.main import entry
from tests.support.daemons import Home

VECTORS = Path(__file__).parent.parent / "vectors"


def vectors(name: str) -> list[dict[str, Any]]:
    return [json.loads(line) for line in (VECTORS / name).read_bytes().split(b"\n") if line]


def ctl(*args: str, stdin: bytes = b"") -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "aghbus.cli.main", *args]
    return subprocess.run(command, input=stdin, capture_output=True, timeout=60, check=False)


def json_lines(output: bytes) -> list[dict[str, Any]]:
    return [json.loads(line) for line in output.split(b"\n") if line]


@pytest.mark.parametrize("name", ["envelopes.jsonl", "rules.jsonl"])
def test_check_gives_every_recorded_verdict(name: str, tmp_path: Path) -> None:
    by_time: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for case in vectors(name):
        by_time[case["now"]].append(case)
    for now, cases in by_time.items():
        file = tmp_path / f"{now}.jsonl"
        raws = [case.get("raw") or json.dumps(case["envelope"]) for case in cases]
        file.write_text("\n".join(raws) + "\n")
        done = ctl("envelope", "check", str(file), "--now", str(now))
        verdicts = json_lines(done.stdout)
        assert len(verdicts) == len(cases)
        for case, verdict in zip(cases, verdicts, strict=True):
            assert list(verdict) == ["id", "accept", "reason", "detail"]
            assert verdict["accept"] is case["accept"], case["name"]
            if case["accept"]:
                assert (verdict["reason"], verdict["detail"]) == (None, None)
            else:
                assert verdict["reason"] in case["reasons"], case["name"]
        assert done.returncode == (0 if all(case["accept"] for case in cases) else 1)


def test_check_of_accepted_envelopes_alone_exits_0() -> None:
    good = next(case for case in vectors("rules.jsonl") if case["accept"])
    done = ctl(
        "envelope", "check", "--now", str(good["now"]), stdin=json.dumps(good["envelope"]).encode() + b"\n\n  \n"
    )
    assert done.returncode == 0
    assert [verdict["accept"] for verdict in json_lines(done.stdout)] == [True]


def test_check_takes_any_bytes_and_splits_at_line_feeds_only() -> None:
    lines = [
        b"\xff\xfe\x00\x01",
        b'{"id":"a\xe2\x80\xa8b"',
        b"[" * 100_000,
        b'"' + b"x" * 1_500_000 + b'"',
        b"\x0b{}\x0c",
        b"null",
    ]
    done = ctl("envelope", "check", "-", stdin=b"\n".join(lines))
    verdicts = json_lines(done.stdout)
    assert [verdict["accept"] for verdict in verdicts] == [False] * len(lines)
    assert {verdict["reason"] for verdict in verdicts} == {"malformed"}
    assert done.returncode == 1
    assert done.stderr == b""


REFUSALS = {
    "reject_work": "work_closed",
    "container_mismatch": "work_container_mismatch",
    "actor_not_allowed": "actor_not_allowed",
    "invalid_transition": "invalid_transition",
}
"""Outcome in the vectors → printed reason (specification, section 6)."""


def test_replay_gives_every_recorded_step(tmp_path: Path, capsysbinary: pytest.CaptureFixture[bytes]) -> None:
    cases = vectors("lifecycles.jsonl")
    file = tmp_path / "all.jsonl"
    by_time: dict[int, list[dict[str, Any]]] = defaultdict(list)
    for case in cases:
        by_time[case["now"]].append(case)
    kinds: set[str] = set()
    for now, group in by_time.items():
        for case in group:  # one process each: the state of a receiver is not shared
            file.write_text("\n".join(json.dumps(envelope) for envelope in case["envelopes"]))
            assert entry(["envelope", "replay", str(file), "--now", str(now)]) == 0
            replayed = json_lines(capsysbinary.readouterr().out)
            assert [step["id"] for step in replayed] == [envelope["id"] for envelope in case["envelopes"]]
            for step, wanted in zip(replayed, case["steps"], strict=True):
                assert list(step) == ["id", "outcome", "state", "reason"]
                if "state" in wanted:
                    assert step["state"] == wanted["state"], case
                if wanted["outcome"] in REFUSALS:
                    assert step["outcome"] in ("ignored", "rejected")
                    assert step["reason"] == REFUSALS[wanted["outcome"]]
                else:
                    assert (step["outcome"], step["reason"]) == (wanted["outcome"], None)
                kinds.add(wanted["outcome"])
    assert kinds == {"opened", "advanced", "unchanged", *REFUSALS}


def test_digests_are_the_recorded_ones() -> None:
    cases = vectors("capability_digests.jsonl")
    raw = (VECTORS / "capability_digests.jsonl").read_bytes()
    done = ctl("capability", "digest", "-", stdin=raw)
    assert (done.returncode, done.stderr) == (0, b"")
    assert done.stdout.decode().split() == [case["digest"] for case in cases]
    bare = "\n".join(json.dumps(case["capability"]) for case in cases).encode()
    found = json_lines(ctl("capability", "digest", "-o", "json", stdin=bare).stdout)
    assert [(row["id"], row["digest"]) for row in found] == [(c["capability"]["id"], c["digest"]) for c in cases]


def test_one_document_in_toml_or_indented_json_has_the_digest_of_its_line(tmp_path: Path) -> None:
    record = {"id": "test.run", "summary": "Runs tests", "outcome": "A report", "constraints": ["no network"]}
    line = ctl("capability", "digest", stdin=json.dumps(record).encode()).stdout
    assert line.startswith(b"sha256:")
    (tmp_path / "one.json").write_text(json.dumps({"capability": record}, indent=2))
    toml = 'id = "test.run"\nsummary = "Runs tests"\noutcome = "A report"\nconstraints = ["no network"]\n'
    (tmp_path / "one.toml").write_text(toml)
    (tmp_path / "nested.toml").write_text("[capability]\n" + toml)
    for name in ("one.json", "one.toml", "nested.toml"):
        assert ctl("capability", "digest", str(tmp_path / name)).stdout == line
    assert ctl("capability", "digest", "-", stdin=toml.encode()).stdout == line


def test_a_bad_capability_is_named_and_the_others_are_printed() -> None:
    good = {"id": "a", "summary": "s", "outcome": "o"}
    lines = [json.dumps(good), '{"id": "b", "summary": 7, "outcome": "o"}', "{ not json", json.dumps(good)]
    done = ctl("capability", "digest", "-", stdin="\n".join(lines).encode())
    assert done.returncode == 1
    assert len(done.stdout.split()) == 2
    errors = done.stderr.decode()
    assert "line 2" in errors
    assert "capability.summary: must be a string" in errors
    assert "line 3" in errors


@pytest.mark.parametrize("raw", [b"\xff", b"nonsense", b'{"a": ', b"[1]", b"7", b"[" * 100_000])
def test_an_invalid_capability_is_refused(raw: bytes) -> None:
    done = ctl("capability", "digest", "-", stdin=raw)
    assert done.returncode == 1
    assert done.stdout == b""
    assert done.stderr.startswith(b"aghctl: ")


def test_route_tokens_and_direct_ids_are_the_recorded_ones(capsys: pytest.CaptureFixture[str]) -> None:
    for case in vectors("route_tokens.jsonl"):
        assert entry(["id", "route", case["peer_id"]]) == 0
        assert capsys.readouterr().out == case["route_token"] + "\n"
    for case in vectors("direct_ids.jsonl"):
        where = ["--workspace", case["workspace_id"], "--channel", case["channel"]]
        for pair in ([case["peer_a"], case["peer_b"]], [case["peer_b"], case["peer_a"]]):
            assert entry(["id", "direct", *where, *pair]) == 0
            assert capsys.readouterr().out == case["direct_id"] + "\n"


def test_ids_as_processes_in_both_forms() -> None:
    assert ctl("id", "route", "ops").stdout == b"a92c36e66a25ee99ff862faa8e87987b\n"  # sha256("ops"), first 16 bytes
    answer = json.loads(ctl("id", "route", "ops", "-o", "json").stdout)
    assert answer == {"v": 1, "peer_id": "ops", "route_token": "a92c36e66a25ee99ff862faa8e87987b"}


@pytest.mark.parametrize(
    "args",
    [
        ["id", "route", "Upper"],
        ["id", "route", "a b"],
        ["id", "route", ""],
        ["id", "route"],
        ["id", "direct", "--workspace", "w.x", "--channel", "c", "a", "b"],
        ["id", "direct", "--workspace", "w", "--channel", "C", "a", "b"],
        ["id", "direct", "--workspace", "w", "--channel", "c", "a", "a"],
        ["id", "direct", "--channel", "c", "a", "b"],
        ["envelope", "check", "/no/such/file"],
        ["envelope", "check", "--now", "yesterday"],
        ["capability", "digest", "/no/such/file"],
    ],
)
def test_a_broken_rule_is_a_usage_error(args: list[str], capsys: pytest.CaptureFixture[str]) -> None:
    assert entry(args) == 2
    captured = capsys.readouterr()
    assert captured.out == ""
    assert captured.err.startswith("aghctl: ")
    assert entry([*args, "-o", "json"]) == 2
    error = json.loads(capsys.readouterr().err)
    assert set(error) == {"v", "code", "message", "hint"}
    assert error["code"] == "usage"


def test_a_closed_reader_ends_the_command_silently() -> None:
    line = json.dumps({"id": "x" * 200}).encode() + b"\n"
    command = [sys.executable, "-m", "aghbus.cli.main", "envelope", "check", "-"]
    read_end, write_end = os.pipe()
    with subprocess.Popen(command, stdin=subprocess.PIPE, stdout=write_end, stderr=subprocess.PIPE) as process:
        os.close(write_end)
        os.close(read_end)
        _, errors = process.communicate(line * 1000, timeout=60)
    assert process.returncode == 141
    assert errors == b""


@settings(max_examples=50, deadline=None)
@given(st.text())
def test_untrusted_text_is_escaped_on_the_terminal(text: str) -> None:
    """`check` prints the sender's id: in ASCII, without control characters."""
    raw = json.dumps({"id": text}).encode()
    done = entry_output(["envelope", "check", "-"], raw)
    assert done.isascii()
    assert not any(ord(char) < 0x20 for char in done.removesuffix("\n"))


def entry_output(args: list[str], stdin: bytes) -> str:
    """Run in this process with replaced standard streams."""
    import io

    stdout, stdin_before, stdout_before = io.StringIO(), sys.stdin, sys.stdout
    sys.stdin, sys.stdout = io.TextIOWrapper(io.BytesIO(stdin)), stdout
    try:
        entry(args)
    finally:
        sys.stdin, sys.stdout = stdin_before, stdout_before
    return stdout.getvalue()


@pytest.mark.parametrize("name", ["chain.json", "chain.toml"])
def test_an_empty_chain_file_is_called_empty(name: str, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    (tmp_path / name).write_text(" \n")
    assert entry(["chain", "check", str(tmp_path / name)]) == 1
    assert "is empty" in "".join(capsys.readouterr())


@pytest.mark.parametrize(
    "words",
    [
        ("instances", "rm", "nosuch"),
        ("key", "show"),
        ("key", "export-public"),
        ("key", "rotate"),
        ("audit", "head"),
        ("backup", "copy"),
    ],
)
def test_what_does_not_exist_has_the_exit_code_of_the_daemon_for_it(tmp_path: Path, words: tuple[str, ...]) -> None:
    done = Home(tmp_path).ctl("--name", "nosuch", *words, "-o", "json")
    assert (done.returncode, json.loads(done.stderr)["code"]) == (4, "not_found")
    assert not Path("copy").exists()
