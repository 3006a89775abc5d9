"""`aghctl messages purge` of real daemons: no file has the text any more, also after a restart, a kill and a repetition."""

import json
import subprocess
import sys
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aghbus.client import Client
from aghbus.client.http import Endpoint
from aghbus.daemon.check_store import check_store
from tests.support.bridge_daemons import MAP, SHORT, link, query
from tests.support.bridging import submit
from tests.support.daemons import Daemon, Home, delivery, wait_for

SECRET = "TheTextThatMustGo"


@pytest.fixture
def pair(tmp_path: Path) -> Iterator[tuple[Home, Daemon, Daemon]]:
    """Two daemons on the embedded broker, whose files are below the same folder."""
    home = Home(tmp_path)
    flags = ("--sentient-log-root", str(tmp_path / "audit"), "--sentient-user", "worker", *MAP)
    with Daemon(home, "ops", *flags) as ops, Daemon(home, "worker", *MAP) as worker:
        wait_for(lambda: ops.knows("worker") and worker.knows("ops"), SHORT, "presence")
        yield home, ops, worker


def files_with(root: Path, text: str) -> list[str]:
    """The files that contain `text`, but for those of the peer."""
    found = [each for each in root.rglob("*") if each.is_file() and text.encode() in each.read_bytes()]
    return sorted(str(each.relative_to(root)) for each in found if "worker" not in each.parts)


def purge(home: Home, *args: str) -> Any:
    return home.ctl_json("--name", "ops", "messages", "purge", *args)


def acknowledge_all(daemon: Daemon) -> None:
    for item in daemon.get("/v1/inbox")["items"]:
        daemon.post(f"/v1/inbox/{item['seq']}/ack")


def say(daemon: Daemon, text: str) -> None:
    sent = daemon.post("/v1/messages", kind="say", body={"text": text}, to="worker")
    wait_for(lambda: delivery(daemon, sent["id"]) == "receipted", SHORT, "the delivery")


def is_sound(home: Home, daemon: Daemon) -> bool:
    verified = home.ctl("--name", daemon.name, "audit", "verify")
    return verified.returncode == 0 and check_store(daemon.store_path, quick=False).ok


def test_nothing_of_a_peer_is_left_in_any_file(pair: tuple[Home, Daemon, Daemon], tmp_path: Path) -> None:
    home, ops, worker = pair
    state = ops.store_path.parents[2]
    say(ops, SECRET)
    worker.post("/v1/messages", kind="say", body={"text": SECRET}, to="ops")
    work_id = ops.post("/v1/works", to="worker", text=SECRET)["work_id"]
    artifact = tmp_path / "artifact.txt"
    artifact.write_text(f"{SECRET} " * 20_000)
    home.ctl_json("--name", "ops", "artifact", "put", work_id, str(artifact))
    artifact.unlink()
    question = query("asker", "helper", type="event")
    question["payload"]["content"] = {"event": SECRET}
    submit(ops, "agentos", question)
    wait_for(lambda: len(worker.get("/v1/inbox")["items"]) == 3, SHORT, "the messages")
    wait_for(lambda: ops.get("/v1/inbox")["items"], SHORT, "the message")

    kept = purge(home, "--peer", "worker", "--dry-run")
    assert kept["kept_works"][0] == work_id
    assert (kept["kept"]["unread"], kept["works"]) == (1, 0)
    for work in worker.get("/v1/works")["works"]:
        worker.post(f"/v1/works/{work['work_id']}/complete", result={"said": SECRET})
    wait_for(lambda: ops.state_of(work_id) == "completed", SHORT, "the end")
    wait_for(lambda: not purge(home, "--peer", "worker", "--dry-run")["kept"]["undelivered"], SHORT, "all answers")
    acknowledge_all(ops)

    assert files_with(state, SECRET)
    preview = purge(home, "--peer", "worker", "--dry-run")
    assert ops.get(f"/v1/works/{work_id}")["work"]["result"] == {"said": SECRET}
    removed = purge(home, "--peer", "worker")
    assert removed["overwritten"]
    assert not any(removed["kept"].values())
    assert (removed["artifacts"], removed["bridge_log"]) == (1, 1)
    counted = [name for name in preview if name not in ("dry_run", "overwritten")]
    assert {name: removed[name] for name in counted} == {name: preview[name] for name in counted}

    assert files_with(state, SECRET) == []
    assert is_sound(home, ops)
    ops.stop()
    assert files_with(state, SECRET) == []
    ops.start()
    assert is_sound(home, ops)
    assert ops.get("/v1/messages")["messages"] == []
    assert home.ctl("--name", "ops", "work", "show", work_id).returncode != 0
    say(ops, "goes on")
    assert files_with(state, SECRET) == []


def test_an_entry_of_the_audit_file_is_overwritten_by_time(pair: tuple[Home, Daemon, Daemon], tmp_path: Path) -> None:
    home, ops, worker = pair
    sent = link("ops", None, 1, session=SECRET)
    submit(ops, "sentient", sent)
    folder = tmp_path / "audit" / "system" / "logs"
    wait_for(lambda: any(SECRET in file.read_text() for file in folder.glob("*.log")), SHORT, "the entry")
    size = sum(file.stat().st_size for file in folder.glob("*.log"))
    wait_for(lambda: not purge(home, "--before", "2099-01-01", "--dry-run")["kept"]["undelivered"], SHORT, "the answer")
    for work in worker.get("/v1/works")["works"]:
        worker.post(f"/v1/works/{work['work_id']}/complete", result={})
    wait_for(lambda: not purge(home, "--before", "2099-01-01", "--dry-run")["kept"]["works"], SHORT, "the end")
    acknowledge_all(ops)
    assert purge(home, "--before", "2099-01-01")["bridge_log"] == 1
    assert files_with(tmp_path / "audit", SECRET) == files_with(ops.store_path.parent, SECRET) == []
    assert sum(file.stat().st_size for file in folder.glob("*.log")) == size


def test_after_a_kill_the_store_opens_and_the_same_purge_removes_the_rest(tmp_path: Path) -> None:
    home = Home(tmp_path)
    ops = Daemon(home, "ops", env={"AGHD_FAILPOINT": "purge.removed:2"})
    with ops, Daemon(home, "worker") as worker:
        wait_for(lambda: ops.knows("worker"), SHORT, "presence")
        for number in range(200):
            last = ops.post("/v1/messages", kind="say", body={"text": f"{SECRET} {number}"}, to="worker")["id"]
        wait_for(lambda: delivery(ops, last) == "receipted", SHORT, "the deliveries")
        command = [sys.executable, "-m", "aghbus.cli", "--name", "ops", "--timeout", "2s", "messages", "purge"]
        killed = subprocess.run(
            [*command, "--peer", "worker"], env=home.env, capture_output=True, timeout=60, check=False
        )
        assert killed.returncode != 0
        assert ops.process is not None
        assert ops.process.wait(SHORT) == -9
        ops.env.pop("AGHD_FAILPOINT")
        ops.start()
        left = len(ops.get("/v1/messages?limit=1000")["messages"])
        assert left == 200 - 2 * 64
        assert is_sound(home, ops)
        with Client(Endpoint(path=str(ops.socket_path))) as client:
            page = client.purge_messages(peer="worker")
        assert (page.messages, page.next_since, page.overwritten) == ({"say": left}, None, True)
        assert files_with(ops.store_path.parent, SECRET) == []
        assert is_sound(home, ops)
        assert len(worker.get("/v1/messages?limit=1000")["messages"]) == 200  # what peers have is not reached


def test_one_choice_is_required_and_it_is_not_this_daemon(home: Home) -> None:
    with Daemon(home, "ops"):
        for args, why in (
            ((), b"one of --peer PEER, --work ID and --before TIME is required"),
            (("--peer", "a", "--before", "1h"), b"one of --peer PEER"),
            (("--peer", "ops"), b"peer: is this daemon"),
            (("--peer", "No Peer"), b"peer: must be"),
            (("--before", "soon"), b"must be a duration"),
        ):
            done = home.ctl("--name", "ops", "messages", "purge", *args)
            assert done.returncode == 2 or b"peer: " in done.stderr
            assert why in done.stderr, done.stderr
        done = home.ctl("--name", "ops", "messages", "purge", "--before", "1h", "-o", "json")
        assert json.loads(done.stdout)["messages"] == {}
