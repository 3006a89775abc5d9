"""Backups of a daemon's store, and restores by the real command."""

import subprocess
import sys
from pathlib import Path

from tests.support.daemons import Daemon


def backup(daemon: Daemon) -> Path:
    """A copy of the store of a running daemon."""
    path = daemon.home.root / f"{daemon.name}.db"
    daemon.home.ctl_json("--name", daemon.name, "backup", str(path))
    return path


def restore(daemon: Daemon, copy: Path) -> None:
    """Put the copy into the place of the store of a stopped daemon."""
    command = [sys.executable, "-m", "aghbus.daemon", "restore", "--name", daemon.name, str(copy), "--replace"]
    done = subprocess.run(command, env=daemon.home.env, capture_output=True, timeout=60, check=False)
    assert done.returncode == 0, done.stderr
