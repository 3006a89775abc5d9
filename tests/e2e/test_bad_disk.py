"""Disks that are full, read-only or damaged under a real daemon: clear refusals, nothing lost that was acknowledged, recovery."""

import contextlib
import json
import os
import shutil
import sqlite3
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aghbus.store.engine.commit.watermark import read_watermark
from tests.support.daemons import Daemon, Home, HttpError, ops_and_worker, wait_for
from tests.support.natsutil import NatsServer
from tests.support.probing import LISTEN, ask, port_of

SMALL = 4 << 20  # bytes: a WAL and a store of some hundred messages
RECOVERY = 20.0  # seconds; the store is tried every second
PADDING = " " + "x" * 2000  # so that a few hundred works fill the disk
RETRY = ("--retry-first", "100ms", "--retry-ceiling", "1s")


def run(*command: str) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False, timeout=60)
    if done.returncode:
        raise OSError(f"{' '.join(command)}: {done.stderr.strip()}")


@contextlib.contextmanager
def mounted(folder: Path, *options: str) -> Iterator[Path]:
    """A small file system of its own at `folder`; the test is skipped where the machine does not allow it."""
    folder.mkdir()
    try:
        run("mount", *options, str(folder))
    except OSError as error:
        pytest.skip(f"a file system cannot be mounted here: {error}")
    try:
        yield folder
    finally:
        run("umount", "--lazy", str(folder))


@pytest.fixture
def small_disk(tmp_path: Path) -> Iterator[Path]:
    with mounted(tmp_path / "disk", "-t", "tmpfs", "-o", f"size={SMALL}", "tmpfs") as folder:
        yield folder


def fill(folder: Path) -> Path:
    """Takes the last byte of the file system."""
    ballast = folder / "ballast"
    with ballast.open("wb", buffering=0) as file:
        for block in (1 << 16, 4096, 1):
            with contextlib.suppress(OSError):
                while True:
                    file.write(b"x" * block)
    return ballast


def refusal(daemon: Daemon, **ask: Any) -> HttpError | None:
    """What opening a work is refused with; None when it was acknowledged."""
    try:
        daemon.post("/v1/works", **ask)
    except HttpError as error:
        return error
    return None


def not_ready(daemon: Daemon) -> bool:
    try:
        daemon.get("/readyz")
    except HttpError as error:
        return error.status == 503 and error.answer["store"] is False
    return False


def start_on_a_full_disk(daemon: Daemon) -> None:
    """Start it, and wait until it says that the store cannot write."""
    daemon.start(wait=False)

    def says_so() -> bool:
        assert daemon.process is not None and daemon.process.poll() is None, daemon.log.read_text()
        with contextlib.suppress(OSError):  # nobody listens yet
            return not_ready(daemon)
        return False

    wait_for(says_so, 30, "readiness to be false")


def work_texts(daemon: Daemon) -> list[str]:
    return sorted(work["text"].split(" x")[0] for work in daemon.get("/v1/works?limit=500")["works"])


async def test_a_full_disk_refuses_rejects_and_recovers(tmp_path: Path, small_disk: Path) -> None:
    async with NatsServer() as server:
        home = Home(tmp_path)
        nats = ("--nats", server.url, *RETRY)
        ops = Daemon(home, "ops", *nats, "--store-path", str(small_disk / "store.db"))
        with Daemon(home, "worker", *nats) as worker, ops:
            wait_for(lambda: ops.knows("worker") and worker.knows("ops"), 30, "the two to meet")
            said_yes = [f"before {number}" for number in range(20)]
            for text in said_yes:
                ops.post("/v1/works", to="worker", text=text)
            ballast = fill(small_disk)
            refused = None
            for number in range(500):  # what is already allocated still takes a few
                text = f"during {number}"
                refused = refusal(ops, to="worker", text=text + PADDING)
                if refused is not None:
                    break
                said_yes.append(text)
            assert refused is not None
            assert refused.status == 503
            assert refused.answer["code"] == "unavailable"
            assert "full" in refused.answer["message"]
            assert "free disk space" in refused.answer["hint"]
            wait_for(lambda: not_ready(ops), 20, "readiness to be false")
            status = ops.get("/v1/status")  # reading goes on
            assert status["store"]["writable"] is False
            assert any("the store cannot write" in problem for problem in status["problems"])

            held_off = worker.post("/v1/works", to="ops", text="into the full disk")
            wait_for(lambda: ops.get("/v1/status")["counters"].get("overload.store", 0) > 0, 30, "it to be rejected")
            sent = f"/v1/messages/{held_off['id']}"
            wait_for(lambda: worker.get(sent)["delivery"] == "published", 30, "it to be noted as published")

            ballast.unlink()
            wait_for(lambda: ops.get("/v1/status")["store"]["writable"], RECOVERY, "the store to write again")
            ops.wait_ready()
            everything = sorted([*said_yes, "into the full disk"])  # and nothing that was refused
            wait_for(lambda: work_texts(worker) == everything, 20, "all that was acknowledged")
            wait_for(lambda: work_texts(ops) == everything, 20, "what was rejected")
            wait_for(lambda: outbox_settled(ops) and outbox_settled(worker), 20, "every message to be receipted")
            assert len(ops.get("/v1/inbox")["items"]) == 1


def outbox_settled(daemon: Daemon) -> bool:
    """Whether every own directed message is known to have arrived."""
    sent = daemon.get("/v1/messages?direction=out&limit=500")["messages"]
    return all(message["delivery"] == "receipted" for message in sent if message["envelope"]["to"])


async def test_kill_on_a_full_disk_loses_no_acknowledged_write(tmp_path: Path, small_disk: Path) -> None:
    async with NatsServer() as server:
        ops = Daemon(Home(tmp_path), "ops", "--nats", server.url, "--store-path", str(small_disk / "store.db")).start()
        server.kill()
        said_yes = []
        ballast = fill(small_disk)
        for number in range(500):
            if refusal(ops, to="worker", text=f"{number}{PADDING}") is not None:
                break
            said_yes.append(str(number))
        else:
            pytest.fail("the disk never became full")
        ops.kill()
        again = Daemon(ops.home, "ops", *ops.args)
        start_on_a_full_disk(again)
        assert work_texts(again) == sorted(said_yes)
        again.kill()
        ballast.unlink()
        await server.restart()
        with again:
            assert work_texts(again) == sorted(said_yes)
            assert again.get("/v1/status")["problems"] == []


async def test_daemon_starts_on_a_full_disk_and_recovers_without_a_restart(tmp_path: Path, small_disk: Path) -> None:
    async with NatsServer() as server:
        store = small_disk / "store.db"
        options = ("--nats", server.url, "--store-path", str(store), *LISTEN)
        ops = Daemon(Home(tmp_path), "ops", *options)
        with ops:
            ops.post("/v1/works", to="worker", text="before")
        ballast = fill(small_disk)
        for stop in (ops.kill, ops.kill, ops.stop, lambda: None):  # a start takes nothing that the next one needs
            start_on_a_full_disk(ops)
            assert work_texts(ops) == ["before"]
            problems = ops.get("/v1/status")["problems"]
            assert "the store cannot write: the disk is full" in problems
            stop()
        port = port_of(ops)
        assert ask(port, "/livez").status == 200
        assert (ask(port, "/readyz").status, ask(port, "/readyz").json()["store"]) == (503, False)
        assert b"\naghbus_store_writable 0" in ask(port, "/metrics").body
        refused = refusal(ops, to="worker", text="refused")
        assert refused is not None and refused.status == 503
        assert "full" in refused.answer["message"] and "free disk space" in refused.answer["hint"]
        ballast.unlink()
        ops.wait_ready()
        ops.post("/v1/works", to="worker", text="after")
        assert work_texts(ops) == ["after", "before"]
        assert ops.get("/v1/status")["problems"] == []
        assert ops.stop() == 0


async def test_a_read_only_disk_is_a_clear_error_at_the_start(tmp_path: Path, small_disk: Path) -> None:
    async with NatsServer() as server:
        home = Home(tmp_path)
        ops = Daemon(home, "ops", "--nats", server.url, "--store-path", str(small_disk / "store.db"))
        with ops:
            ops.post("/v1/works", to="worker", text="before")
        run("mount", "-o", "remount,ro", str(small_disk))
        ops.start(wait=False)
        assert ops.process is not None
        assert ops.process.wait(60) == 1
        last = ops.log.read_text().splitlines()[-2:]
        assert "Read-only file system" in last[0]
        assert "writable" in last[1]
        run("mount", "-o", "remount,rw", str(small_disk))
        with ops:
            assert work_texts(ops) == ["before"]


@pytest.fixture
def ext4(tmp_path: Path) -> Iterator[tuple[Path, Path]]:
    """An ext4 of its own in a file, and the switch that makes the kernel take it for damaged, and so read-only."""
    image = tmp_path / "image"
    if shutil.which("mkfs.ext4") is None:
        pytest.skip("there is no mkfs.ext4 here")
    with image.open("wb") as file:
        file.truncate(64 << 20)
    run("mkfs.ext4", "-q", "-F", str(image))
    with mounted(tmp_path / "disk", "-o", "loop,errors=remount-ro", str(image)) as folder:
        device = folder.stat().st_dev
        name = Path(f"/sys/dev/block/{os.major(device)}:{os.minor(device)}").resolve().name
        switch = Path(f"/sys/fs/ext4/{name}/trigger_fs_error")
        if not os.access(switch, os.W_OK):
            pytest.skip(f"{switch} cannot be written here")
        yield folder, switch


async def test_a_disk_that_becomes_read_only_refuses_and_still_answers(tmp_path: Path, ext4: tuple[Path, Path]) -> None:
    folder, switch = ext4
    async with NatsServer() as server:
        home = Home(tmp_path)
        ops = Daemon(home, "ops", "--nats", server.url, "--store-path", str(folder / "store.db"))
        with ops:
            for number in range(5):
                ops.post("/v1/works", to="worker", text=f"before {number}")
            switch.write_text("1")
            refused = refusal(ops, to="worker", text="too late")
            assert refused is not None
            assert refused.answer["code"] == "unavailable"
            assert refused.answer["hint"]
            wait_for(lambda: not_ready(ops), 20, "readiness to be false")
            assert len(work_texts(ops)) == 5  # reading goes on
        kept = shutil.copytree(folder, tmp_path / "saved", ignore=shutil.ignore_patterns("lost+found"))
        with Daemon(home, "ops", "--nats", server.url, "--store-path", str(kept / "store.db")) as saved:
            assert work_texts(saved) == [f"before {number}" for number in range(5)]
            assert saved.get("/v1/status")["problems"] == []


def marked(daemon: Daemon) -> int:
    """Up to which sequence the mark of a daemon's store vouches for it."""
    mark = read_watermark(daemon.store_path)
    return 0 if mark is None else mark.head.last_seq


def doctor(home: Home, name: str) -> dict[str, dict[str, str]]:
    done = home.ctl("--name", name, "doctor", "-o", "json")
    return {row["check"]: row for row in json.loads(done.stdout)["checks"]}


def test_a_damaged_store_is_refused_and_doctor_gives_a_hint(home: Home) -> None:
    ops = Daemon(home, "ops")
    with ops:
        for number in range(50):
            ops.post("/v1/works", to="worker", text=f"number {number}")
    with ops.store_path.open("r+b") as file:
        file.seek(4096)
        file.write(os.urandom(8 * 4096))
    ops.start(wait=False)
    assert ops.process is not None
    assert ops.process.wait(60) == 1
    log = ops.log.read_text()
    assert "is damaged" in log
    assert "hint: see `aghd check-store`" in log
    findings = doctor(home, "ops")
    failed = [row for check, row in findings.items() if check.startswith("store") and row["state"] == "fail"]
    assert failed
    assert "restore a backup" in failed[0]["hint"]


def test_a_daemon_ends_when_the_check_after_a_kill_finds_damage(tmp_path: Path) -> None:
    ops = Daemon(Home(tmp_path), "ops").start()
    ops.post("/v1/works", to="worker", text="before")
    ops.kill()
    db = sqlite3.connect(ops.store_path)
    (page,) = db.execute("SELECT rootpage FROM sqlite_schema WHERE name = 'works_by_id'").fetchone()
    (page_bytes,) = db.execute("PRAGMA page_size").fetchone()
    db.execute("PRAGMA wal_checkpoint(TRUNCATE)")
    db.close()
    with ops.store_path.open("r+b") as file:
        file.seek((page - 1) * page_bytes + 1)
        file.write(os.urandom(7))
    ops.start(wait=False)
    assert ops.process is not None
    assert ops.process.wait(60) == 1
    assert "hint: see `aghd check-store`" in ops.log.read_text()


def test_a_cut_wal_is_reported_at_start_and_doctor_gives_a_hint(home: Home) -> None:
    with Daemon(home, "worker"):  # keeps the shared broker up
        ops = Daemon(home, "ops").start()
        for number in range(5):
            ops.post("/v1/works", to="worker", text=f"number {number}")
        wait_for(lambda: marked(ops) >= 5, 20, "the mark to follow")
        ops.kill()
        wal = ops.store_path.with_name("store.db-wal")
        os.truncate(wal, wal.stat().st_size // 2)
        assert doctor(home, "ops")["store commits"]["state"] == "fail"
        with ops:
            assert "has lost commits" in ops.log.read_text()
            (problem,) = ops.get("/v1/status")["problems"]
            assert "commits that had been made durable are lost" in problem
            row = doctor(home, "ops")["earlier loss"]
            assert row["state"] == "warn"
            assert "aghd check-store --accept-loss" in row["hint"]


def test_a_running_daemons_store_can_be_checked(home: Home) -> None:
    with Daemon(home, "ops") as ops:
        ops.post("/v1/works", to="worker", text="one")
        command = [sys.executable, "-m", "aghbus.daemon", "check-store", "--name", "ops"]
        done = subprocess.run(command, env=home.env, capture_output=True, text=True, timeout=60, check=False)
        assert done.returncode == 0, done.stdout
        assert [line.split(":")[0] for line in done.stdout.splitlines()] == [
            f"ok    store {part}"
            for part in ("commits", "schema", "pages", "references", "envelopes", "indexes", "ledger")
        ]
        accept = subprocess.run([*command, "--accept-loss"], env=home.env, capture_output=True, text=True, check=False)
        assert accept.returncode == 1
        assert "in use by ops" in accept.stderr


@pytest.mark.parametrize("damage", [b"900 euro", b"100 eur\xff"], ids=["letter", "not UTF-8"])
def test_a_damaged_message_is_named_and_never_given_to_the_agent(home: Home, damage: bytes) -> None:
    with ops_and_worker(home) as (ops, worker):
        for text in ("pay 100 euro", "and tell us"):
            ops.post("/v1/messages", kind="say", to="worker", body={"text": text}, thread_id="thread_pay")
        wait_for(lambda: len(worker.get("/v1/inbox")["items"]) == 2, 30, "both messages")
        damaged = worker.get("/v1/inbox")["items"][0]["seq"]
        worker.stop()
        with contextlib.closing(sqlite3.connect(worker.store_path)) as db, db:
            db.execute(
                "UPDATE log SET raw = CAST(replace(raw, ?, ?) AS BLOB) WHERE seq = ?",
                (b"100 euro", damage, damaged),
            )
        check = subprocess.run(
            [sys.executable, "-m", "aghbus.daemon", "check-store", "--name", "worker"],
            env=home.env,
            capture_output=True,
            text=True,
            check=False,
            timeout=60,
        )
        assert check.returncode != 0
        assert f"1 envelopes differ from those that were stored (sequence {damaged})" in check.stdout
        worker.start()
        listed = {message["seq"]: message for message in worker.get("/v1/messages")["messages"]}
        assert [seq for seq, message in listed.items() if message["damaged"]] == [damaged]
        assert listed[damaged]["envelope"] == {}
        assert worker.post("/v1/inbox/next")["item"]["message"]["envelope"]["body"]["text"] == "and tell us"
        assert worker.post("/v1/inbox/next")["item"] is None
        assert any("damaged" in problem for problem in worker.get("/v1/status")["problems"])
        assert b"(DAMAGED)" in home.ctl("--name", "worker", "messages", "list").stdout
