"""`aghctl serve` against real daemons, with real commands."""

import json
import os
import signal
import subprocess
import sys
from pathlib import Path

import pytest

from tests.support.daemons import wait_for
from tests.support.serving import FAMILY, WAIT, WAITS, Bus, all_gone, lives, pids_of, script, serving

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="serve needs Linux")

HOSTILE = (
    "$(touch pwned) `touch pwned`; touch pwned | cat & \x1b[2J\u202eoops\nforged line\x07 'quoted\" ${HOME} -rf ../../x"
)
TOLD = """
import json, os, sys
seen = {"argv": sys.argv[1:], "stdin": json.load(sys.stdin), "file": json.load(open(os.environ["AGH_INPUT"]))}
seen["env"] = {name: value for name, value in os.environ.items() if name.startswith("AGH_")}
open("told.json", "w").write(json.dumps(seen))
"""


# outcomes


def test_exit_code_0_completes_the_work(bus: Bus, tmp_path: Path) -> None:
    command = script(tmp_path, "import sys; print('one\\ntwo'); print('aside', file=sys.stderr)")
    with serving(bus, tmp_path, "--once", command=command) as serve:
        work_id = bus.open()
        end = bus.end_of(work_id)
        assert serve.ended() == 0
    assert (end["event"], end["message"]) == ("trace:completed", "two")
    assert end["result"].pop("duration_s") > 0
    assert end["result"] == {"exit_code": 0, "stdout": "one\ntwo\n", "stderr": "aside\n", "truncated": False}
    assert [item["event"] for item in serve.events] == [
        *("ready", "taken", "accepted", "started", "finished", "reported")
    ]
    assert bus.waiting(work_id) == []
    assert list(bus.journal().glob("job_*")) == []


def test_another_exit_code_fails_it(bus: Bus, tmp_path: Path) -> None:
    command = script(
        tmp_path, "import sys; print('3 tests', file=sys.stderr); print('2 fail', file=sys.stderr); sys.exit(3)"
    )
    with serving(bus, tmp_path, "--once", command=command) as serve:
        end = bus.end_of(bus.open())
        assert serve.ended() == 1
    assert (end["event"], end["message"], end["result"]["exit_code"]) == ("trace:failed", "2 fail", 3)


def test_a_command_that_dies_of_a_signal_fails_it(bus: Bus, tmp_path: Path) -> None:
    with serving(bus, tmp_path, "--once", command=["sh", "-c", "kill -SEGV $$"]) as serve:
        end = bus.end_of(bus.open())
        assert serve.ended() == 1
    assert end["message"] == "ended by SIGSEGV"
    assert (end["result"]["exit_code"], end["result"]["signal"]) == (139, "SIGSEGV")


def test_a_json_object_on_stdout_is_the_output(bus: Bus, tmp_path: Path) -> None:
    with serving(bus, tmp_path, "--once", command=["echo", '{"passed": 12, "failed": 0}']):
        result = bus.end_of(bus.open())["result"]
    assert result["output"] == {"passed": 12, "failed": 0}
    assert "stdout" not in result


def test_an_output_that_no_envelope_may_hold_is_reported_without_it(bus: Bus, tmp_path: Path) -> None:
    command = script(tmp_path, "print('{\"a\":' * 300 + '1' + '}' * 300)")  # nested deeper than an envelope may be
    with serving(bus, tmp_path, "--once", command=command) as serve:
        end = bus.end_of(bus.open())
        assert serve.ended() == 0
    assert end["event"] == "trace:completed"
    assert end["result"].keys() == {"exit_code", "duration_s"}
    assert serve.seen("problem")


def test_long_output_loses_its_beginning(bus: Bus, tmp_path: Path) -> None:
    command = script(
        tmp_path, "import sys; [sys.stdout.write('\\x01' * 1000 + '\\n') for _ in range(500)]; print('the end')"
    )
    with serving(bus, tmp_path, "--once", command=command):
        result = bus.end_of(bus.open())["result"]
    assert result["truncated"] is True
    assert len(result["stdout"]) == 65_536
    assert result["stdout"].endswith("\nthe end\n")


# what the command is told


def test_hostile_text_reaches_neither_shell_nor_argument_nor_terminal(bus: Bus, tmp_path: Path) -> None:
    command = [*script(tmp_path, TOLD + "print(seen['stdin']['text'])"), "fixed"]
    head = [sys.executable, "-m", "aghbus.cli", "--name", "worker", "serve", "--capability", "test.run", "--once"]
    work_id = bus.open(HOSTILE, intent="request; reboot")
    done = subprocess.run(
        [*head, "--", *command], env=bus.home.env, cwd=tmp_path, capture_output=True, timeout=60, check=False
    )
    assert done.returncode == 0, done.stderr
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["argv"] == ["fixed"]
    assert told["stdin"] == told["file"]
    assert told["stdin"]["text"] == told["env"]["AGH_TEXT"] == HOSTILE
    assert told["stdin"]["envelope"]["body"]["text"] == HOSTILE
    assert (told["env"]["AGH_WORK_ID"], told["env"]["AGH_FROM"]) == (work_id, "ops")
    assert told["env"]["AGH_INTENT"] == "request; reboot"
    assert not Path(told["env"]["AGH_INPUT"]).exists()
    assert {path.name for path in tmp_path.iterdir()} == {"command.py", "told.json"}
    shown = (done.stdout + done.stderr).decode()
    assert "forged" in shown
    assert not {"\x1b", "\u202e", "\x07"} & set(shown)
    assert not any(line.startswith("forged") for line in shown.splitlines())
    message = bus.end_of(work_id)["message"]
    assert message.isprintable()
    assert message.startswith("forged line\\x07")


def test_a_shell_of_the_operator_gets_the_text_as_data(bus: Bus, tmp_path: Path) -> None:
    with serving(bus, tmp_path, "--once", command=["sh", "-c", 'printf %s "$AGH_TEXT"']):
        assert bus.end_of(bus.open(HOSTILE))["result"]["stdout"] == HOSTILE
    assert list(tmp_path.iterdir()) == []


@pytest.mark.parametrize("text", ["a\0b", "x" * 600_000], ids=["NUL", "too long for a variable"])
def test_text_that_no_variable_can_hold_is_on_stdin_only(bus: Bus, tmp_path: Path, text: str) -> None:
    with serving(bus, tmp_path, "--once", command=script(tmp_path, TOLD)) as serve:
        bus.open(text)
        assert serve.ended() == 0
    told = json.loads((tmp_path / "told.json").read_text())
    assert told["stdin"]["text"] == text
    assert "AGH_TEXT" not in told["env"]
    assert told["env"]["AGH_OMITTED"] == "AGH_TEXT"


# which work


def test_messages_without_a_work_can_be_left(bus: Bus, tmp_path: Path) -> None:
    said = bus.ops.post("/v1/messages", kind="say", to="worker", body={"text": "just talking"})["id"]
    with serving(bus, tmp_path, "--once", "--without-work", "leave", command=["true"]) as serve:
        bus.open()
        assert serve.ended() == 0
    mine = [item for item in bus.worker.get("/v1/inbox")["items"] if item["message"]["id"] == said]
    assert [(item["state"], item["attempts"]) for item in mine] == [("ready", 0)]


def test_only_works_with_accepted_intents_are_taken(bus: Bus, tmp_path: Path) -> None:
    with serving(bus, tmp_path, "--once", "--accept", "intent=test", command=["true"]) as serve:
        other, wanted = bus.open(intent="deploy"), bus.open(intent="test")
        assert serve.ended() == 0
    assert bus.end_of(wanted)["event"] == "trace:completed"
    assert bus.worker.state_of(other) == "submitted"
    assert [(item["state"], item["attempts"]) for item in bus.waiting(other)] == [("ready", 0)]
    bus.worker.post(f"/v1/works/{other}/reject")


@pytest.mark.parametrize(
    ("args", "says"),
    [
        (["--capability", "code.patch", "--", "true"], "aghd run --name worker --capability code.patch"),
        (["--capability", "test.run", "--", "no-such-command"], "no-such-command"),
        (["--capability", "test.run", "--artifact", "../x", "--", "true"], "--artifact"),
        (["--capability", "test.run", "--artifact", "/etc/*", "--", "true"], "--artifact"),
        (["--capability", "test.run", "--cwd", "/no/such", "--", "true"], "--cwd"),
        (["--capability", "test.run", "--time-limit", "0", "--", "true"], "longer than 0"),
        (["--capability", "test.run", "--accept", "mood=good", "--", "true"], "intent=VALUE"),
        (["--capability", "test.run", "--once", "--max-jobs", "2", "--", "true"], "exclude"),
        (["--capability", "test.run"], "COMMAND"),
        (["--", "true"], "--capability"),
    ],
)
def test_invalid_options_are_reported_at_once(bus: Bus, args: list[str], says: str) -> None:
    done = bus.home.ctl("--name", "worker", "serve", *args)
    assert done.returncode == 2
    assert says in done.stderr.decode()


# several at a time


def test_work_beyond_the_concurrency_is_rejected_as_busy(bus: Bus, tmp_path: Path) -> None:
    options = ["--when-busy", "reject", "--concurrency", "2", "--max-jobs", "3"]
    with serving(bus, tmp_path, *options, command=script(tmp_path, WAITS)) as serve:
        first, second = bus.open(), bus.open()
        for work_id in (first, second):
            serve.until("started", work_id=work_id)
        third = bus.open()
        end = bus.end_of(third)
        assert (end["event"], end["reason"], end["message"]) == ("receipt:rejected", "busy", "the worker is busy")
        assert serve.until("rejected", work_id=third)["reason"] == "busy"
        (tmp_path / "go").touch()
        assert {bus.end_of(work_id)["event"] for work_id in (first, second)} == {"trace:completed"}
        last = bus.open()
        assert bus.end_of(last)["event"] == "trace:completed"
        assert serve.ended() == 0
    assert (tmp_path / "runs").read_text().split()[2:] == [last]
    assert bus.waiting(third) == []


def test_further_work_waits_in_the_inbox_up_to_the_length_of_the_queue(bus: Bus, tmp_path: Path) -> None:
    options = ["--queue", "1", "--max-jobs", "2"]
    with serving(bus, tmp_path, *options, command=script(tmp_path, WAITS)) as serve:
        first = bus.open()
        serve.until("started", work_id=first)
        second = bus.open()
        third = bus.open()
        assert bus.end_of(third)["reason"] == "busy"
        assert [item["state"] for item in bus.waiting(second)] == ["ready"]
        (tmp_path / "go").touch()
        assert bus.end_of(second)["event"] == "trace:completed"
        assert serve.ended() == 0
    order = [(item["event"], item["work_id"]) for item in serve.events if item["event"] in ("started", "finished")]
    assert order == [("started", first), ("finished", first), ("started", second), ("finished", second)]


def test_a_canceled_work_takes_no_place_in_the_queue(bus: Bus, tmp_path: Path) -> None:
    with serving(bus, tmp_path, "--queue", "1", "--max-jobs", "2", command=script(tmp_path, WAITS)) as serve:
        bus.open()
        serve.until("started")
        canceled = bus.open()
        bus.ops.post(f"/v1/works/{canceled}/cancel")
        wait_for(lambda: bus.worker.state_of(canceled) == "canceled", WAIT, "the cancellation")
        waits, rejected = bus.open(), bus.open()
        assert bus.end_of(rejected)["reason"] == "busy"
        (tmp_path / "go").touch()
        assert bus.end_of(waits)["event"] == "trace:completed"
        assert serve.ended() == 0


# while it runs


def test_heartbeats_carry_the_last_line_and_keep_their_distance(bus: Bus, tmp_path: Path) -> None:
    command = script(
        tmp_path, "print('0 %\\r\\x1b[1m50 %\\n', flush=True)\n" + WAITS.replace('print("waiting"', 'print("  "')
    )
    with serving(bus, tmp_path, "--once", "--heartbeat", "0.3s", command=command) as serve:
        work_id = bus.open()
        wait_for(lambda: len(serve.seen("heartbeat", message="\\x1b[1m50 %")) >= 4, WAIT, "four heartbeats of the line")
        (tmp_path / "go").touch()
        serve.ended()
    beats = [body["message"] for body in bus.traces(work_id) if body["state"] == "working"]
    assert {beat for beat in beats if not beat.startswith("running for ")} == {"\\x1b[1m50 %"}  # before it has printed
    times = [item["at_ms"] for item in serve.seen("heartbeat", message="\\x1b[1m50 %")]
    # Nothing new: a keep-alive every three intervals. The time is that of the answer, which once may come late: one beat is
    # decided after the answer to the one before, so that two intervals are never shorter than one of theirs.
    assert len(times) >= 3
    assert times[-1] - times[0] >= 900 * (len(times) - 2) - 20


def test_messages_during_a_job_are_acknowledged_and_noted(bus: Bus, tmp_path: Path) -> None:
    with serving(bus, tmp_path, "--once", "--heartbeat", "0.2s", command=script(tmp_path, WAITS)) as serve:
        work_id = bus.open()
        serve.until("started")
        bus.ops.post(f"/v1/works/{work_id}/say", message="hurry up")
        wait_for(
            lambda: any("1 message not delivered" in body["message"] for body in bus.traces(work_id)), WAIT, "the note"
        )
        wait_for(lambda: len(bus.waiting(work_id)) == 1, WAIT, "the acknowledgement")
        (tmp_path / "go").touch()
        assert serve.ended() == 0
    assert bus.waiting(work_id) == []


def test_the_time_limit_terminates_all_processes(bus: Bus, tmp_path: Path) -> None:
    for limit in (3, 10, 30):  # on a slow machine the family is not complete within the first
        options = ["--once", "--time-limit", f"{limit}s", "--grace", "0.2s"]
        with serving(bus, tmp_path, *options, command=script(tmp_path, FAMILY)) as serve:
            end = bus.end_of(bus.open())
            assert serve.ended() == 1
        told = (end["event"], end["message"], end["result"]["timeout"])
        assert told == ("trace:failed", f"timed out after {limit} s", True)
        if (tmp_path / "pids").exists():
            break
    assert len(pids_of(tmp_path)) == 3
    assert all_gone(pids_of(tmp_path))()


def test_a_cancellation_terminates_all_processes_and_sends_nothing_more(bus: Bus, tmp_path: Path) -> None:
    with serving(
        bus, tmp_path, "--heartbeat", "1h", "--drain", "0s", "--grace", "0.2s", command=script(tmp_path, FAMILY)
    ) as serve:
        work_id = bus.open()
        pids = pids_of(tmp_path)
        assert all(lives(pid) for pid in pids)
        bus.ops.post(f"/v1/works/{work_id}/cancel")
        assert serve.until("finished")["verb"] is None
        assert all_gone(pids)()
        wait_for(lambda: not bus.waiting(work_id), WAIT, "the acknowledgement")
        (tmp_path / "pids").unlink()
        bus.open()  # the worker goes on
        assert len(pids_of(tmp_path)) == 3
        assert serve.stop(signal.SIGINT) == 130
    assert bus.traces(work_id) == []
    assert bus.ops.state_of(work_id) == "canceled"


def test_processes_left_in_the_group_are_terminated(bus: Bus, tmp_path: Path) -> None:
    with serving(bus, tmp_path, "--once", command=["sh", "-c", "sleep 90 & echo $! > pids; echo done"]) as serve:
        end = bus.end_of(bus.open())
        assert serve.ended() == 0
    assert end["result"]["stdout"] == "done\n"
    assert all_gone(pids_of(tmp_path))()


# artifacts


def test_artifacts_by_pattern_stay_inside_and_are_of_this_job(bus: Bus, tmp_path: Path) -> None:
    (tmp_path / "secret.xml").write_text("secret")
    cwd = tmp_path / "cwd"
    (cwd / "reports").mkdir(parents=True)
    (cwd / "reports" / "old.xml").write_text("of an earlier job")
    command = script(
        tmp_path,
        """
import os
os.chdir("reports")
open("new.xml", "w").write("<ok/>")
os.symlink("../../secret.xml", "escape.xml"); os.symlink("../..", "up"); os.symlink("new.xml", "inside.xml")
os.mkfifo("pipe.xml"); os.mkdir("folder.xml")
raise SystemExit(1)
""",
    )
    options = ["--artifact", "reports/*.xml", "--artifact", "reports/*/secret.xml", "--cwd", str(cwd), "--once"]
    with serving(bus, tmp_path, *options, command=command):
        end = bus.end_of(bus.open())
    references = {reference.pop("path"): reference for reference in end["artifacts"]}
    for reference in references.values():
        assert bus.home.ctl("--name", "ops", "artifact", "get", reference.pop("uri"), "-O", "-").stdout == b"<ok/>"
    printed = subprocess.run(["sha256sum", cwd / "reports" / "new.xml"], capture_output=True, check=True, text=True)
    sha256 = printed.stdout.split()[0]
    assert references == {
        "reports/new.xml": {"type": "file", "name": "new.xml", "size": 5, "sha256": sha256},
        "reports/inside.xml": {"type": "file", "name": "inside.xml", "size": 5, "sha256": sha256},
    }
    outside, pipe = "it is outside the folder of the command", "not a regular file"
    assert {entry["path"]: entry["reason"] for entry in end["result"]["artifacts_skipped"]} == {
        "reports/escape.xml": outside,
        "reports/up/secret.xml": outside,
        "reports/pipe.xml": pipe,
    }
