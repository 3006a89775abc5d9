"""Daemons with keys and without on one channel: who is believed, who is let in, and what changes without a restart."""

import json
import os
import signal

from aghbus.host.key_files import generate_key, write_key
from aghbus.protocol.agh.identifiers import route_token
from aghbus.protocol.agh.trust.proof import verify
from aghbus.protocol.agh.trust.trust import PROFILE
from tests.support.daemons import Daemon, Home, wait_for


def with_key(home: Home, name: str) -> str:
    """A key for the daemon called `name`; its handle."""
    return str(home.ctl_json("--name", name, "key", "generate")["handle"])


def test_a_keyed_daemon_is_its_handle_everywhere(home: Home) -> None:
    worker_handle, ops_handle = with_key(home, "patch-worker"), with_key(home, "ops")
    worker = Daemon(home, "patch-worker", "--capability", "test.run")
    ops = Daemon(home, "ops")
    with worker, ops:
        wait_for(lambda: ops.knows(worker_handle) and worker.knows(ops_handle), 15, "presence")
        assert ops.get("/v1/status")["peer_id"] == ops_handle
        (found,) = home.ctl_json("--name", "ops", "whois", "test.run", "--wait", "20s")["peers"]
        assert (found["peer_id"], found["trust"]) == (worker_handle, "verified")
        assert PROFILE in found["card"]["profiles_supported"]
        assert found["card"]["trust_modes_supported"] == ["unverified", "verified"]
        peers = {peer["peer_id"]: peer["trust"] for peer in ops.get("/v1/peers")["peers"]}
        assert peers[worker_handle] == "verified"

        opened = home.ctl_json("--name", "ops", "work", "open", "--to", worker_handle, "--text", "Run it")
        taken = home.ctl_json("--name", "patch-worker", "inbox", "next", "--wait", "25")["item"]["message"]
        assert (taken["trust"], taken["sender"]) == ("verified", ops_handle)
        home.ctl_json("--name", "patch-worker", "work", "accept", opened["work_id"])
        home.ctl_json("--name", "patch-worker", "work", "complete", opened["work_id"], "--result", '{"ok":1.5}')
        wait_for(lambda: ops.state_of(opened["work_id"]) == "completed", 15, "the end")
        assert ops.get(f"/v1/works/{opened['work_id']}")["work"]["trust"] == "verified"
        assert route_token(worker_handle) == worker_handle.partition("@")[2]

        for daemon in (
            ops,
            worker,
        ):  # what went out and what came in, receipts too: all of it holds, as kept in the store
            kept = daemon.get("/v1/messages")["messages"]
            assert {one["kind"] for one in kept} == {"say", "receipt", "trace"}
            for one in kept:
                assert one["trust"] == "verified"
                assert verify(json.dumps(one["envelope"]).encode()).state == "verified", one


def test_signed_and_plain_peers_interoperate_until_require_mode(home: Home) -> None:
    ops_handle = with_key(home, "ops")
    config = home.root / "config" / "aghbus" / "ops.toml"
    config.parent.mkdir(parents=True)
    config.write_text('[trust]\nmode = "verify"\n')
    plain, ops = Daemon(home, "plain"), Daemon(home, "ops")
    with plain, ops:
        wait_for(lambda: ops.knows("plain") and plain.knows(ops_handle), 15, "presence")
        peers = {peer["peer_id"]: peer["trust"] for peer in plain.get("/v1/peers")["peers"]}
        assert peers[ops_handle] == "verified"
        assert _answers(home, ops_handle)
        first = home.ctl_json("--name", "plain", "work", "open", "--to", ops_handle, "--text", "unsigned")
        taken = home.ctl_json("--name", "ops", "inbox", "next", "--wait", "25")["item"]["message"]
        assert (taken["trust"], taken["sender"]) == ("unverified", "plain")
        home.ctl_json("--name", "ops", "work", "complete", first["work_id"])
        wait_for(lambda: plain.state_of(first["work_id"]) == "completed", 15, "the end")

        config.write_text('[trust]\nmode = "require"\n')
        assert ops.process is not None
        os.kill(ops.process.pid, signal.SIGHUP)
        wait_for(lambda: not _answers(home, ops_handle), 15, "ops to take no notice of a peer that signs nothing")
        second = home.ctl_json("--name", "plain", "work", "open", "--to", ops_handle, "--text", "unsigned")
        # Failed by the receipt, or canceled by our own daemon on the refusal of the commit: whichever comes first.
        wait_for(lambda: plain.state_of(second["work_id"]) in ("failed", "canceled"), 15, "the refusal")
        refused = [one for one in ops.get("/v1/quarantine")["quarantined"] if one["sender"] == "plain"]
        assert {one["reason"] for one in refused} == {"verification_failed"}


def _answers(home: Home, peer: str) -> bool:
    return home.ctl("--name", "plain", "whois", "--to", peer).returncode == 0


def test_a_key_that_others_may_read_stops_the_start(home: Home) -> None:
    with_key(home, "ops")
    path = home.root / "state/aghbus/instances/ops/identity.pem"
    path.chmod(0o644)
    daemon = Daemon(home, "ops").start(wait=False)
    assert daemon.process is not None
    assert daemon.process.wait(30) == 2
    log = daemon.log.read_text()
    assert "trust.key_file: " in log
    assert "chmod 600" in log


def test_the_key_by_an_environment_variable_and_nothing_of_it_in_the_log(home: Home) -> None:
    key = generate_key()
    path = home.root / "elsewhere.pem"
    write_key(path, key)
    with Daemon(home, "ops", "--log-level", "debug", env={"AGHD_TRUST_KEY_FILE": str(path)}) as daemon:
        assert daemon.get("/v1/status")["peer_id"] == f"ops@{key.fingerprint}"
    log = daemon.log.read_text()
    assert key.reveal_seed().hex() not in log
    assert path.read_text().splitlines()[1] not in log
