"""`aghctl serve` that is stopped or killed, and daemons that are, with real commands."""

import contextlib
import os
import signal
from pathlib import Path

import pytest

from aghbus.client.work.journal import Journal
from tests.support.daemons import HttpError, wait_for
from tests.support.serving import FAMILY, WAIT, WAITS, Bus, all_gone, lives, pids_of, script, serving, two_peers

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="serve needs Linux")


# stopping


def test_sigterm_lets_running_jobs_finish_and_takes_no_more_work(bus: Bus, tmp_path: Path) -> None:
    with serving(bus, tmp_path, command=script(tmp_path, WAITS)) as serve:
        work_id = bus.open()
        serve.until("started")
        serve.process.send_signal(signal.SIGTERM)
        serve.until("stopping")
        later = bus.open()
        (tmp_path / "go").touch()
        assert serve.ended() == 0
    assert bus.end_of(work_id)["event"] == "trace:completed"
    assert bus.worker.state_of(later) == "submitted"
    bus.worker.post(f"/v1/works/{later}/reject")


def test_a_job_that_outlasts_the_drain_is_stopped_and_fails(bus: Bus, tmp_path: Path) -> None:
    with serving(bus, tmp_path, "--drain", "0.2s", "--grace", "0.2s", command=script(tmp_path, FAMILY)) as serve:
        work_id = bus.open()
        pids = pids_of(tmp_path)
        assert serve.stop() == 0
    end = bus.end_of(work_id)
    assert (end["event"], end["message"]) == ("trace:failed", "the worker was stopped before the command had ended")
    assert all_gone(pids)()


def test_a_result_for_a_daemon_that_stays_away_is_left_in_the_journal(tmp_path: Path) -> None:
    with two_peers(tmp_path) as bus:
        options = ["--drain", "0s", "--grace", "0s"]
        with serving(bus, tmp_path, *options, command=script(tmp_path, WAITS)) as serve:
            serve.until("started", work_id=bus.open())
            bus.worker.kill()
            (tmp_path / "go").touch()
            serve.until("finished")
            assert serve.stop() == 3
            assert serve.seen("unreported")
        assert bus.phases() == {"finished"}
        bus.worker.start()


# restarts


@pytest.mark.parametrize("hangs", [False, True], ids=["daemon away", "daemon hangs"])
def test_finished_but_not_reported_is_reported_once_and_not_run_again(tmp_path: Path, hangs: bool) -> None:
    with two_peers(tmp_path) as bus:
        assert bus.worker.process is not None
        command = script(tmp_path, WAITS)
        with serving(bus, tmp_path, command=command) as serve:
            work_id = bus.open()
            serve.until("started")
            if hangs:
                bus.worker.process.send_signal(signal.SIGSTOP)
            else:
                bus.worker.kill()
            (tmp_path / "go").touch()
            wait_for(lambda: bus.phases() == {"finished"}, WAIT, "the end in the journal")
            serve.stop(signal.SIGKILL)
        if hangs:
            bus.worker.process.send_signal(signal.SIGCONT)
        else:
            bus.worker.start()
        with serving(bus, tmp_path, command=command) as serve:
            assert bus.end_of(work_id)["message"] == "went"
            wait_for(lambda: not bus.waiting(work_id), WAIT, "the acknowledgement")
            assert serve.until("recovered")["phase"] == "finished"
            assert serve.stop() == 0
        assert [body["state"] for body in bus.traces(work_id)] == ["completed"]
        assert (tmp_path / "runs").read_text().split() == [work_id]
        assert bus.phases() == set()


def test_a_command_that_outlived_its_worker_is_ended_and_not_run_again(bus: Bus, tmp_path: Path) -> None:
    options = ["--grace", "0.2s"]
    with serving(bus, tmp_path, *options, command=script(tmp_path, FAMILY)) as serve:
        work_id = bus.open()
        pids = pids_of(tmp_path)
        wait_for(lambda: bus.phases() == {"started"}, WAIT, "the start in the journal")
        serve.stop(signal.SIGKILL)
    assert all(lives(pid) for pid in pids)
    (tmp_path / "pids").unlink()
    with serving(bus, tmp_path, *options, command=script(tmp_path, FAMILY)) as serve:
        assert serve.until("recovered")["processes"] == 3
        end = bus.end_of(work_id)
        assert all_gone(pids)()
        assert serve.stop() == 0
    assert (end["event"], end["result"]) == ("trace:failed", {"exit_code": None, "restarted": True})
    assert "not run again" in end["message"]
    assert not (tmp_path / "pids").exists()


def test_with_rerun_a_command_that_died_with_its_worker_runs_again(bus: Bus, tmp_path: Path) -> None:
    command = script(tmp_path, WAITS)
    with serving(bus, tmp_path, command=command) as serve:
        work_id = bus.open()
        serve.until("started")
        wait_for(lambda: (tmp_path / "runs").exists() and (tmp_path / "runs").read_text(), WAIT, "the first run")
        serve.stop(signal.SIGKILL)
    (tmp_path / "go").touch()
    with serving(bus, tmp_path, "--on-restart", "rerun", command=command) as serve:
        assert bus.end_of(work_id)["event"] == "trace:completed"
        wait_for(lambda: not bus.waiting(work_id), WAIT, "the acknowledgement")
        assert serve.stop() == 0
    assert (tmp_path / "runs").read_text().split() == [work_id, work_id]


@pytest.mark.parametrize("accepted", [False, True], ids=["leased", "accepted"])
def test_a_job_that_was_taken_but_not_started_is_run(bus: Bus, tmp_path: Path, accepted: bool) -> None:
    work_id = bus.open()
    item = bus.worker.post("/v1/inbox/next", work_id=work_id, visibility=3600)["item"]
    Journal(str(bus.journal())).begin(seq=item["seq"], command=["/usr/bin/true"], item=item).leave()
    if accepted:
        bus.worker.post(f"/v1/works/{work_id}/accept")
    with serving(bus, tmp_path, command=["/usr/bin/true"]) as serve:
        assert serve.until("recovered")["phase"] == "taken"
        assert bus.end_of(work_id)["event"] == "trace:completed"
        wait_for(lambda: not bus.waiting(work_id), WAIT, "the acknowledgement")
        assert serve.stop() == 0
        assert len(serve.seen("started")) == 1
    assert bus.phases() == set()


def test_a_recovered_job_that_was_not_started_takes_one_attempt(bus: Bus, tmp_path: Path) -> None:
    work_id = bus.open()
    item = bus.worker.post("/v1/inbox/next", work_id=work_id, visibility=1)["item"]
    Journal(str(bus.journal())).begin(seq=item["seq"], command=["/usr/bin/true"], item=item).leave()
    wait_for(lambda: bus.waiting(work_id)[0]["state"] == "ready", WAIT, "the end of the lease")
    with serving(bus, tmp_path, command=script(tmp_path, WAITS)) as serve:
        serve.until("started")
        assert [one["attempts"] for one in bus.waiting(work_id)] == [2]
        (tmp_path / "go").touch()
        bus.end_of(work_id)


def test_a_work_that_was_canceled_while_its_worker_was_dead_is_dropped(bus: Bus, tmp_path: Path) -> None:
    with serving(bus, tmp_path, command=script(tmp_path, FAMILY)) as serve:
        work_id = bus.open()
        pids = pids_of(tmp_path)
        wait_for(lambda: bus.phases() == {"started"}, WAIT, "the start in the journal")
        serve.stop(signal.SIGKILL)
    bus.ops.post(f"/v1/works/{work_id}/cancel")
    wait_for(lambda: bus.worker.state_of(work_id) == "canceled", WAIT, "the cancellation")
    with serving(bus, tmp_path, "--grace", "0.2s", command=["true"]) as serve:
        serve.until("dropped", work_id=work_id)
        assert all_gone(pids)()
        wait_for(lambda: not bus.waiting(work_id), WAIT, "the acknowledgement")
        assert serve.stop() == 0
    assert bus.traces(work_id) == []


def test_two_workers_share_a_journal_without_taking_each_others_jobs(bus: Bus, tmp_path: Path) -> None:
    with serving(bus, tmp_path, "--accept", "intent=slow", command=script(tmp_path, WAITS)) as slow:
        work_id = bus.open(intent="slow")
        slow.until("started")
        with serving(bus, tmp_path, "--accept", "intent=fast", "--once", command=["true"]) as fast:
            assert bus.end_of(bus.open(intent="fast"))["event"] == "trace:completed"
            assert fast.ended() == 0
            assert fast.seen("recovered") == []
        (tmp_path / "go").touch()
        assert bus.end_of(work_id)["event"] == "trace:completed"
        assert slow.stop() == 0


def return_to_inbox(bus: Bus, work_id: str) -> None:
    """As when the lease of the opening runs out."""
    (item,) = bus.waiting(work_id)
    bus.worker.post(f"/v1/inbox/{item['seq']}/nack", delay=0)


def test_worker_recovers_a_killed_workers_job_at_lease_expiry(bus: Bus, tmp_path: Path) -> None:
    options, command = ["--grace", "0.2s"], script(tmp_path, FAMILY)
    with serving(bus, tmp_path, *options, command=command) as killed:
        work_id = bus.open()
        pids = pids_of(tmp_path)
        wait_for(lambda: bus.phases() == {"started"}, WAIT, "the start in the journal")
        with serving(bus, tmp_path, *options, command=command) as living:
            killed.stop(signal.SIGKILL)
            return_to_inbox(bus, work_id)
            assert living.until("recovered", work_id=work_id)["processes"] == 3
            assert bus.end_of(work_id)["result"]["restarted"] is True
            assert all_gone(pids)()
            assert living.seen("started") == []
            assert living.stop() == 0


def test_a_job_in_the_journal_of_a_living_worker_is_not_run_by_another(bus: Bus, tmp_path: Path) -> None:
    command = script(tmp_path, WAITS)
    with serving(bus, tmp_path, command=command) as first:
        work_id = bus.open()
        first.until("started")
        with serving(bus, tmp_path, command=command) as second:
            return_to_inbox(bus, work_id)
            assert "another worker" in second.until("problem", work_id=work_id)["message"]
            (tmp_path / "go").touch()
            assert bus.end_of(work_id)["message"] == "went"
            assert (first.stop(), second.stop()) == (0, 0)
    assert (tmp_path / "runs").read_text().split() == [work_id]


def test_the_daemon_may_be_killed_and_started_while_a_command_runs(tmp_path: Path) -> None:
    with (
        two_peers(tmp_path) as bus,
        serving(bus, tmp_path, "--heartbeat", "0.2s", command=script(tmp_path, WAITS)) as serve,
    ):
        work_id = bus.open()
        serve.until("started")
        bus.worker.kill()
        bus.worker.start()
        beats = len(serve.seen("heartbeat"))
        wait_for(lambda: len(serve.seen("heartbeat")) > beats, WAIT, "a heartbeat over the new daemon")
        (tmp_path / "go").touch()
        assert bus.end_of(work_id)["message"] == "went"
        serve.until("reported")
        wait_for(lambda: not bus.waiting(work_id), WAIT, "the acknowledgement")
        second = bus.open()
        assert bus.end_of(second)["event"] == "trace:completed"
        third = bus.open()
        with contextlib.suppress(HttpError):  # the command has nothing to wait for: it may have ended before
            bus.ops.post(f"/v1/works/{third}/cancel")
        bus.end_of(third)
        assert serve.stop() == 0
    assert (tmp_path / "runs").read_text().split()[:2] == [work_id, second]
