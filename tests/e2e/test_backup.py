"""`aghctl backup` of a daemon in use, and `aghd restore`."""

import json
import os
import re
import shutil
import sqlite3
import subprocess
import sys
import threading
from collections.abc import Iterator
from contextlib import closing
from pathlib import Path
from typing import Any

import pytest

from aghbus.daemon.check_store import check_store
from aghbus.host.locations import locate
from aghbus.store.engine.commit.watermark import read_watermark, watermark_path
from tests.support.daemons import Daemon, Home, wait_for
from tests.support.natsutil import NatsServer


@pytest.fixture
def ops(home: Home) -> Iterator[Daemon]:
    """A daemon with one stored message; a test may stop it."""
    daemon = Daemon(home, "ops").start()
    daemon.post("/v1/messages", kind="say", body={"text": "before the backup"}, to="bob")
    yield daemon
    daemon.stop()


def aghd(home: Home, *args: str) -> subprocess.CompletedProcess[bytes]:
    command = [sys.executable, "-m", "aghbus.daemon", *args]
    return subprocess.run(command, env=home.env, capture_output=True, timeout=60, check=False)


def restored(home: Home, *args: str) -> dict[str, Any]:
    """The report of `aghd restore`, which must succeed."""
    done = aghd(home, "restore", *args, "-o", "json")
    assert done.returncode == 0, done.stderr
    return dict(json.loads(done.stdout))


def secret_file(folder: Path) -> Path:
    path = folder / "passphrase"
    path.touch(0o600)
    path.write_text("a passphrase")
    return path


def texts(daemon: Daemon) -> list[str]:
    return [one["envelope"]["body"]["text"] for one in daemon.get("/v1/messages?limit=1000")["messages"]]


def test_a_backup_of_a_daemon_under_load_is_one_of_its_states(home: Home, ops: Daemon, tmp_path: Path) -> None:
    sent: list[str] = []
    stop = threading.Event()

    def load() -> None:
        while not stop.is_set():
            text = f"number {len(sent)}"
            ops.post("/v1/messages", kind="say", body={"text": text}, to="bob")
            sent.append(text)

    sender = threading.Thread(target=load)
    sender.start()
    try:
        wait_for(lambda: len(sent) > 50, 30, "some load")
        before, copy = len(sent), tmp_path / "backup" / "store.db"
        made = home.ctl_json("--name", "ops", "backup", f"{tmp_path}/backup/")
        after = len(sent)
    finally:
        stop.set()
        sender.join()
    with closing(sqlite3.connect(copy)) as db:
        (stored,) = db.execute("SELECT count(*) FROM log").fetchone()
    assert before <= stored - 1 <= after + 1
    assert check_store(copy, quick=False).ok
    assert {path.stat().st_mode & 0o777 for path in (copy, watermark_path(copy))} == {0o600}
    watermark = read_watermark(copy)
    assert watermark is not None
    assert made["head"] == str(watermark.head) == (tmp_path / "backup" / "audit.head").read_text().strip()
    ops.kill()
    shutil.rmtree(ops.store_path.parent)
    restored(home, "--name", "ops", str(tmp_path / "backup"))
    ops.start()
    assert texts(ops) == ["before the backup", *sent[: stored - 1]]


def test_new_sequences_follow_those_that_were_lost(home: Home, ops: Daemon, tmp_path: Path) -> None:
    home.ctl_json("--name", "ops", "backup", str(tmp_path / "ops.db"))
    lost = ops.post("/v1/messages", kind="say", body={"text": "after the backup"}, to="bob")["seq"]
    ops.kill()  # most of the old store is in its write-ahead log
    report = restored(home, "--name", "ops", str(tmp_path / "ops.db"), "--replace")
    replaced = Path(report["replaced"], "store.db")
    assert check_store(replaced, quick=False).ok
    with closing(sqlite3.connect(replaced)) as db:
        assert db.execute("SELECT max(seq) FROM log").fetchone() == (lost,)
    ops.start()
    assert texts(ops) == ["before the backup"]
    assert ops.post("/v1/messages", kind="say", body={"text": "new"}, to="bob")["seq"] > lost
    assert next(ops.events(f"?since={lost}"))["type"] == "gap"
    verified = home.ctl_json("--name", "ops", "audit", "verify")
    assert verified["whole"] and "was restored from a backup of" in verified["notes"][0]


def test_an_existing_backup_is_overwritten_only_on_request(home: Home, ops: Daemon, tmp_path: Path) -> None:
    copy = tmp_path / "ops.db"
    first = home.ctl_json("--name", "ops", "backup", str(copy))
    ops.post("/v1/messages", kind="say", body={"text": "another"}, to="bob")
    content = copy.read_bytes()
    refused = home.ctl("--name", "ops", "backup", str(copy))
    assert (refused.returncode, copy.read_bytes()) == (1, content)
    assert b"exists already" in refused.stderr
    second = home.ctl_json("--name", "ops", "backup", str(copy), "--force")
    assert second["last_seq"] == first["last_seq"] + 1
    assert check_store(copy, quick=False).ok


def test_keys_are_copied_only_on_request(home: Home, tmp_path: Path) -> None:
    home.ctl_json("--name", "ops", "key", "generate")
    with Daemon(home, "ops") as ops:
        state = ops.store_path.parent
        home.ctl_json("--name", "ops", "backup", f"{tmp_path}/plain/")
        assert not list((tmp_path / "plain").glob("*.pem"))
        refused = home.ctl("--name", "ops", "backup", str(tmp_path / "plain/store.db"), "--with-keys", "--force")
        assert (refused.returncode, b"needs a folder" in refused.stderr) == (2, True)
        made = home.ctl_json("--name", "ops", "backup", f"{tmp_path}/full/", "--with-keys")
        assert made["keys"] == ["identity.pem"]
    key = (state / "identity.pem").read_bytes()
    shutil.rmtree(state)
    assert restored(home, "--name", "ops", str(tmp_path / "full"))["keys"] == ["identity.pem"]
    assert (state / "identity.pem").read_bytes() == key
    assert (state / "identity.pem").stat().st_mode & 0o777 == 0o600


def test_files_that_are_no_keys_are_neither_saved_nor_restored(home: Home, tmp_path: Path) -> None:
    home.ctl_json("--name", "ops", "key", "generate")
    with Daemon(home, "ops") as ops:
        state = ops.store_path.parent
        (state / "ca.pem").write_text("-----BEGIN CERTIFICATE-----\n")
        (state / "folder.pem").mkdir()
        made = home.ctl_json("--name", "ops", "backup", f"{tmp_path}/full/", "--with-keys")
        assert made["keys"] == ["identity.pem"]
    shutil.rmtree(state)
    key = (tmp_path / "full/identity.pem").rename(tmp_path / "key")
    wrong = tmp_path / "full/identity.pem"
    for make, cause in (
        (wrong.mkdir, "not a regular file"),
        (lambda: wrong.symlink_to(key), "not a regular file"),
        (lambda: wrong.write_bytes(b"no key"), "not a private key"),
    ):
        make()
        refused = aghd(home, "restore", "--name", "ops", str(tmp_path / "full"))
        assert refused.returncode == 1
        assert f"its file identity.pem is {cause}" in refused.stderr.decode()
        assert [path.name for path in state.iterdir()] == ["store.db.lock"]
        wrong.rmdir() if wrong.is_dir() else wrong.unlink()
    home.ctl_json("key", "generate", "--file", str(wrong), "--passphrase-file", str(secret_file(tmp_path)))
    assert restored(home, "--name", "ops", str(tmp_path / "full"))["keys"] == ["identity.pem"]


def test_another_key_is_not_overwritten(home: Home, tmp_path: Path) -> None:
    home.ctl_json("--name", "ops", "key", "generate")
    with Daemon(home, "ops") as ops:
        home.ctl_json("--name", "ops", "backup", f"{tmp_path}/full/", "--with-keys")
    state = ops.store_path.parent
    shutil.rmtree(state)
    home.ctl_json("--name", "ops", "key", "generate")
    other = (state / "identity.pem").read_bytes()
    refused = aghd(home, "restore", "--name", "ops", str(tmp_path / "full"))
    assert (refused.returncode, b"another key exists" in refused.stderr) == (1, True)
    assert (state / "identity.pem").read_bytes() == other
    report = restored(home, "--name", "ops", str(tmp_path / "full"), "--replace")
    assert Path(report["replaced"], "identity.pem").read_bytes() == other


def test_a_running_instance_and_an_existing_store_are_not_replaced(home: Home, ops: Daemon, tmp_path: Path) -> None:
    home.ctl_json("--name", "ops", "backup", str(tmp_path / "ops.db"))
    running = aghd(home, "restore", "--name", "ops", str(tmp_path / "ops.db"), "--replace")
    assert (running.returncode, b"is in use by ops" in running.stderr) == (1, True)
    ops.stop()
    content = ops.store_path.read_bytes()
    existing = aghd(home, "restore", "--name", "ops", str(tmp_path / "ops.db"))
    assert (existing.returncode, b"exists already" in existing.stderr) == (1, True)
    assert ops.store_path.read_bytes() == content


def test_slow_clock_does_not_date_the_restore_before_the_backup(home: Home, ops: Daemon, tmp_path: Path) -> None:
    made = home.ctl_json("--name", "ops", "backup", str(tmp_path / "ops.db"))
    ops.stop()
    (tmp_path / "offset").write_text("-86400")
    home.env["AGHD_CLOCK_OFFSET_FILE"] = str(tmp_path / "offset")
    report = restored(home, "--name", "ops", str(tmp_path / "ops.db"), "--replace")
    assert report["restored"]["restored_ms"] == report["restored"]["backup_ms"] == made["newest_ms"]


def test_a_damaged_backup_is_refused_and_the_store_stays(home: Home, ops: Daemon, tmp_path: Path) -> None:
    copy = tmp_path / "ops.db"
    home.ctl_json("--name", "ops", "backup", str(copy))
    ops.stop()
    content, before = ops.store_path.read_bytes(), set(ops.store_path.parent.iterdir())
    raw = copy.read_bytes()
    at = raw.index(b"before the backup")
    copy.write_bytes(raw[:at] + b"Before" + raw[at + 6 :])
    damaged = aghd(home, "restore", "--name", "ops", str(copy), "--replace")
    assert (damaged.returncode, b"failed its check" in damaged.stderr) == (1, True)
    copy.write_bytes(b"no store at all")
    assert aghd(home, "restore", "--name", "ops", str(copy), "--replace").returncode == 1
    assert aghd(home, "restore", "--name", "ops", str(tmp_path / "missing"), "--replace").returncode == 1
    assert (ops.store_path.read_bytes(), set(ops.store_path.parent.iterdir())) == (content, before)


def test_a_backup_without_a_mark_file_is_restored(home: Home, ops: Daemon, tmp_path: Path) -> None:
    """As another tool copies it."""
    ops.stop()
    copy = tmp_path / "replica.db"
    shutil.copy(ops.store_path, copy)
    with closing(sqlite3.connect(copy)) as db:
        db.execute("CREATE TABLE _litestream_seq (id INTEGER PRIMARY KEY, seq INTEGER)")
    shutil.rmtree(ops.store_path.parent)
    restored(home, "--name", "ops", str(copy))
    ops.start()
    assert texts(ops) == ["before the backup"]
    assert ops.post("/v1/messages", kind="say", body={"text": "new"}, to="bob")["seq"] > 1_000_000
    assert not any("mark" in one for one in ops.get("/v1/status")["problems"])


def test_foreign_schema_objects_and_trust_rules_are_found(home: Home, ops: Daemon, tmp_path: Path) -> None:
    keys = [f"sha256:{digit * 64}" for digit in "abc"]
    for key in keys:
        home.ctl_json("--name", "ops", "trust", "deny", key)
    home.ctl_json("--name", "ops", "trust", "deny", keys[2], "--remove")
    ops.stop()
    assert check_store(ops.store_path, quick=False).ok

    def failures(change: str) -> list[str]:
        copy = tmp_path / "changed.db"
        shutil.copy(ops.store_path, copy)
        with closing(sqlite3.connect(copy)) as db, db:
            db.execute(change)
        refused = aghd(home, "restore", "--name", "ops", str(copy), "--replace")
        assert (refused.returncode, b"failed its check" in refused.stderr) == (1, True)
        return [one.detail for one in check_store(copy, quick=False).checks if one.state == "fail"]

    trigger = "CREATE TRIGGER t AFTER INSERT ON trust_rules BEGIN DELETE FROM trust_rules; END"
    assert failures(trigger) == ["trigger t is foreign"]
    assert failures("CREATE VIEW v AS SELECT 1") == ["view v is foreign"]
    assert failures("DROP INDEX works_by_id") == ["index works_by_id is missing"]
    assert failures("ALTER TABLE peers ADD COLUMN x TEXT") == ["table peers was changed"]
    allowed, removed = (f"VALUES ('{rule}', '', '{keys[2]}', 'operator', 1)" for rule in ("allow", "deny"))
    for change, sentence in (
        (f"DELETE FROM trust_rules WHERE who = '{keys[0]}'", f"deny {keys[0]}: made by the ledger, but not stored"),
        (f"INSERT INTO trust_rules (rule, subject, who, origin, since_ms) {allowed}", f"allow {keys[2]}: stored, but"),
        (f"INSERT INTO trust_rules (rule, subject, who, origin, since_ms) {removed}", f"deny {keys[2]}: stored, but"),
    ):
        (found,) = failures(change)
        assert sentence in found


def test_the_replicated_file_is_the_store_of_the_container() -> None:
    deploy = Path(__file__).parents[2] / "deploy"
    variables = dict(re.findall(r"(\w+)=(/\S*)", (deploy / "Containerfile").read_text()))
    store = locate("ops", variables, uid=10001, home=variables["HOME"]).store_path
    assert f"- path: {store}\n" in (deploy / "litestream" / "litestream.yml").read_text()


def test_a_store_that_is_damaged_gives_no_backup(home: Home, ops: Daemon, tmp_path: Path) -> None:
    ops.stop()
    with closing(sqlite3.connect(ops.store_path)) as db, db:
        db.execute("UPDATE ledger SET at_ms = at_ms + 1 WHERE n = (SELECT max(n) FROM ledger)")
    refused = home.ctl("--name", "ops", "backup", str(tmp_path / "ops.db"))
    assert (refused.returncode, b"does not follow" in refused.stderr) == (1, True)
    assert not list(tmp_path.glob("ops.db*"))


@pytest.mark.skipif(os.geteuid() != 0, reason="only root can give files to others")
@pytest.mark.parametrize("there", [True, False], ids=["beside a store", "on a new machine"])
def test_what_root_restores_belongs_to_the_owner_of_the_folder(home: Home, tmp_path: Path, there: bool) -> None:
    ops = Daemon(home, "ops")
    home.ctl_json("--name", "ops", "key", "generate")
    ops.start().stop()
    copy = tmp_path / "copy"
    home.ctl_json("--name", "ops", "backup", str(copy), "--with-keys")
    if not there:
        shutil.rmtree(home.root / "state" / "aghbus" / "instances")
    state = home.root / "state"
    for path in (state, *state.rglob("*")):
        os.chown(path, 65534, 65534)
    restored(home, "--name", "ops", str(copy), "--replace")
    found = {str(path.relative_to(state)): path.stat().st_uid for path in state.rglob("*")}
    assert {"aghbus/instances/ops/store.db", "aghbus/instances/ops/identity.pem"} <= found.keys()
    assert {name: owner for name, owner in found.items() if owner != 65534} == {}


async def test_an_instance_that_is_moved_goes_on_at_once_and_only_there(home: Home, tmp_path: Path) -> None:
    async with NatsServer() as server:
        copy, options = tmp_path / "copy", ("--nats", server.url)
        old = Daemon(home, "worker", *options)
        home.ctl_json("--name", "worker", "key", "generate")
        with Daemon(Home(tmp_path / "ops"), "ops", *options) as ops:
            old.start()
            refused = home.ctl("--name", "worker", "backup", f"{copy}/", "--with-keys", "--move")
            assert (refused.returncode, b"stop that daemon" in refused.stderr) == (1, True), refused.stderr
            handle = old.get("/v1/status")["peer_id"]
            earlier = ops.post("/v1/works", to=handle, text="before the move")["work_id"]
            wait_for(lambda: old.state_of(earlier), 30, "the work")
            old.stop()
            home.ctl_json("--name", "worker", "backup", f"{copy}/", "--with-keys", "--move")
            again = aghd(home, "run", "--name", "worker", *options)
            assert again.returncode == 1
            assert b"was moved at" in again.stderr and b"restore that backup here" in again.stderr
            during = ops.post("/v1/works", to=handle, text="during the move")["work_id"]
            new = Daemon(Home(tmp_path / "new"), "worker", *options)
            assert restored(new.home, "--name", "worker", str(copy))["restored"] is None
            with new:
                taken = [new.post("/v1/inbox/next", wait=30)["item"]["message"]["work_id"] for _ in range(2)]
                assert taken == [earlier, during]
                assert new.get("/v1/status")["restored"] is None


def test_all_held_openings_are_released_together(home: Home, ops: Daemon, tmp_path: Path) -> None:
    with Daemon(home, "worker") as worker:
        wait_for(lambda: ops.knows("worker") and worker.knows("ops"), 30, "each other")
        copy = tmp_path / "worker.db"
        home.ctl_json("--name", "worker", "backup", str(copy))
        worker.stop()
        restored(home, "--name", "worker", str(copy), "--replace")
        worker.start()
        opened = [ops.post("/v1/works", to="worker", text=f"number {n}")["work_id"] for n in range(3)]
        wait_for(lambda: worker.get("/v1/inbox")["counts"]["dead"] == 3, 30, "the openings")
        assert home.ctl_json("--name", "worker", "inbox", "ack", "--dead")["items"] == []
        released = home.ctl_json("--name", "worker", "inbox", "requeue", "--held")["items"]
        assert [item["message"]["work_id"] for item in released] == opened
        assert worker.get("/v1/inbox")["counts"] == {"ready": 3, "leased": 0, "dead": 0}
        assert home.ctl_json("--name", "worker", "inbox", "requeue", "--held")["items"] == []
        assert home.ctl("--name", "worker", "inbox", "requeue").returncode == 2
        home.ctl_json("--name", "worker", "inbox", "purge", "--from", "ops")
        assert worker.get("/v1/inbox")["counts"]["dead"] == 3
        acked = home.ctl_json("--name", "worker", "inbox", "ack", "--dead")["items"]
        assert [item["message"]["work_id"] for item in acked] == opened
        assert worker.get("/v1/inbox")["items"] == []
        assert home.ctl("--name", "worker", "inbox", "ack").returncode == 2
