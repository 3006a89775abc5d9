"""`aghd restore` of the kept backup of each released schema, by this version and by a next one, and the daemon that then runs."""

import json
import shutil
import sqlite3
import subprocess
import sys
import time
from contextlib import closing
from pathlib import Path
from typing import Any, Final

import pytest

from aghbus.store.engine.schema import shipped
from tests.support.daemons import Daemon, Home
from tests.support.keep_store import KEPT, facts

ROOT: Final = Path(__file__).parents[2]
PACKAGES: Final = ("cli", "client", "daemon", "host", "protocol", "store")
SHOWN: Final[dict[str, Any]] = {
    "works": [
        "initiator canceled",
        "initiator completed",
        "initiator failed",
        "initiator needs_input",
        "initiator submitted",
        "initiator submitted",
        "initiator submitted",
        "initiator working",
        "target failed",
        "target submitted",
        "target submitted",
        "target submitted",
    ],
    "inbox": {"alive": 6, "dead": 1},
    "last_error": ["the disk is full"],
    "texts": [
        "List the names.",
        "a step",
        "in a direct room",
        "is acked",
        "is dead",
        "is leased",
        "is ready",
        "received",
        "to be canceled",
        "to be completed",
        "to be failed",
        "to be needs_input",
        "to be submitted",
        "to be working",
        "waits for its receiver",
    ],
    "trust": ["admit", "admit", "allow"],
    "quarantine": ["malformed"],
    "runs": ["running"],
    "bridge": [None],
}
"""What the script of tests/support/keep_store.py has brought about; the peers are named by keys."""


class InstalledDaemon(Daemon):
    """A daemon of the package in the folder that its `env` names."""

    forked = False


def aghd(home: Home, *args: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "aghbus.daemon", *args]
    return subprocess.run(command, env=home.env, cwd=home.root, capture_output=True, timeout=60, check=False)


@pytest.fixture(params=sorted(path.name for path in KEPT.iterdir() if path.is_dir()))
def kept(request: pytest.FixtureRequest, home: Home, tmp_path: Path) -> Path:
    """A kept backup, and the time of day at which it was made."""
    folder = KEPT / str(request.param)
    with closing(sqlite3.connect(f"{(folder / 'store.db').as_uri()}?mode=ro&immutable=1", uri=True)) as db:
        (newest_ms,) = db.execute("SELECT max(at_ms) FROM ledger").fetchone()
    (tmp_path / "offset").write_text(str(newest_ms / 1000 + 5 - time.time()))
    home.env["AGHD_CLOCK_OFFSET_FILE"] = str(tmp_path / "offset")
    return folder


def next_version(folder: Path) -> str:
    """A package with one more migration."""
    for name in PACKAGES:
        shutil.copytree(ROOT / name, folder / "aghbus" / name, ignore=shutil.ignore_patterns("__pycache__"))
    migration = folder / "aghbus" / "store" / "migrations" / f"{len(shipped()) + 1:04}_next.sql"
    migration.write_text("ALTER TABLE works ADD COLUMN planted TEXT NOT NULL DEFAULT 'x';\n")
    return str(folder)


def test_a_kept_backup_is_restored_and_its_daemon_has_everything(home: Home, kept: Path) -> None:
    done = aghd(home, "restore", "--name", "ops", str(kept), "-o", "json")
    assert done.returncode == 0, done.stderr
    assert json.loads(done.stdout)["keys"] == ["identity.pem"]
    with Daemon(home, "ops") as ops:
        found = facts(ops)
        assert len(found.pop("peers")) == 2
        assert found == SHOWN


def test_the_next_version_takes_over_and_this_one_refuses_its_store(home: Home, kept: Path, tmp_path: Path) -> None:
    assert aghd(home, "restore", "--name", "ops", str(kept)).returncode == 0
    home.env["PYTHONPATH"] = next_version(tmp_path / "next")
    with InstalledDaemon(home, "ops") as ops:
        found = facts(ops)
        assert found["works"] == SHOWN["works"]
        assert found["texts"] == SHOWN["texts"]
    restored = aghd(home, "restore", "--name", "second", str(kept), "-o", "json")
    assert restored.returncode == 0, restored.stderr
    del home.env["PYTHONPATH"]
    refused = aghd(home, "run", "--name", "ops")
    assert refused.returncode == 1
    known = len(shipped())
    assert f"has schema {known + 1}, this program knows {known}".encode() in refused.stderr
    assert b"run the newer version that wrote it" in refused.stderr
