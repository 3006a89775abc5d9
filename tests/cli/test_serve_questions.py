"""`aghctl serve` with commands that ask: the work waits, and the command runs again with the answer."""

import json
import os
import signal
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemons import wait_for
from tests.support.serving import WAIT, Bus, script, serving, two_peers

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="serve needs Linux")

ASK = """
import json, os, pathlib, subprocess, sys, time
told = json.load(sys.stdin)
ctl = [sys.executable, "-m", "aghbus.cli"]

def ask(question):
    work = os.environ["AGH_WORK_ID"]
    subprocess.run([*ctl, "work", "need-input", work, "--message", question], check=True, stdout=subprocess.DEVNULL)
"""
ASKS_ONCE = (
    ASK
    + """
if not told["conversation"] and told["text"] != "no question":
    ask("Which branch?")
    print("looked at two branches")
else:
    print(json.dumps({"conversation": told["conversation"], "answer": os.environ.get("AGH_ANSWER")}))
"""
)


def asked(bus: Bus, work_id: str) -> None:
    """Wait until the initiator has the question."""
    wait_for(lambda: bus.ops.state_of(work_id) == "needs_input", WAIT, "the question to arrive")


def answer(bus: Bus, work_id: str, text: str = "the main branch") -> None:
    bus.ops.post(f"/v1/works/{work_id}/say", message=text)


def output(end: dict[str, Any]) -> dict[str, Any]:
    assert end["event"] == "trace:completed", end
    found: dict[str, Any] = end["result"]["output"]
    return found


def test_a_command_that_asks_runs_again_with_the_question_and_the_answer(bus: Bus, tmp_path: Path) -> None:
    with serving(bus, tmp_path, "--once", command=script(tmp_path, ASKS_ONCE)) as serve:
        work_id = bus.open()
        assert serve.until("asked")["message"] == "Which branch?"
        asked(bus, work_id)
        assert bus.waiting(work_id) == []
        answer(bus, work_id)
        told = output(bus.end_of(work_id))
        assert serve.ended() == 0
    question, reply = told["conversation"]
    assert (question["from"], question["kind"], question["text"]) == ("worker", "question", "Which branch?")
    assert question["result"]["stdout"] == "looked at two branches\n"
    assert (reply["from"], reply["kind"], reply["text"]) == ("ops", "say", told["answer"])
    assert reply["body"]["text"] == told["answer"] == "the main branch"
    assert [item["event"] for item in serve.events if item["event"] != "heartbeat"] == [
        *("ready", "taken", "accepted", "started", "finished", "asked", "answered", "started", "finished", "reported")
    ]
    assert bus.waiting(work_id) == []
    assert list(bus.journal().glob("job_*")) == []


def test_a_waiting_work_occupies_no_slot(bus: Bus, tmp_path: Path) -> None:
    with serving(bus, tmp_path, command=script(tmp_path, ASKS_ONCE)) as serve:
        first = bus.open()
        serve.until("asked")
        assert bus.end_of(bus.open("no question"))["event"] == "trace:completed"
        answer(bus, first)
        assert output(bus.end_of(first))["answer"] == "the main branch"


def test_each_run_gets_all_questions_and_answers_before_it(bus: Bus, tmp_path: Path) -> None:
    command = ASK + "\nasked = told['conversation']\nask(f'{len(asked)}?') if len(asked) < 4 else print(len(asked))"
    with serving(bus, tmp_path, "--once", command=script(tmp_path, command)) as serve:
        work_id = bus.open()
        serve.until("asked", message="0?")
        answer(bus, work_id, "one")
        serve.until("asked", message="2?")
        answer(bus, work_id, "two")
        end = bus.end_of(work_id)
    assert (end["event"], end["message"]) == ("trace:completed", "4")


def test_an_answer_before_the_exit_of_the_command_is_not_lost(bus: Bus, tmp_path: Path) -> None:
    late = "\nif not told['conversation']:\n    while not pathlib.Path('go').exists(): time.sleep(0.01)"
    with serving(bus, tmp_path, "--once", "--heartbeat", "0.1s", command=script(tmp_path, ASKS_ONCE + late)) as serve:
        work_id = bus.open()
        asked(bus, work_id)
        answer(bus, work_id)
        wait_for(lambda: bus.waiting(work_id), WAIT, "the answer to arrive")
        (tmp_path / "go").touch()
        assert output(bus.end_of(work_id))["answer"] == "the main branch"
        assert serve.ended() == 0


def test_no_heartbeat_withdraws_a_question(bus: Bus, tmp_path: Path) -> None:
    busy = "\nfor n in range(20 * (not told['conversation'])):\n    print(n, flush=True); time.sleep(0.05)"
    with serving(bus, tmp_path, "--heartbeat", "0.05s", command=script(tmp_path, ASKS_ONCE + busy)) as serve:
        work_id = bus.open()
        serve.until("asked")
        asked(bus, work_id)


def test_a_command_that_reads_the_answer_itself_is_not_run_again(bus: Bus, tmp_path: Path) -> None:
    reads = """
ask("Which branch?")
take = [*ctl, "inbox", "next", "--work", told["work_id"], "--wait", "30s", "--ack", "-o", "json"]
print(json.loads(subprocess.run(take, check=True, capture_output=True).stdout)["item"]["message"]["envelope"]["body"]["text"])
"""
    with serving(bus, tmp_path, "--once", command=script(tmp_path, ASK + reads)) as serve:
        work_id = bus.open()
        asked(bus, work_id)
        answer(bus, work_id)
        assert bus.end_of(work_id)["message"] == "the main branch"
        assert serve.ended() == 0
    assert not serve.seen("answered")


def test_without_an_answer_the_work_fails_at_the_end_of_the_time(bus: Bus, tmp_path: Path) -> None:
    with serving(bus, tmp_path, "--once", "--answer-within", "1s", command=script(tmp_path, ASKS_ONCE)) as serve:
        end = bus.end_of(bus.open())
        assert serve.ended() == 1
    assert (end["event"], end["message"]) == ("trace:failed", "no answer within 1s: Which branch?")
    assert end["result"] == {"exit_code": None, "question": "Which branch?"}
    assert list(bus.journal().glob("job_*")) == []


def test_a_canceled_work_is_not_waited_for(bus: Bus, tmp_path: Path) -> None:
    with serving(bus, tmp_path, command=script(tmp_path, ASKS_ONCE)) as serve:
        work_id = bus.open()
        serve.until("asked")
        bus.ops.post(f"/v1/works/{work_id}/cancel")
        serve.until("dropped")
        wait_for(lambda: not list(bus.journal().glob("job_*")), WAIT, "the journal to be empty")
        assert bus.end_of(work_id)["event"] == "receipt:canceled"


@pytest.mark.parametrize("number", [signal.SIGKILL, signal.SIGTERM])
def test_the_waiting_work_survives_its_worker(bus: Bus, tmp_path: Path, number: signal.Signals) -> None:
    command = script(tmp_path, ASKS_ONCE)
    with serving(bus, tmp_path, command=command) as serve:
        work_id = bus.open()
        serve.until("asked")
        serve.stop(number)
    assert bus.phases() == {"waiting"}
    answer(bus, work_id)
    wait_for(lambda: bus.waiting(work_id), WAIT, "the answer to arrive")
    with serving(bus, tmp_path, command=command) as serve:
        assert output(bus.end_of(work_id))["answer"] == "the main branch"
        assert serve.until("recovered")["phase"] == "waiting"


def test_the_waiting_work_survives_its_daemon_and_its_worker(tmp_path: Path) -> None:
    with two_peers(tmp_path) as bus:
        command = script(tmp_path, ASKS_ONCE)
        with serving(bus, tmp_path, command=command) as serve:
            first = bus.open()
            wait_for(lambda: len(serve.seen("asked")) == 1, WAIT, "the first question")
            bus.worker.kill()
            bus.worker.start()
            bus.meet()
            answer(bus, first)
            assert output(bus.end_of(first))["answer"] == "the main branch"
            second = bus.open()
            wait_for(lambda: len(serve.seen("asked")) == 2, WAIT, "the other question")
            serve.stop(signal.SIGKILL)
        bus.worker.kill()
        bus.worker.start()
        bus.meet()
        answer(bus, second)
        with serving(bus, tmp_path, command=command):
            assert output(bus.end_of(second))["answer"] == "the main branch"


def test_unjournaled_question_is_awaited_after_a_restart(bus: Bus, tmp_path: Path) -> None:
    command = script(tmp_path, ASKS_ONCE)
    with serving(bus, tmp_path, command=command) as serve:
        work_id = bus.open()
        serve.until("asked")
        serve.stop(signal.SIGKILL)
    (path,) = bus.journal().glob("job_*.jsonl")
    path.write_bytes(b"".join(path.read_bytes().splitlines(keepends=True)[:-1]))
    assert bus.phases() == {"finished"}
    with serving(bus, tmp_path, command=command) as serve:
        serve.until("asked", message="Which branch?")
        answer(bus, work_id)
        assert output(bus.end_of(work_id))["answer"] == "the main branch"


def test_the_time_also_passes_without_a_worker_but_an_answer_counts(bus: Bus, tmp_path: Path) -> None:
    command = script(tmp_path, ASKS_ONCE)
    with serving(bus, tmp_path, command=command) as serve:
        unanswered = bus.open()
        serve.until("asked")
        answered = bus.open()
        wait_for(lambda: len(serve.seen("asked")) == 2, WAIT, "both questions")
        serve.stop(signal.SIGKILL)
    answer(bus, answered)
    wait_for(lambda: bus.waiting(answered), WAIT, "the answer to arrive")
    for path in bus.journal().glob("job_*.jsonl"):
        *before, last = path.read_text().splitlines()
        path.write_text("\n".join([*before, json.dumps({**json.loads(last), "until": 1.0}), ""]))
    with serving(bus, tmp_path, command=command):
        assert bus.end_of(unanswered)["event"] == "trace:failed"
        assert bus.end_of(answered)["event"] == "trace:completed"


def test_another_command_line_does_not_continue_a_waiting_work(bus: Bus, tmp_path: Path) -> None:
    with serving(bus, tmp_path, command=script(tmp_path, ASKS_ONCE)) as serve:
        work_id = bus.open()
        serve.until("asked")
        serve.stop(signal.SIGKILL)
    with serving(bus, tmp_path, command=[sys.executable, "-c", "print('other')"]):
        end = bus.end_of(work_id)
    assert (end["event"], end["result"]["restarted"]) == ("trace:failed", True)


# {capability}


@pytest.fixture(scope="module")
def catalog(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Bus]:
    """Peers whose initiator has a catalog: its works can name capabilities."""
    folder = tmp_path_factory.mktemp("capability")
    records = [{"id": name, "summary": "s", "outcome": "o"} for name in ("test.run", "test.other")]
    (folder / "catalog.json").write_text(json.dumps(records))
    with two_peers(folder, "--catalog", str(folder / "catalog.json")) as both:
        yield both


def test_the_capability_that_a_work_names_is_an_argument(catalog: Bus, tmp_path: Path) -> None:
    with serving(catalog, tmp_path, command=["echo", "run", "--what={capability}"]) as serve:
        named = catalog.open(None, capability_id="test.run")
        assert catalog.end_of(named)["result"]["stdout"] == "run --what=test.run\n"
        wait_for(lambda: serve.seen("reported"), WAIT, "the slot to be free")
        assert catalog.end_of(catalog.open("a text"))["result"]["stdout"] == "run --what=test.run\n"
        wait_for(lambda: len(serve.seen("reported")) == 2, WAIT, "the slot to be free")
        other = catalog.end_of(catalog.open(None, capability_id="test.other"))
        told = serve.until("rejected")
    assert (other["event"], other["reason"]) == ("receipt:rejected", "unsupported_profile")
    assert other["message"] == told["message"] == "the work names test.other; this peer serves test.run"
