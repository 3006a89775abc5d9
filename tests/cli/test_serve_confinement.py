"""What a command of `aghctl serve` gets and may do: its environment, limits and sandbox, and whose work it is run for."""

import contextlib
import json
import os
import socket
import subprocess
import sys
import textwrap
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from aghbus.cli.app.registry import PROGRAM
from aghbus.cli.commands.serve import plan_of
from aghbus.cli.worker import confine
from aghbus.cli.worker.confine import FAILED, LEAST_ABI, Sandbox, landlock_abi, launched
from aghbus.cli.worker.options import CommandOptions
from aghbus.client.errors import UsageError
from tests.support.daemons import Daemon, wait_for
from tests.support.serving import WAIT, Bus, script, serving
from tests.support.tools import require_tool

pytestmark = pytest.mark.skipif(not hasattr(os, "pidfd_open"), reason="serve needs Linux")
ESCAPES = """
import os, resource, socket, sys
outside, listener, pid = sys.argv[1], sys.argv[2], int(sys.argv[3])
escapes = {
    "read": lambda: open(outside).read(),
    "list": lambda: os.listdir(os.path.dirname(outside)).index("outside"),
    "write": lambda: open(outside, "a").write("x"),
    "chmod": lambda: os.chmod(outside, 0o644),
    "utime": lambda: os.utime(outside, (1, 1)),
    "setxattr": lambda: os.setxattr(outside, "user.escape", b"x"),
    "stat": lambda: os.stat(outside),
    "socket": lambda: socket.socket(socket.AF_UNIX).connect(listener),
    "abstract socket": lambda: socket.socket(socket.AF_UNIX).connect(f"\\0{listener}"),
    "prlimit": lambda: resource.prlimit(pid, resource.RLIMIT_NOFILE, (64, 64)),
    "setpriority": lambda: os.setpriority(os.PRIO_PROCESS, pid, 5),
    "signal": lambda: os.kill(pid, 0),
    "environ": lambda: open(f"/proc/{pid}/environ").read(),
    "maps": lambda: open(f"/proc/{pid}/maps").read(),
    "oom_score_adj": lambda: open("/proc/self/oom_score_adj", "w").write("500"),
}
for name, escape in escapes.items():
    try:
        escape()
    except (OSError, ValueError):
        continue
    print(name)
"""
EVERYTHING = {
    *("read", "list", "write", "chmod", "utime", "setxattr", "stat", "socket", "abstract socket"),
    *("prlimit", "setpriority", "signal", "environ", "maps", "oom_score_adj"),
}
OF_OLD_KERNELS = {"abstract socket", "signal"} if landlock_abi() < 6 else set()
LET_THROUGH = {
    "bubblewrap": OF_OLD_KERNELS - {"signal"},
    "landlock": OF_OLD_KERNELS | {"chmod", "utime", "setxattr", "stat", "socket", "prlimit", "setpriority"},
}
"""What docs/serve.md says."""


def parsed(*options: str, command: list[str]) -> CommandOptions:
    """The options of a worker with the command line that these words make."""
    return plan_of(PROGRAM.parse(["serve", "--capability", "test.run", *options, "--", *command])[1])


@pytest.fixture(params=["bubblewrap", "landlock"])
def sandbox(request: pytest.FixtureRequest) -> str:
    """Each sandbox that works here."""
    name: str = request.param
    if name == "bubblewrap":
        require_tool("bwrap")
    try:
        parsed("--sandbox", "--sandbox-with", name, command=["true"])
    except UsageError as error:
        pytest.skip(error.message)
    return name


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


def test_the_command_gets_a_valid_trace_context_only(bus: Bus, tmp_path: Path) -> None:
    parent = f"00-{'a' * 32}-{'b' * 16}-01"
    given = [
        ({"traceparent": parent, "tracestate": "a=b,c=d"}, f"TRACEPARENT={parent}\nTRACESTATE=a=b,c=d"),
        ({"tracestate": "a=b"}, ""),
        *(({"traceparent": parent, "tracestate": text}, f"TRACEPARENT={parent}") for text in ("a=b\n", "é", "x" * 513)),
        *(
            ({"traceparent": text, "tracestate": "a=b"}, "")
            for text in (
                *(parent + "\n", parent.upper(), parent[:-1], f"x{parent}", f"{parent}-00"),
                *(parent.replace("a", "0"), parent.replace("b", "0"), parent.replace("00-", "ff-")),
            )
        ),
    ]
    command = ["sh", "-c", "env | grep ^TRACE | sort"]
    with serving(bus, tmp_path, "--max-jobs", str(len(given)), command=command) as serve:
        works = [bus.open(ext=ext) for ext, _ in given]
        serve.ended()
    assert [str(result_of(bus, work)["stdout"]).strip() for work in works] == [found for _, found in given]


def test_limits_hold_for_the_command(bus: Bus, tmp_path: Path) -> None:
    limits = ("--limit", "memory=2G", "--limit", "files=33", "--limit", "file-size=4K", "--limit", "cpu=1m")
    result = shell(
        bus, tmp_path, "ulimit -v; ulimit -n; ulimit -t; head -c 9000 /dev/zero > big || wc -c < big", *limits
    )
    assert str(result["stdout"]).split() == [str(2 << 20), "33", "60", "4096"]


def test_a_command_beyond_its_cpu_time_is_ended_by_the_kernel(bus: Bus, tmp_path: Path) -> None:
    result = shell(bus, tmp_path, "while :; do :; done", "--limit", "cpu=1s")
    assert result["signal"] == "SIGXCPU"


@pytest.fixture
def no_bubblewrap(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> Path:
    """The only folder of PATH, without bwrap."""
    folder = tmp_path / "bin"
    folder.mkdir()
    monkeypatch.setenv("PATH", str(folder))
    return folder


@pytest.mark.usefixtures("no_bubblewrap")
def test_without_any_sandbox_serve_does_not_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(confine, "landlock_abi", lambda: 0)
    with pytest.raises(UsageError, match=r"no Landlock.*bwrap is not installed") as refused:
        parsed("--sandbox", command=["/bin/true"])
    assert "without --sandbox" in refused.value.hint


@pytest.mark.skipif(landlock_abi() < LEAST_ABI, reason="this kernel has no Landlock")
def test_a_bubblewrap_that_does_not_work_leaves_landlock(no_bubblewrap: Path) -> None:
    (no_bubblewrap / "bwrap").write_text("#!/bin/sh\necho >&2 bwrap: no namespaces\nexit 1\n")
    (no_bubblewrap / "bwrap").chmod(0o700)
    plan = parsed("--sandbox", command=["/bin/true"])
    assert plan.sandbox is not None
    assert (plan.sandbox.name, "bwrap: no namespaces" in plan.sandbox.warning) == ("landlock", True)
    with pytest.raises(UsageError, match="bwrap: no namespaces"):
        parsed("--sandbox", "--sandbox-with", "bubblewrap", command=["/bin/true"])


@pytest.fixture
def neighbour() -> Iterator[int]:
    """The pid of a process outside."""
    with subprocess.Popen(["sleep", "90"]) as process:
        yield process.pid
        process.kill()


def test_what_a_sandbox_stops_works_without_it(sandbox: str, tmp_path: Path, neighbour: int) -> None:
    path = tmp_path / "listener"
    folder, outside = tmp_path / "work", tmp_path / "outside"
    folder.mkdir()
    outside.write_text("secret")
    words = [os.path.realpath(sys.executable), "-I", "-S", "-c", ESCAPES, str(outside), str(path), str(neighbour)]

    def escapes(*options: str) -> set[str]:
        plan = parsed("--cwd", str(folder), *options, command=words)
        line = plan.command_line("/dev/null", {})
        return set(subprocess.run(line, cwd=folder, capture_output=True, check=True).stdout.decode().splitlines())

    with socket.socket(socket.AF_UNIX) as listener, socket.socket(socket.AF_UNIX) as abstract:
        for one, name in ((listener, str(path)), (abstract, f"\0{path}")):
            one.bind(name)
            one.listen()
        inside = escapes("--sandbox", "--sandbox-with", sandbox, "--sandbox-read", sys.base_prefix)
        assert (inside - LET_THROUGH[sandbox], escapes()) == (set(), EVERYTHING)


def test_a_sandboxed_command_reads_and_writes_only_what_it_may(bus: Bus, tmp_path: Path, sandbox: str) -> None:
    folder, secret, readable, writable = (tmp_path / name for name in ("work", "secret", "readable", "writable"))
    for path in (folder, secret, readable, writable):
        path.mkdir()
        (path / "file").write_text("old\n")
    text = f"""
        cat {secret}/file; ls {secret}; echo x > {secret}/file; echo x > {secret}/new; rm {secret}/file
        cat {readable}/file; echo x > {readable}/file
        echo new > {writable}/file; echo new > file; mkdir below; echo discarded > /dev/null
        cat "$AGH_INPUT" > input; ls ~/.ssh /root /home; cat {bus.home.root}/state/aghbus/instances/worker/store.db
        grep -E 'NoNewPrivs|Cap(Prm|Eff)' /proc/self/status
    """
    options = (
        "--sandbox",
        "--sandbox-with",
        sandbox,
        "--sandbox-read",
        str(readable),
        "--sandbox-write",
        str(writable),
    )
    result = shell(bus, folder, text, *options)
    assert str(result["stdout"]).split() == ["old", "CapPrm:", "0" * 16, "CapEff:", "0" * 16, "NoNewPrivs:", "1"]
    assert [(path / "file").read_text() for path in (secret, readable)] == ["old\n", "old\n"]
    assert [path.name for path in secret.iterdir()] == ["file"]
    assert [(path / "file").read_text() for path in (folder, writable)] == ["new\n", "new\n"]
    assert json.loads((folder / "input").read_text())["from"] == "ops"


def test_a_sandboxed_command_reaches_the_daemon_after_its_restart(bus: Bus, tmp_path: Path, sandbox: str) -> None:
    text = """
        import os, pathlib, socket, time
        print("up", flush=True)
        while not pathlib.Path("go").exists():
            time.sleep(0.01)
        socket.socket(socket.AF_UNIX).connect(os.environ["AGHD_API_SOCKET"])
    """
    command = [os.path.realpath(sys.executable), "-I", "-S", "-c", textwrap.dedent(text)]
    options = ("--once", "--sandbox", "--sandbox-with", sandbox, "--sandbox-read", sys.base_prefix)
    with serving(bus, tmp_path, *options, command=command) as serve:
        work = bus.open()
        serve.until("heartbeat", message="up")
        bus.worker.kill()
        bus.worker.start()
        (tmp_path / "go").touch()
        assert serve.ended() == 0
    assert serve.seen("ready", sandbox=sandbox)
    warnings = [event["message"] for event in serve.seen("problem") if "Landlock only" in event["message"]]
    assert len(warnings) == (sandbox == "landlock")
    assert result_of(bus, work)["exit_code"] == 0


def test_a_sandboxed_command_may_end_by_itself_after_sigterm(bus: Bus, tmp_path: Path, sandbox: str) -> None:
    text = "trap 'echo orderly > end; exit' TERM; echo > set; while :; do sleep 0.05; done"
    for limit in (1, 10, 30):  # on a slow machine the trap is not set within the first
        began = time.monotonic()
        options = ("--sandbox", "--sandbox-with", sandbox, "--time-limit", f"{limit}s", "--grace", "60s")
        assert shell(bus, tmp_path, text, *options)["timeout"]
        if (tmp_path / "set").exists():
            break
    assert (tmp_path / "end").read_text() == "orderly\n"
    assert time.monotonic() - began < 60


@pytest.mark.parametrize("sandbox", ["bubblewrap"], indirect=True)
@pytest.mark.parametrize("killed", [False, True])
def test_no_process_outlives_bubblewrap(bus: Bus, tmp_path: Path, sandbox: str, *, killed: bool) -> None:
    seconds = f"{90 + killed}.{os.getpid()}"
    text = f"""
        env -i setsid sh -c 'echo > up; exec sleep {seconds}' & while ! [ -e up ]; do sleep 0.01; done
        echo up; while ! [ -e go ]; do sleep 0.01; done
    """
    options = ("--sandbox", "--sandbox-with", sandbox)

    def sleeps() -> bool:
        words = f"sleep\0{seconds}\0".encode()
        return any(_content(path) == words for path in Path("/proc").glob("[0-9]*/cmdline"))

    with serving(bus, tmp_path, *options, command=["sh", "-c", text]) as serve:
        work = bus.open()
        serve.until("heartbeat", message="up")
        wait_for(sleeps, WAIT, "the process in a session of its own")
        if killed:
            serve.process.kill()
        else:
            (tmp_path / "go").touch()
            assert result_of(bus, work)["exit_code"] == 0
        wait_for(lambda: not sleeps(), WAIT, "the end of the process")
    if killed:
        with serving(bus, tmp_path, "--once", *options, command=["true"]) as serve:
            assert serve.until("recovered")["processes"] == 0
            assert bus.end_of(work)["result"]["restarted"]


def _content(path: Path) -> bytes:
    with contextlib.suppress(OSError):
        return path.read_bytes()
    return b""


@pytest.mark.parametrize("limit", ["memory=lots", "files=0", "cpu=x", "size=1"])
def test_a_limit_that_is_none_is_refused_with_the_forms(bus: Bus, limit: str) -> None:
    done = bus.home.ctl("--name", "worker", "serve", "--capability", "test.run", "--limit", limit, "--", "true")
    assert (done.returncode, b"must be cpu=TIME, memory=BYTES" in done.stderr) == (2, True)


def test_a_sandbox_that_contains_the_daemons_keys_is_refused(bus: Bus) -> None:
    words = ["serve", "--capability", "test.run", "--sandbox", "--cwd", str(bus.home.root), "--", "true"]
    done = bus.home.ctl("--name", "worker", *words)
    assert (done.returncode, b"contains the state" in done.stderr) == (2, True)


def test_rules_that_cannot_be_set_start_nothing(tmp_path: Path, sandbox: str) -> None:
    program = require_tool("bwrap") if sandbox == "bubblewrap" else ""
    paths = Sandbox((str(tmp_path / "missing"),), (str(tmp_path),), program)
    line = launched(["/bin/sh", "-c", "echo > ran"], {}, paths)
    assert subprocess.run(line, cwd=tmp_path, check=False).returncode == (1 if program else FAILED)
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
