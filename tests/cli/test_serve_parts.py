"""The parts of `aghctl serve` that need no daemon."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path
from typing import Any, BinaryIO

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.cli.app.output import Output
from aghbus.cli.app.registry import PROGRAM
from aghbus.cli.commands.serve import plan_of
from aghbus.cli.worker import input as worker_input
from aghbus.cli.worker import process_group as worker_group
from aghbus.cli.worker.artifacts import check_pattern, collect, upload_all
from aghbus.cli.worker.process import TAIL_BYTES, OutputTail, Process, ProcessExit
from aghbus.cli.worker.reporter import EVENTS, Reporter
from aghbus.cli.worker.result import line, outcome_of
from aghbus.client.errors import RefusedByDaemon
from aghbus.client.work.journal import Journal, JournalEntry

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="serve needs Linux")

REPOSITORY = Path(__file__).parent.parent.parent
ITEM = {"seq": 7, "lease": "lease_1", "message": {"work_id": "work_1", "channel": "default", "sender": "ops"}}


def message(text: str) -> dict[str, Any]:
    """An opening message as the API gives it."""
    envelope = {"kind": "say", "body": {"text": text, "intent": "request"}}
    fixed = {
        "kind": "say",
        "trust": "unverified",
        "workspace_id": "ws",
        "channel": "c",
        "thread_id": "t",
        "direct_id": None,
    }
    return {"work_id": "work_1", "sender": "ops", "envelope": envelope, **fixed}


def ran(folder: Path, *command: str, time_limit: float = 30.0) -> tuple[Process, ProcessExit]:
    with (folder / "input").open("w+b") as stdin:
        process = Process(command, cwd=str(folder), env=dict(os.environ), stdin=stdin, token="job_parts")
        return process, process.run(time_limit, 0.2)


# output


@given(st.lists(st.binary(max_size=50_000), max_size=12))
def test_a_tail_is_the_end_of_the_stream(pieces: list[bytes]) -> None:
    tail, whole = OutputTail(), b"".join(pieces)
    for piece in pieces:
        tail.add(piece)
    assert tail.text() == whole[-TAIL_BYTES:].decode("utf-8", "replace")
    assert tail.truncated == (len(whole) > TAIL_BYTES)


@pytest.mark.parametrize(
    ("data", "expected"),
    [
        (b"", ""),
        (b"one\ntwo", "two"),
        (b"one\n\n  \n", "one"),
        (b"10 %\r20 %\r", "20 %"),
        (b"\xff\xfe\n", "\ufffd\ufffd"),
        (b"x" * 9000, "x" * 4096),
    ],
)
def test_the_last_line(data: bytes, expected: str) -> None:
    tail = OutputTail()
    tail.add(data)
    assert tail.last_line() == expected


@given(st.text())
def test_a_message_is_short_and_safe_to_print(text: str) -> None:
    shown = line(text)
    assert len(shown) <= 500
    assert not any(ord(char) < 32 or 127 <= ord(char) < 160 or char in "\u202e\u2028\u200b" for char in shown)


@pytest.mark.parametrize(
    ("printed", "output"),
    [
        ('{"a": 1}', {"a": 1}),
        (' \n{"a": [1, null]}\n', {"a": [1, None]}),
        ("[1]", None),
        ('{"a": NaN}', None),
        ('{"a": 1} {"b": 2}', None),
        ("{" * 100, None),
        ("", None),
    ],
)
def test_only_one_json_object_is_an_output(tmp_path: Path, printed: str, output: object) -> None:
    process, ended = ran(tmp_path, "printf", "%s", printed)
    result = outcome_of(process, ended, 30).result
    assert result is not None
    assert result.get("output") == output
    assert result.get("stdout") == (None if output is not None else printed)


# processes


def test_a_command_that_closes_its_output_is_still_waited_for(tmp_path: Path) -> None:
    _, ended = ran(tmp_path, "sh", "-c", "exec >&- 2>&-; sleep 0.3; exit 4")
    assert (ended.code, ended.stopped) == (4, None)
    assert ended.seconds >= 0.3


def test_a_detached_child_that_holds_the_output_does_not_hold_the_job(tmp_path: Path) -> None:
    command = "import subprocess; print(subprocess.Popen(['sleep', '60'], start_new_session=True).pid)"
    process, ended = ran(tmp_path, sys.executable, "-W", "ignore", "-c", command)
    child = int(process.stdout.text())
    assert ended.code == 0
    assert ended.seconds < 20
    os.kill(child, signal.SIGKILL)  # it left on purpose, and was let go: reading its number proves it lived


def test_a_process_is_named_by_its_start_too() -> None:
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE) as process:
        started = worker_group.start_time(process.pid)
        assert worker_group.is_same_process(process.pid, started)
        assert started is not None
        assert not worker_group.is_same_process(process.pid, started - 1)
        assert not worker_group.is_same_process(process.pid, None)
        assert process.pid in worker_group.living_pids("no such token", os.getpgid(0))
    assert worker_group.start_time(process.pid) is None


def test_a_person_reads_lists_with_commas(capsys: pytest.CaptureFixture[str]) -> None:
    Reporter(Output("human"), lambda: None).emit("ready", capabilities=["test.run", "code.patch"], concurrency=1)
    assert "capabilities test.run, code.patch" in capsys.readouterr().out
    Reporter(Output("human"), lambda: None).emit("ready", capabilities=[], command="cat", concurrency=1)
    assert capsys.readouterr().out.endswith("ready      capabilities any  command cat  concurrency 1\n")


def test_only_the_whole_token_marks_a_process() -> None:
    env = {**os.environ, "AGH_JOB": "job_abc"}
    with subprocess.Popen(["cat"], stdin=subprocess.PIPE, env=env, start_new_session=True) as process:
        assert worker_group.living_pids("job_ab") == []
        assert worker_group.living_pids("job_abc") == [process.pid]
        assert worker_group.end("job_ab", 0, 0.0) == 0
        assert process.poll() is None
        process.terminate()


# input


def test_variables_of_an_outer_worker_are_not_inherited() -> None:
    base = {
        "PATH": "/bin",
        "AGH_TEXT": "outer",
        "AGH_DIRECT_ID": "outer",
        "AGH_OMITTED": "AGH_TEXT",
        "AGH_OTHER": "kept",
    }
    env = worker_input.environment(base, message("inner"), "job_1", Path("/i"))
    assert (env["AGH_TEXT"], env["AGH_JOB"], env["AGH_INPUT"], env["AGH_INTENT"]) == ("inner", "job_1", "/i", "request")
    assert (env["PATH"], env["AGH_OTHER"]) == ("/bin", "kept")
    assert not {"AGH_DIRECT_ID", "AGH_OMITTED"} & set(env)


@given(st.text(st.characters(exclude_categories=[]), max_size=200))
def test_any_text_can_be_started_with(text: str) -> None:
    env = worker_input.environment({}, message(text), "job_1", Path("/i"))
    for value in env.values():
        assert b"\0" not in os.fsencode(value)
    assert ("AGH_TEXT" in env) != ("AGH_TEXT" in env.get("AGH_OMITTED", "").split())
    assert json.loads(json.dumps(worker_input.document(message(text))))["text"] == text


# journal


def test_only_a_dead_workers_file_is_recovered(tmp_path: Path) -> None:
    journal = Journal(str(tmp_path))
    entry = journal.begin(seq=7, command=["true"], item=ITEM)
    entry.write("starting")
    assert Journal(str(tmp_path)).abandoned() == []
    entry.leave()
    (found,) = Journal(str(tmp_path)).abandoned()
    assert (found.token, found.phase) == (entry.token, "starting")
    assert found.records == [{"phase": "taken", "seq": 7, "command": ["true"], "item": ITEM}, {"phase": "starting"}]
    assert journal.abandoned() == []
    found.remove()
    assert {path.name for path in tmp_path.iterdir()} == {"lock"}


def test_files_are_for_their_owner_alone(tmp_path: Path) -> None:
    folder = tmp_path / "a" / "b"
    entry = Journal(str(folder)).begin(seq=1, command=[], item=ITEM)
    worker_input.write(entry.input_path, worker_input.written(message("secret"), ()))
    assert folder.stat().st_mode & 0o077 == 0
    assert all(path.stat().st_mode & 0o077 == 0 for path in folder.glob("job_*"))
    entry.remove()


@given(cut=st.integers(0, 200))
def test_a_partial_line_is_truncated_and_the_next_one_is_complete(
    tmp_path_factory: pytest.TempPathFactory, cut: int
) -> None:
    folder = tmp_path_factory.mktemp("torn")
    journal = Journal(str(folder))
    entry = journal.begin(seq=7, command=["true"], item=ITEM)
    first = (folder / f"{entry.token}.jsonl").stat().st_size
    entry.write("started", pid=1, started=2)
    entry.leave()
    path = folder / f"{entry.token}.jsonl"
    size = max(0, path.stat().st_size - cut)
    os.truncate(path, size)
    found = journal.abandoned()
    if size < first:
        assert found == []
        return
    assert found[0].phase == ("started" if cut == 0 else "taken")
    found[0].write("finished", verb="complete")
    found[0].leave()
    (again,) = journal.abandoned()
    assert again.phase == "finished"
    again.leave()


def test_a_full_disk_is_an_error_and_no_step(tmp_path: Path) -> None:
    with Path("/dev/full").open("r+b", buffering=0) as full:
        entry = JournalEntry(tmp_path / "job_1.jsonl", full, [{"phase": "taken"}])
        with pytest.raises(OSError, match="No space"):
            entry.write("starting")
        assert entry.phase == "taken"


# artifacts


@pytest.mark.parametrize("pattern", ["", "/etc/passwd", "../x", "a/../../x", "a\0b", "a/.."])
def test_patterns_that_lead_out_are_refused(pattern: str) -> None:
    with pytest.raises(ValueError, match="below the folder"):
        check_pattern(pattern)


@pytest.mark.parametrize("pattern", ["*.xml", "reports/**/*.xml", "a..b/c", "..."])
def test_patterns_below_the_folder_are_accepted(pattern: str) -> None:
    assert check_pattern(pattern) == pattern


def test_artifacts_beyond_the_limit_are_reported(tmp_path: Path) -> None:
    for number in range(103):
        (tmp_path / f"{number:03}.txt").touch()
    (tmp_path / os.fsdecode(b"\xff.txt")).touch()
    found = collect(["*.txt", "0*.txt"], str(tmp_path), 0)
    assert [reference["path"] for reference in found.references] == [f"{number:03}.txt" for number in range(100)]
    assert [entry["reason"] for entry in found.skipped] == ["its name is not UTF-8", "3 more than 100"]


# the command line and the manual


def test_a_relative_command_is_below_its_folder(tmp_path: Path) -> None:
    (tmp_path / "run").write_text("#!/bin/sh\n")
    (tmp_path / "run").chmod(0o700)
    words = ["serve", "--capability", "c", "--cwd", str(tmp_path), "--", "./run", "-x"]
    plan = plan_of(PROGRAM.parse(words)[1])
    assert plan.command == (str(tmp_path / "run"), "-x")
    assert (plan.queue, plan.rerun, plan.max_jobs, plan.concurrency) == (100, False, None, 1)
    plan = plan_of(PROGRAM.parse([*words[:5], "--when-busy", "reject", *words[5:]])[1])
    assert plan.queue == 0


def test_the_manual_names_every_option_event_and_variable() -> None:
    manual = (REPOSITORY / "docs" / "serve.md").read_text()
    for argument in PROGRAM.load("serve").arguments:
        assert argument.is_positional or f"`{argument.flags[-1]}" in manual
    for event, meaning in EVENTS:
        assert f"| `{event}` | {meaning} |" in manual
    full = message("x") | {"direct_id": "d"}
    for name in worker_input.environment({}, full, "job_1", Path("/i"), answer="yes", socket="/s"):
        assert f"`{name}`" in manual
    for name in worker_input.document(full):
        assert f"`{name}`" in manual


# uploading artifacts


def test_a_file_that_became_a_link_out_of_the_folder_is_not_uploaded(tmp_path: Path) -> None:
    (tmp_path / "secret").write_text("secret")
    cwd = tmp_path / "cwd"
    cwd.mkdir()
    (cwd / "kept.xml").write_text("<ok/>")
    (cwd / "swapped.xml").write_text("<ok/>")
    found = collect(["*.xml"], str(cwd), 0)
    (cwd / "swapped.xml").unlink()
    (cwd / "swapped.xml").symlink_to("../secret")
    stored: dict[str, bytes] = {}

    def put(stream: BinaryIO, size: int, name: str) -> dict[str, Any]:
        stored[name] = stream.read(size)
        return {"uri": f"agh://artifacts/work_1/{name}", "size": size, "sha256": "0" * 64}

    uploaded = upload_all(found, str(cwd), put)
    assert stored == {"kept.xml": b"<ok/>"}
    assert [reference.get("uri") for reference in uploaded.references] == ["agh://artifacts/work_1/kept.xml", None]
    (skipped,) = uploaded.skipped
    assert (skipped["path"], "outside the folder" in skipped["reason"]) == ("swapped.xml", True)


def test_files_of_one_name_are_stored_under_their_paths(tmp_path: Path) -> None:
    for name in ("a", "b"):
        (tmp_path / name).mkdir()
        (tmp_path / name / "out.txt").write_text(name)
    names: list[str] = []

    def put(_stream: BinaryIO, _size: int, name: str) -> dict[str, Any]:
        names.append(name)
        return {"uri": name}

    upload_all(collect(["*/out.txt"], str(tmp_path), 0), str(tmp_path), put)
    assert names == ["a_out.txt", "b_out.txt"]


def test_a_store_that_refuses_leaves_the_reference_and_says_why(tmp_path: Path) -> None:
    (tmp_path / "out.txt").write_text("x")

    def put(_stream: BinaryIO, _size: int, _name: str) -> dict[str, Any]:
        raise RefusedByDaemon("no JetStream", code="unavailable")

    found = upload_all(collect(["out.txt"], str(tmp_path), 0), str(tmp_path), put)
    assert [(one["name"], "uri" in one) for one in found.references] == [("out.txt", False)]
    assert found.skipped == [{"path": "out.txt", "reason": "not uploaded: no JetStream"}]
