"""What a command of `aghctl serve` gets and may do: its environment, limits and sandbox, and whose work it is run for."""

import json
import os
import subprocess
import sys
from pathlib import Path

import pytest

from aghbus.cli.app.registry import PROGRAM
from aghbus.cli.commands.serve import plan_of
from aghbus.cli.worker import confine
from aghbus.cli.worker.confine import FAILED, LEAST_ABI, landlock_abi, launched
from aghbus.client.errors import UsageError
from tests.support.daemons import Daemon, wait_for
from tests.support.serving import WAIT, Bus, script, serving

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="serve needs Linux")
needs_landlock = pytest.mark.skipif(landlock_abi() < LEAST_ABI, reason="this kernel has no Landlock")


def result_of(bus: Bus, work_id: str) -> dict[str, object]:
    """The result in the terminal trace."""
    bus.end_of(work_id)
    result: dict[str, object] = bus.traces(work_id)[-1]["result"]
    return result


def shell(bus: Bus, folder: Path, text: str, *options: str) -> dict[str, object]:
    """The result of one work whose command is this shell script."""
    with serving(bus, folder, "--once", *options, command=["sh", "-c", text]) as serve:
        work = bus.open()
        serve.ended()
    return result_of(bus, work)


def test_the_command_gets_only_the_variables_that_are_passed(
    bus: Bus, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    for name in ("CLOUD_TOKEN", "BUILD_NUMBER", "LC_TIME"):
        monkeypatch.setitem(bus.home.env, name, "7")
    found = str(shell(bus, tmp_path, "env", "--pass-env", "BUILD_NUMBER")["stdout"])
    names = {line.partition("=")[0] for line in found.splitlines()}
    assert {"PATH", "HOME", "LC_TIME", "BUILD_NUMBER", "AGH_WORK_ID"} <= names
    assert "CLOUD_TOKEN" not in names
    assert {name for name in names if name.startswith("AGHD_")} == {
        "AGHD_API_SOCKET"
    }  # where the daemon is; no credential


def test_limits_hold_for_the_command(bus: Bus, tmp_path: Path) -> None:
    limits = ("--limit", "memory=2G", "--limit", "files=33", "--limit", "file-size=4K", "--limit", "cpu=1m")
    result = shell(
        bus, tmp_path, "ulimit -v; ulimit -n; ulimit -t; head -c 9000 /dev/zero > big || wc -c < big", *limits
    )
    assert str(result["stdout"]).split() == [str(2 << 20), "33", "60", "4096"]


def test_a_command_beyond_its_cpu_time_is_ended_by_the_kernel(bus: Bus, tmp_path: Path) -> None:
    result = shell(bus, tmp_path, "while :; do :; done", "--limit", "cpu=1s")
    assert result["signal"] == "SIGXCPU"


def test_a_kernel_without_landlock_is_a_clear_error(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confine, "landlock_abi", lambda: 0)
    with pytest.raises(UsageError, match="no Landlock") as refused:
        plan_of(PROGRAM.parse(["serve", "--capability", "c", "--sandbox", "--", "true"])[1])
    assert "without --sandbox" in refused.value.hint


@needs_landlock
def test_a_sandboxed_command_reads_and_writes_only_what_it_may(bus: Bus, tmp_path: Path) -> None:
    folder, secret, readable, writable = (tmp_path / name for name in ("work", "secret", "readable", "writable"))
    for path in (folder, secret, readable, writable):
        path.mkdir()
        (path / "file").write_text("old\n")
    text = f"""
        cat {secret}/file; ls {secret}; echo x > {secret}/file; echo x > {secret}/new; rm {secret}/file
        cat {readable}/file; echo x > {readable}/file
        echo new > {writable}/file; echo new > file; mkdir below; echo discarded > /dev/null
        cat "$AGH_INPUT" > input; ls ~/.ssh /root /home; cat {bus.home.root}/state/aghbus/instances/worker/store.db
        grep NoNewPrivs /proc/self/status
    """
    options = ("--sandbox", "--sandbox-read", str(readable), "--sandbox-write", str(writable))
    result = shell(bus, folder, text, *options)
    assert str(result["stdout"]).split() == ["old", "NoNewPrivs:", "1"]
    assert [(path / "file").read_text() for path in (secret, readable)] == ["old\n", "old\n"]
    assert [path.name for path in secret.iterdir()] == ["file"]
    assert [(path / "file").read_text() for path in (folder, writable)] == ["new\n", "new\n"]
    assert json.loads((folder / "input").read_text())["from"] == "ops"


@needs_landlock
def test_a_sandboxed_command_signals_no_process_outside(bus: Bus, tmp_path: Path) -> None:
    if landlock_abi() < 6:
        pytest.skip("signals are confined from Landlock 6 on")
    result = shell(bus, tmp_path, f"kill -0 {os.getpid()} || echo refused", "--sandbox")
    assert str(result["stdout"]).strip() == "refused"


@needs_landlock
def test_a_sandbox_that_contains_the_daemons_keys_is_refused(bus: Bus) -> None:
    words = ["serve", "--capability", "test.run", "--sandbox", "--cwd", str(bus.home.root), "--", "true"]
    done = bus.home.ctl("--name", "worker", *words)
    assert (done.returncode, b"contains the state" in done.stderr) == (2, True)


def test_rules_that_cannot_be_set_start_nothing(tmp_path: Path) -> None:
    paths = {"read": (str(tmp_path / "missing"),), "write": ()}
    line = launched([sys.executable, "-c", "open('ran', 'w')"], {}, paths)
    assert subprocess.run(line, cwd=tmp_path, check=False).returncode == FAILED
    assert list(tmp_path.iterdir()) == []


def test_a_name_without_a_key_is_accepted_only_on_request(bus: Bus, tmp_path: Path) -> None:
    words = ["serve", "--capability", "test.run", "--accept", "from=ops"]
    done = bus.home.ctl("--name", "worker", *words, "--", "true")
    assert (done.returncode, b"--allow-unverified" in done.stderr) == (2, True)
    options = ("--accept", "from=ops", "--allow-unverified", "--once")
    with serving(bus, tmp_path, *options, command=["true"]) as serve:
        bus.open()
        assert serve.ended() == 0


def test_only_verified_peers_are_served_on_request(bus: Bus, tmp_path: Path) -> None:
    bus.home.ctl_json("--name", "signed", "key", "generate")
    with Daemon(bus.home, "signed") as signed:
        wait_for(lambda: signed.knows("worker"), WAIT, "the worker")
        with serving(bus, tmp_path, "--once", "--accept", "trust=verified", command=["true"]) as serve:
            plain = bus.open()
            work = signed.post("/v1/works", to="worker", text="x")["work_id"]
            assert serve.ended() == 0
        wait_for(lambda: signed.state_of(work) == "completed", WAIT, "the work of the verified peer")
        assert bus.worker.state_of(plain) == "submitted"
        bus.worker.post(f"/v1/works/{plain}/reject")


def test_the_command_itself_is_what_runs(bus: Bus, tmp_path: Path) -> None:
    with serving(
        bus, tmp_path, "--once", "--limit", "files=64", command=script(tmp_path, "import os; print(os.getpid())")
    ) as serve:
        work = bus.open()
        serve.ended()
        pid = serve.seen("started")[0]["pid"]
    assert str(result_of(bus, work)["stdout"]).strip() == str(pid)
