"""How a daemon ends when something about it is broken: in time, with its store closed."""

import os
import signal
import sqlite3
import subprocess
import sys
import threading
from pathlib import Path

import pytest

from aghbus.daemon.base.background import BackgroundTasks
from aghbus.daemon.config.settings import NatsSettings, Settings
from aghbus.daemon.process import run_daemon
from aghbus.daemon.state.catalog import CatalogError
from aghbus.host.locations import locate
from aghbus.store.engine.database import Store
from tests.support.daemons import Daemon, Home, wait_for


def start(daemon: Daemon, output: Path, *args: str) -> subprocess.Popen[bytes]:
    """As a person starts it, who wants to be greeted; at `output`."""
    command = [sys.executable, "-m", "aghbus.daemon", "run", "--name", daemon.name, *args]
    with output.open("wb") as out, daemon.log.open("wb") as log:
        process = subprocess.Popen(command, env=daemon.env, stdin=subprocess.DEVNULL, stdout=out, stderr=log)
    daemon.process = process
    return process


def closed_in_order(path: Path) -> bool:
    db = sqlite3.connect(path)
    try:
        return bool(db.execute("SELECT value FROM meta WHERE key = 'closed'").fetchone() == (1,))
    finally:
        db.close()


def test_a_greeting_without_receivers_does_no_harm(tmp_path: Path) -> None:
    daemon = Daemon(Home(tmp_path), "ops")
    process = start(daemon, Path("/dev/full"))
    try:
        daemon.wait_ready()
        process.send_signal(signal.SIGTERM)
        assert process.wait(15) == 0, daemon.log.read_text()
    finally:
        process.kill()
        process.wait()
    assert closed_in_order(daemon.store_path)


def test_a_file_that_changes_between_two_checks_refuses_the_start(tmp_path: Path) -> None:
    daemon = Daemon(Home(tmp_path), "ops")
    patterns = tmp_path / "patterns"
    os.mkfifo(patterns)

    def answer() -> None:
        patterns.write_text("ok: [0-9]{4}\n")
        wait_for(daemon.store_path.exists, 30, "the store, which is opened after the configuration was checked")
        patterns.write_text("bad: (\n")

    answering = threading.Thread(target=answer, daemon=True)  # it would wait for a reader for ever
    answering.start()
    process = start(daemon, tmp_path / "out", "--sacp-guardrails", str(patterns))
    try:
        assert process.wait(30) == 1
    finally:
        process.kill()
        process.wait()
    assert "line 1" in daemon.log.read_text()
    assert closed_in_order(daemon.store_path)


async def test_a_node_that_cannot_be_stopped_leaves_no_store_open(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    opened: list[Store] = []
    open_store = Store.open

    async def remembered(*args: object, **options: object) -> Store:
        opened.append(await open_store(*args, **options))  # type: ignore[arg-type]
        return opened[-1]

    async def fails(*_: object) -> None:
        raise RuntimeError("a planted bug")

    monkeypatch.setattr(Store, "open", remembered)
    monkeypatch.setattr(BackgroundTasks, "close", fails)
    locations = locate("ops", {}, uid=os.getuid(), home=str(tmp_path))
    nowhere = NatsSettings(servers=("nats://127.0.0.1:1",))
    settings = Settings(name="ops", peer_id="ops", nats=nowhere, catalog=str(tmp_path / "none.json"))
    try:
        with pytest.raises(RuntimeError, match="a planted bug") as caught:
            await run_daemon(settings, locations, banner=None)
        assert isinstance(caught.value.__context__, CatalogError)
        assert closed_in_order(Path(locations.store_path))
    finally:
        await opened[0].close()  # its threads would keep the tests
