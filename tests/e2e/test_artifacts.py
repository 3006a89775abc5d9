"""`aghctl artifact` from one peer to another, over daemons and a broker."""

import hashlib
import json
import os
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemons import Daemon, Home, wait_for
from tests.support.natsutil import NatsServer


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Home, Daemon, Daemon]]:
    """Two daemons with durability core on the embedded broker, which has JetStream."""
    home = Home(tmp_path)
    with Daemon(home, "ops") as ops, Daemon(home, "worker") as worker:
        yield home, ops, worker


def ctl(home: Home, folder: Path, *args: str) -> subprocess.CompletedProcess[bytes]:
    """`aghctl` in a folder."""
    command = [sys.executable, "-m", "aghbus.cli", *args]
    return subprocess.run(command, env=home.env, cwd=folder, capture_output=True, timeout=60, check=False)


def folder(tmp_path: Path, name: str) -> Path:
    made = tmp_path / name
    made.mkdir()
    return made


def test_a_result_too_large_for_an_envelope_reaches_the_initiator(
    pair: tuple[Home, Daemon, Daemon], tmp_path: Path
) -> None:
    home, ops, worker = pair
    there, here = folder(tmp_path, "there"), folder(tmp_path, "here")
    content = os.urandom(5_000_000)
    (there / "report.bin").write_bytes(content)
    wait_for(lambda: ops.knows("worker") and worker.knows("ops"), 30, "presence")
    work_id = ops.post("/v1/works", to="worker", text="make a report")["work_id"]
    wait_for(lambda: worker.get("/v1/works")["works"], 30, "the work")

    put = ctl(home, there, "--name", "worker", "artifact", "put", work_id, "report.bin", "-o", "json")
    assert put.returncode == 0, put.stderr
    made = json.loads(put.stdout)
    assert made["uri"] == f"agh://artifacts/{work_id}/report.bin"
    assert made["digest"] == f"sha256:{hashlib.sha256(content).hexdigest()}"
    worker.post(f"/v1/works/{work_id}/complete", artifacts=[{"uri": made["uri"], "sha256": made["digest"][7:]}])
    wait_for(lambda: ops.state_of(work_id) == "completed", 30, "the end")

    listed = home.ctl_json("--name", "ops", "artifact", "list", work_id)
    assert [(row["uri"], row["put_by"]) for row in listed["artifacts"]] == [(made["uri"], "worker")]
    got = ctl(home, here, "--name", "ops", "artifact", "get", made["uri"])
    assert got.returncode == 0, got.stderr
    assert (here / "report.bin").read_bytes() == content
    assert [path.name for path in here.iterdir()] == ["report.bin"], "nothing else is left behind"


def test_files_are_only_overwritten_when_asked_to(pair: tuple[Home, Daemon, Daemon], tmp_path: Path) -> None:
    home, _, _ = pair
    here = folder(tmp_path, "here")
    (here / "n.txt").write_text("mine")
    (here / "new").write_text("theirs")
    assert ctl(home, here, "--name", "ops", "artifact", "put", "w", "new", "--as", "n.txt").returncode == 0
    refused = ctl(home, here, "--name", "worker", "artifact", "get", "w", "n.txt")
    assert refused.returncode == 2 and b"-O" in refused.stderr
    assert (here / "n.txt").read_text() == "mine"
    (here / "link").symlink_to("nowhere")
    assert ctl(home, here, "--name", "worker", "artifact", "get", "w", "n.txt", "-O", "link").returncode == 0
    assert not (here / "link").is_symlink() and (here / "link").read_text() == "theirs"
    assert ctl(home, here, "--name", "worker", "artifact", "get", "w", "n.txt", "-O", "n.txt").returncode == 0
    assert (here / "n.txt").read_text() == "theirs"
    assert ctl(home, here, "--name", "worker", "artifact", "get", "w", "n.txt", "-O", "no/such/folder").returncode == 2


def test_invalid_requests_are_refused_with_a_reason(pair: tuple[Home, Daemon, Daemon], tmp_path: Path) -> None:
    home, _, _ = pair
    here = folder(tmp_path, "here")
    (here / "f").write_text("one")
    (here / "g").write_text("two")
    (here / "two words").write_text("x")
    os.mkfifo(here / "pipe")
    put = ("--name", "ops", "artifact", "put")
    get = ("--name", "ops", "artifact", "get")
    assert ctl(home, here, *put, "w", "f").returncode == 0
    assert ctl(home, here, *put, "w", "f").returncode == 0, "the same content again"
    conflict = ctl(home, here, *put, "w", "g", "--as", "f")
    assert conflict.returncode == 4 and b"other content" in conflict.stderr
    for arguments, code in (
        ((*put, "w", "absent"), 2),
        ((*put, "w", "."), 2),
        ((*put, "../w", "f"), 4),
        ((*put, "w", "two words"), 4),
        ((*put, "w", "f", "--as", "../f"), 4),
        ((*get, "w", "absent"), 4),
        ((*get, "agh://artifacts/w/../f"), 2),
        ((*get, "w", "../f"), 2),
        ((*get, "http://example/f"), 2),
    ):
        done = ctl(home, here, *arguments)
        assert done.returncode == code, (arguments, done.stderr)
        assert done.stderr.startswith(b"aghctl: ")
    assert sorted(path.name for path in here.iterdir()) == ["f", "g", "pipe", "two words"]


def test_an_empty_file_is_an_artifact_too(pair: tuple[Home, Daemon, Daemon], tmp_path: Path) -> None:
    home, _, _ = pair
    here = folder(tmp_path, "here")
    (here / "empty").touch()
    assert ctl(home, here, "--name", "ops", "artifact", "put", "w", "empty").returncode == 0
    assert ctl(home, here, "--name", "worker", "artifact", "get", "w", "empty", "-O", "back").returncode == 0
    assert (here / "back").read_bytes() == b""


def test_a_file_beyond_the_limit_is_refused_before_it_is_stored(tmp_path: Path) -> None:
    home = Home(tmp_path)
    here = folder(tmp_path, "here")
    (here / "large").write_bytes(bytes(3_000_000))
    with Daemon(home, "ops", "--artifacts-max-bytes", "1MiB"):
        refused = ctl(home, here, "--name", "ops", "artifact", "put", "w", "large")
        assert refused.returncode == 4 and b"artifacts.max_bytes" in refused.stderr
        assert home.ctl_json("--name", "ops", "artifact", "list")["artifacts"] == []


async def test_a_broker_without_jetstream_is_a_clear_error_with_a_hint(tmp_path: Path) -> None:
    home = Home(tmp_path)
    here = folder(tmp_path, "here")
    (here / "f").write_text("x")
    async with NatsServer() as server:
        with Daemon(home, "ops", "--nats", server.url):
            for arguments in (("put", "w", "f"), ("get", "w", "f", "-O", "g"), ("list",)):
                refused = ctl(home, here, "--name", "ops", "artifact", *arguments)
                assert refused.returncode == 4, arguments
                assert b"JetStream" in refused.stderr and b"hint: " in refused.stderr
    assert not (here / "g").exists()


def test_damaged_content_never_becomes_a_file(tmp_path: Path) -> None:
    """The bucket's chunks are exchanged behind everybody's back, by a tool on the same broker."""
    home = Home(tmp_path)
    here = folder(tmp_path, "here")
    (here / "f").write_bytes(os.urandom(600_000))
    with Daemon(home, "ops") as ops:
        assert ctl(home, here, "--name", "ops", "artifact", "put", "w", "f").returncode == 0
        status = ops.get("/v1/status")["broker"]
        config = json.loads((home.root / "state" / "aghbus" / "broker" / "nats.conf").read_text())
        token = config["authorization"]["token"]
        exchange = f"""
import asyncio, nats
async def main():
    client = await nats.connect({status["url"]!r}, token={token!r})
    js = client.jetstream()
    info = await js.stream_info("OBJ_AGH_ARTIFACTS_V0")
    await js.delete_msg("OBJ_AGH_ARTIFACTS_V0", info.state.last_seq - 1)
    await client.close()
asyncio.run(main())
"""
        subprocess.run([sys.executable, "-c", exchange], check=True, timeout=30)
        refused = ctl(home, here, "--name", "ops", "artifact", "get", "w", "f", "-O", "back")
        assert refused.returncode == 5, refused.stderr
        assert sorted(path.name for path in here.iterdir()) == ["f"]


def test_files_of_messages_are_uploaded_and_fetched_by_name(pair: tuple[Home, Daemon, Daemon], tmp_path: Path) -> None:
    home, ops, worker = pair
    there, here = folder(tmp_path, "there"), folder(tmp_path, "here")
    (here / "patch.diff").write_bytes(b"+1\n")
    (there / "report.xml").write_bytes(b"<ok/>")
    wait_for(lambda: ops.knows("worker") and worker.knows("ops"), 30, "presence")
    opened = ctl(
        home, here, "--name", "ops", "work", "open", "--to", "worker", "--text", "t", "--artifact", "patch.diff"
    )
    assert opened.returncode == 0, opened.stderr
    work_id = opened.stdout.decode().strip()
    got = home.ctl_json("--name", "worker", "inbox", "next", "--wait", "30s", "--ack", "--work", work_id)["item"]
    digest = hashlib.sha256(b"+1\n").hexdigest()
    uri = f"agh://artifacts/{work_id}/patch.diff"
    reference = {"type": "file", "name": "patch.diff", "uri": uri, "size": 3, "sha256": digest}
    assert got["message"]["envelope"]["body"]["artifacts"] == [reference]
    assert ctl(home, there, "--name", "worker", "artifact", "get", work_id, "patch.diff").returncode == 0
    assert (there / "patch.diff").read_bytes() == b"+1\n"

    complete = ["work", "complete", work_id, "--artifact", "report.xml", "--artifact", "https://example.org/x"]
    assert ctl(home, there, "--name", "worker", *complete).returncode == 0
    wait_for(lambda: ops.state_of(work_id) == "completed", 30, "the end")
    assert ctl(home, here, "--name", "ops", "artifact", "get", work_id, "report.xml").returncode == 0
    assert (here / "report.xml").read_bytes() == b"<ok/>"
    (last,) = ops.get(f"/v1/works/{work_id}")["history"][-1:]
    assert [entry["uri"] for entry in last["artifacts"]] == [
        f"agh://artifacts/{work_id}/report.xml",
        "https://example.org/x",
    ]

    said = ctl(home, here, "--name", "ops", "say", "see", "--to", "worker", "--artifact", "patch.diff", "-o", "json")
    sent = ops.get(f"/v1/messages/{json.loads(said.stdout)['id']}")["envelope"]["body"]["artifacts"]
    assert ctl(home, there, "--name", "worker", "artifact", "get", sent[0]["uri"], "-O", "-").stdout == b"+1\n"


def test_the_same_id_with_the_same_file_is_sent_once(pair: tuple[Home, Daemon, Daemon], tmp_path: Path) -> None:
    home, _, _ = pair
    here = folder(tmp_path, "here")
    (here / "patch.diff").write_bytes(b"+1\n")
    send = ["work", "open", "--to", "worker", "--text", "t", "--artifact", "patch.diff", "--id", "msg_once"]
    answers = [ctl(home, here, "--name", "ops", *send) for _ in range(2)]
    assert [answer.returncode for answer in answers] == [0, 0]
    assert answers[0].stdout == answers[1].stdout


@pytest.mark.parametrize("path", ["missing.xml", "/nowhere/x", "."])
def test_a_path_without_a_file_is_refused_before_anything_is_sent(
    pair: tuple[Home, Daemon, Daemon], tmp_path: Path, path: str
) -> None:
    home, ops, _ = pair
    done = ctl(home, tmp_path, "--name", "ops", "work", "open", "--to", "worker", "--text", "t", "--artifact", path)
    assert done.returncode == 2
    assert b"hint: " in done.stderr
    assert ops.get("/v1/works")["works"] == []
