"""`aghctl backup --keep` and `aghd restore --verify`: what a timer or a CronJob runs."""

import json
import os
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest
import yaml

from tests.support.daemons import Daemon, Home
from tests.support.tools import require_tool

DEPLOY: Final = Path(__file__).parent.parent.parent / "deploy"


@pytest.fixture
def ops(home: Home) -> Iterator[Daemon]:
    """A daemon with one stored message, and a key."""
    home.ctl_json("--name", "ops", "key", "generate")
    with Daemon(home, "ops") as daemon:
        daemon.post("/v1/messages", kind="say", body={"text": "before the backup"}, to="bob")
        yield daemon


def aghd(home: Home, *args: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "aghbus.daemon", *args]
    return subprocess.run(command, env=home.env, capture_output=True, timeout=60, check=False)


def verified(home: Home, backup: Path) -> tuple[int, dict[str, Any]]:
    done = aghd(home, "restore", "--verify", str(backup), "-o", "json")
    return done.returncode, json.loads(done.stdout)


def dated(home: Home, folder: Path, day: int, keep: int = 2, name: str = "ops") -> dict[str, Any]:
    """A backup that was made on this day of May, as far as its name tells."""
    made: dict[str, Any] = home.ctl_json("--name", name, "backup", f"{folder}/", "--keep", str(keep), "--with-keys")
    written = Path(made["file"]).parent
    written.rename(folder / f"202605{day:02}T030000Z")
    return made


def names(folder: Path) -> list[str]:
    return sorted(path.name for path in folder.iterdir())


def test_the_newest_backups_are_left_and_the_newest_is_restored(home: Home, ops: Daemon, tmp_path: Path) -> None:
    folder = tmp_path / "copies"
    removed = [dated(home, folder, day)["removed"] for day in (1, 2)]
    (folder / "unfinished").mkdir()
    for name in ("store.db.part", "store.db", "former.pem"):
        (folder / "unfinished" / name).write_text("of a backup that was killed")
    last = home.ctl_json("--name", "ops", "backup", str(folder), "--keep", "2", "--with-keys")
    assert [*removed, last["removed"]] == [[], [], [str(folder / "20260501T030000Z")]]
    assert names(folder) == ["20260502T030000Z", Path(last["file"]).parent.name]
    assert names(Path(last["file"]).parent) == ["audit.head", "identity.pem", "store.db", "store.db.mark"]
    ops.stop()
    restored = aghd(home, "restore", "--name", "ops", str(folder), "--replace", "-o", "json")
    assert restored.returncode == 0, restored.stderr
    ops.start()
    (message,) = ops.get("/v1/messages")["messages"]
    assert message["envelope"]["body"]["text"] == "before the backup"


def test_only_what_it_made_itself_is_removed(home: Home, ops: Daemon, tmp_path: Path) -> None:
    folder = tmp_path / "copies"
    with Daemon(home, "other"):
        dated(home, folder, 1, name="other")
    dated(home, folder, 2)
    (folder / "20260502T030000Z" / "notes.txt").write_text("mine")
    (folder / "20260503T030000Z").mkdir()
    (folder / "20260504T030000Z").write_text("a file")
    dated(home, folder, 5, keep=1)
    (folder / "20260506T030000Z").symlink_to(folder / "20260505T030000Z")
    (folder / "before the move").mkdir()
    before = names(folder)
    made = home.ctl_json("--name", "ops", "backup", f"{folder}/", "--keep", "1")
    assert made["removed"] == [str(folder / "20260505T030000Z")]
    assert set(before) - set(names(folder)) == {"20260505T030000Z"}


def test_an_interrupted_removal_is_finished_by_the_next_backup(home: Home, ops: Daemon, tmp_path: Path) -> None:
    folder = tmp_path / "copies"
    dated(home, folder, 1)
    (folder / "20260501T030000Z" / "store.db").unlink()
    made = home.ctl_json("--name", "ops", "backup", f"{folder}/", "--keep", "1")
    assert made["removed"] == [str(folder / "20260501T030000Z")]
    assert names(folder) == [Path(made["file"]).parent.name]


@pytest.mark.parametrize("words", [("--keep", "0"), ("--keep", "2", "--force"), ("--keep", "2", "--move")])
def test_wrong_use_of_keep_is_refused(home: Home, tmp_path: Path, words: tuple[str, ...]) -> None:
    refused = home.ctl("--name", "ops", "backup", str(tmp_path / "copies"), *words)
    assert (refused.returncode, b"--keep" in refused.stderr) == (2, True)
    assert not (tmp_path / "copies").exists()


def test_a_drill_beside_the_running_daemon_changes_nothing(home: Home, ops: Daemon, tmp_path: Path) -> None:
    made = home.ctl_json("--name", "ops", "backup", f"{tmp_path}/copies/", "--keep", "2", "--with-keys")
    home.env["TMPDIR"] = str(tmp_path / "drill")
    (tmp_path / "drill").mkdir()
    before = ops.store_path.parent.stat().st_mtime_ns, Path(made["file"]).read_bytes()
    code, report = verified(home, tmp_path / "copies")
    assert (code, report["ok"], report["store"]) == (0, True, made["file"])
    assert {one["state"] for one in report["checks"]} == {"ok"}
    assert (ops.store_path.parent.stat().st_mtime_ns, Path(made["file"]).read_bytes()) == before
    assert names(tmp_path / "drill") == []
    shown = aghd(home, "restore", "--verify", str(tmp_path / "copies"))
    assert f"{made['file']} can be restored".encode() in shown.stdout


def test_a_drill_fails_for_what_cannot_be_restored(home: Home, ops: Daemon, tmp_path: Path) -> None:
    made = Path(home.ctl_json("--name", "ops", "backup", f"{tmp_path}/copies/", "--keep", "2", "--with-keys")["file"])
    sound = made.read_bytes()

    def failed(backup: Path) -> dict[str, str]:
        code, report = verified(home, backup)
        assert (code, report["ok"]) == (1, False)
        return {one["check"]: one["detail"] for one in report["checks"] if one["state"] == "fail"}

    at = sound.index(b"before the backup")
    made.write_bytes(sound[:at] + b"Before" + sound[at + 6 :])
    assert set(failed(tmp_path / "copies")) == {"store envelopes", "store ledger"}
    with closing(sqlite3.connect(made)) as db, db:
        db.execute("PRAGMA user_version = 99")
    assert "has schema 99" in failed(tmp_path / "copies")["backup"]
    made.write_bytes(sound)
    (made.parent / "identity.pem").write_text("no key")
    assert "is not a private key" in failed(tmp_path / "copies")["backup"]
    assert "is not a file" in failed(tmp_path / "missing")["backup"]
    assert "is not a file" in failed(tmp_path / "drill")["backup"]


def exec_lines(unit: str) -> list[list[str]]:
    lines = (DEPLOY / "systemd" / unit).read_text().splitlines()
    return [line.removeprefix("ExecStart=").split() for line in lines if line.startswith("ExecStart=")]


def manifest_commands(name: str) -> list[list[str]]:
    document = yaml.safe_load((DEPLOY / "k8s" / name).read_text())
    pod = document["spec"].get("jobTemplate", document)["spec"]["template"]["spec"]
    return [one["command"] for part in ("initContainers", "containers") for one in pod.get(part, [])]


@pytest.mark.parametrize("kind", ["unit", "manifests"])
def test_the_scheduled_commands_back_up_check_and_restore(home: Home, tmp_path: Path, kind: str) -> None:
    copies = tmp_path / "copies"
    places = {"/var/lib/aghbus/backups/%i/": f"{copies}/", "/backups/copies/": f"{copies}/", "%i": "patch-worker"}
    programs = {"aghctl": "aghbus.cli", "aghd": "aghbus.daemon"}
    scheduled = exec_lines("aghd-backup@.service") if kind == "unit" else manifest_commands("backup/cronjob.yaml")

    def run(command: list[str]) -> None:
        program, *words = (places.get(word, word) for word in command)
        done = subprocess.run(
            [sys.executable, "-m", programs[Path(program).name], *words],
            env=home.env, capture_output=True, timeout=60, check=False,
        )  # fmt: skip
        assert done.returncode == 0, (command, done.stdout, done.stderr)

    with Daemon(home, "patch-worker") as daemon:
        kept = daemon.post("/v1/messages", kind="say", body={"text": "kept"}, to="bob")["id"]
        for command in scheduled:
            run(command)
        lost = daemon.post("/v1/messages", kind="say", body={"text": "lost"}, to="bob")["id"]
    for command in manifest_commands("restore/job.yaml"):
        run(command)
    with Daemon(home, "patch-worker") as daemon:
        assert [one["id"] for one in daemon.get("/v1/messages")["messages"]] == [kept]
        assert kept != lost


def test_the_units_are_accepted_by_systemd(tmp_path: Path) -> None:
    analyze = require_tool("systemd-analyze")
    programs = tmp_path / "bin"
    programs.mkdir()
    for name in ("aghctl", "aghd"):
        (programs / name).symlink_to(sys.executable)
    for unit in ("aghd-backup@.service", "aghd-backup@.timer"):
        text = (DEPLOY / "systemd" / unit).read_text().replace("/opt/aghbus/bin", str(programs))
        (tmp_path / unit.replace("@", "@worker")).write_text(text)
    units = [str(tmp_path / f"aghd-backup@worker.{kind}") for kind in ("timer", "service")]
    env = {**os.environ, "XDG_RUNTIME_DIR": str(tmp_path), "SYSTEMD_UNIT_PATH": f"{tmp_path}:"}
    done = subprocess.run([analyze, "verify", "--man=no", *units], env=env, capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")
