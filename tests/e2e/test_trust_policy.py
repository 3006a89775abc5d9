"""Real daemons, and whom they listen to: changed while they run, by aghctl alone."""

from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aghbus.host.key_files import generate_key, write_key
from aghbus.protocol.agh.trust.keys import handle_of
from tests.support.daemons import Daemon, Home, wait_for

OFTEN = ("--discovery-interval", "1s")
"""A daemon that greets often is seen soon by those whom it does not answer."""
ONCE = ("--retry-first", "30s")
"""A second try, after a second's stall, is answered with a receipt, and refused as another case."""


def with_key(home: Home, name: str) -> tuple[str, str]:
    """A key for the daemon called `name`; its handle and key id."""
    made = home.ctl_json("--name", name, "key", "generate")
    return str(made["handle"]), str(made["key_id"])


def trust(home: Home, name: str, *args: str) -> Any:
    return home.ctl_json("--name", name, "trust", *args)


def answers(home: Home, name: str, peer: str) -> bool:
    """Whether `peer` takes a whois of the daemon called `name`, and answers."""
    return home.ctl("--name", name, "whois", "--to", peer, "--wait", "1s").returncode == 0


def refused_by(daemon: Daemon, sender: str) -> list[dict[str, Any]]:
    return [one for one in daemon.get("/v1/quarantine")["quarantined"] if one["sender"] == sender]


def open_work(home: Home, name: str, to: str) -> str:
    return str(home.ctl_json("--name", name, "work", "open", "--to", to, "--text", "please")["work_id"])


def ended(daemon: Daemon, work_id: str) -> bool:
    # By the receipt, or by our own daemon on the refusal of the commit: whichever comes first.
    return daemon.state_of(work_id) in ("failed", "canceled")


@pytest.fixture
def pair(home: Home) -> Iterator[tuple[Daemon, Daemon, str, str, str]]:
    """`ops` and `worker`, both with keys: the daemons, the handle of each, and the key id of ops."""
    ops_handle, ops_key = with_key(home, "ops")
    worker_handle, _ = with_key(home, "worker")
    with Daemon(home, "worker", *ONCE) as worker, Daemon(home, "ops", *ONCE) as ops:
        wait_for(lambda: ops.knows(worker_handle) and worker.knows(ops_handle), 15, "presence")
        yield ops, worker, ops_handle, worker_handle, ops_key


def test_denied_key_is_refused_in_open_works_and_readmitted(
    home: Home, pair: tuple[Daemon, Daemon, str, str, str]
) -> None:
    ops, worker, ops_handle, worker_handle, ops_key = pair
    first = open_work(home, "ops", worker_handle)
    wait_for(lambda: worker.get("/v1/inbox")["items"], 15, "the work")
    home.ctl_json("--name", "worker", "work", "accept", first)
    wait_for(lambda: ops.state_of(first) == "working", 15, "the acceptance")

    changed = trust(home, "worker", "deny", ops_handle)
    assert (changed["rule"]["who"], changed["changed"]) == (ops_key, True)
    assert trust(home, "worker", "deny", ops_key)["changed"] is False

    said = home.ctl_json("--name", "ops", "work", "say", first, "--message", "still there?")["id"]
    wait_for(lambda: refused_by(worker, ops_handle), 15, "the refusal")
    assert worker.state_of(first) == "working"  # a refused continuation does not fail the work
    assert not answers(home, "ops", worker_handle)
    (case,) = trust(home, "worker", "why", said)["cases"]
    assert (case["place"], case["recorded"], case["decided_by"]) == ("quarantine", "verification_failed", "deny")
    assert (case["trust"], case["key_id"], case["accepted"]) == ("verified", ops_key, False)
    assert [check["check"] for check in case["checks"]] == ["envelope", "proof", "signature", "deny"]
    human = home.ctl("--name", "worker", "trust", "why", said)
    assert b"NO  deny" in human.stdout
    assert ops_key.encode() in human.stdout

    second = open_work(home, "ops", worker_handle)
    wait_for(lambda: ended(ops, second), 15, "the refusal of a new work")

    assert trust(home, "worker", "deny", ops_key, "--remove")["changed"] is True
    wait_for(lambda: answers(home, "ops", worker_handle), 15, "an answer again")
    case = next(one for one in trust(home, "worker", "why", said)["cases"] if one["place"] == "quarantine")
    assert case["decided_by"] is None
    assert "changed since" in case["note"]
    third = open_work(home, "ops", worker_handle)
    wait_for(lambda: len(worker.get("/v1/inbox")["items"]) >= 2, 15, "a work again")
    assert ops.state_of(third) == "submitted"


def test_denied_sender_gets_one_receipt_a_minute_and_rules_persist(
    home: Home, pair: tuple[Daemon, Daemon, str, str, str]
) -> None:
    ops, worker, ops_handle, worker_handle, ops_key = pair
    trust(home, "worker", "deny", ops_key)
    for _ in range(3):
        open_work(home, "ops", worker_handle)
    wait_for(lambda: len(refused_by(worker, ops_handle)) >= 3, 15, "three refusals")
    wait_for(lambda: ops.get("/v1/messages?kind=receipt&direction=in")["messages"], 15, "the receipt")
    receipts = ops.get("/v1/messages?kind=receipt&direction=in")["messages"]
    assert [one["envelope"]["body"]["reason_code"] for one in receipts] == ["verification_failed"]
    assert (
        worker.get("/v1/messages?direction=out")["messages"] == []
    )  # a peer that is no contact is told once, without a row

    worker.stop()
    worker.start()
    (rule,) = trust(home, "worker", "list")["rules"]
    assert (rule["rule"], rule["who"], rule["origin"]) == ("deny", ops_key, "operator")
    assert not answers(home, "ops", worker_handle)


def test_rules_for_opening_work_and_for_talking(home: Home, pair: tuple[Daemon, Daemon, str, str, str]) -> None:
    _, worker, ops_handle, worker_handle, _ = pair
    with Daemon(home, "plain", *ONCE) as plain:
        wait_for(lambda: plain.knows(worker_handle), 15, "presence")
        noted = home.ctl("--name", "worker", "trust", "allow", "--channel", "default", ops_handle)
        assert noted.returncode == 0
        assert b"no other peer may open work on channel default" in noted.stderr

        denied = open_work(home, "plain", worker_handle)
        wait_for(lambda: ended(plain, denied), 15, "the refusal")
        said = home.ctl_json("--name", "plain", "say", "hello", "--to", worker_handle)["id"]
        wait_for(lambda: trust_place(home, said) == "stored", 15, "talk to come in")
        granted = open_work(home, "ops", worker_handle)
        wait_for(lambda: worker.get("/v1/works")["works"], 15, "the work of who may")
        assert worker.state_of(granted) == "submitted"

        trust(home, "worker", "allow", "--channel", "default", "--talk", "*@*")
        silenced = home.ctl_json("--name", "plain", "say", "hello?", "--to", worker_handle)["id"]
        wait_for(lambda: trust_place(home, silenced) == "quarantine", 15, "talk to be refused")
        (case,) = trust(home, "worker", "why", silenced)["cases"]
        assert (case["decided_by"], case["key_id"], case["trust"]) == ("may_talk", None, "unverified")
        rules = {(one["rule"], one["subject"], one["who"]) for one in trust(home, "worker", "list")["rules"]}
        assert rules == {("may_open_work", "default", ops_handle), ("may_talk", "default", "*@*")}

        trust(home, "worker", "allow", "--channel", "default", "--talk", "*@*", "--remove")
        received = home.ctl_json("--name", "plain", "say", "now?", "--to", worker_handle)["id"]
        wait_for(lambda: trust_place(home, received) == "stored", 15, "talk to come in again")


def trust_place(home: Home, message_id: str) -> str | None:
    """Where the daemon `worker` has the message."""
    done = home.ctl("--name", "worker", "trust", "why", message_id, "-o", "jsonl")
    if done.returncode != 0:
        return None
    return "stored" if b'"place":"stored"' in done.stdout.replace(b" ", b"") else "quarantine"


def test_pinned_nickname_refuses_another_key_and_a_plain_peer(home: Home, tmp_path: Path) -> None:
    worker_handle, _ = with_key(home, "worker")
    pinned = generate_key().key_id
    with Daemon(home, "worker", *OFTEN) as worker:
        home.ctl_json("--name", "worker", "trust", "pin", f"ops={pinned}")
        ops_handle, ops_key = with_key(home, "ops")
        with Daemon(home, "ops") as ops:
            wait_for(lambda: ops.knows(worker_handle), 15, "ops to see the worker")
            assert not answers(home, "ops", worker_handle)
            work = open_work(home, "ops", worker_handle)
            wait_for(lambda: ended(ops, work), 15, "the refusal")
            assert not worker.knows(ops_handle)
            details = {one["detail"] for one in refused_by(worker, ops_handle)}
            assert details == {"from: has a nickname that is pinned to another key here"}
            clash = home.ctl("--name", "worker", "trust", "pin", f"ops={ops_key}")
            assert clash.returncode == 4
            assert b"trust unpin ops" in clash.stderr
            trust(home, "worker", "unpin", "ops")
            trust(home, "worker", "pin", f"ops={ops_key}")
            wait_for(lambda: answers(home, "ops", worker_handle), 15, "the right key to be received")
        (tmp_path / "state/aghbus/instances/ops/identity.pem").unlink()
        with Daemon(home, "ops") as plain:
            assert plain.get("/v1/status")["peer_id"] == "ops"
            wait_for(lambda: plain.knows(worker_handle), 15, "the plain ops to see the worker")
            assert not answers(home, "ops", worker_handle)


def test_impostor_greet_does_not_lock_out_a_plain_peer(home: Home) -> None:
    path = home.root / "impostor.pem"
    key = generate_key()
    write_key(path, key)
    with Daemon(home, "worker", "--trust-first-use", "pin", *OFTEN) as worker, Daemon(home, "ops", *OFTEN) as ops:
        wait_for(lambda: worker.knows("ops") and ops.knows("worker"), 15, "the two to know each other")
        with Daemon(home, "second", "--peer-id", "ops", "--trust-key-file", str(path), *OFTEN):
            wait_for(lambda: worker.knows(handle_of("ops", key.public)), 15, "the greet of the impostor")
            assert trust(home, "worker", "list")["rules"] == []
            work = ops.post("/v1/works", to="worker", text="still accepted?")["work_id"]
            wait_for(lambda: any(one["work_id"] == work for one in worker.get("/v1/works")["works"]), 15, "the work")


def test_trust_on_first_use_pins_reports_it_and_refuses_the_second(home: Home) -> None:
    worker_handle, _ = with_key(home, "worker")
    ops_handle, ops_key = with_key(home, "ops")
    impostor_key = generate_key()
    path = home.root / "impostor.pem"
    write_key(path, impostor_key)
    impostor_handle = handle_of("ops", impostor_key.public)
    with Daemon(home, "worker", "--trust-first-use", "pin", *OFTEN) as worker:
        with Daemon(home, "ops"):
            wait_for(lambda: trust(home, "worker", "list")["rules"], 15, "the pin")
        (rule,) = trust(home, "worker", "list")["rules"]
        assert (rule["rule"], rule["subject"], rule["who"], rule["origin"]) == ("pin", "ops", ops_key, "first_use")
        assert "first use" in home.ctl("--name", "worker", "trust", "list").stdout.decode()
        log = worker.log.read_text()
        assert "trust on first use" in log
        assert ops_key in log

        args = ("--peer-id", "ops", "--trust-key-file", str(path))
        with Daemon(home, "second", *args) as impostor:
            assert impostor.get("/v1/status")["peer_id"] == impostor_handle
            wait_for(lambda: impostor.knows(worker_handle), 15, "the second ops to see the worker")
            assert not answers(home, "second", worker_handle)
            assert not worker.knows(impostor_handle)

        worker.stop()
        worker.start()
        (rule,) = trust(home, "worker", "list")["rules"]
        assert (rule["who"], rule["origin"]) == (ops_key, "first_use")
        with Daemon(home, "ops") as ops:
            wait_for(lambda: ops.knows(worker_handle), 15, "presence")
            wait_for(lambda: answers(home, "ops", worker_handle), 15, "the first ops to be received")
            trust(home, "worker", "pin", ops_handle)  # the operator has looked: the pin is theirs now
            (rule,) = trust(home, "worker", "list")["rules"]
            assert (rule["who"], rule["origin"]) == (ops_key, "operator")


def test_trust_is_shown_with_our_own_card_messages_peers_works_and_rooms(
    home: Home, pair: tuple[Daemon, Daemon, str, str, str]
) -> None:
    ops, worker, ops_handle, worker_handle, _ = pair
    work = home.ctl_json("--name", "ops", "work", "open", "--to", worker_handle, "--text", "x", "--direct")["work_id"]
    wait_for(lambda: worker.get("/v1/inbox")["items"], 15, "the work")
    peers = {peer["peer_id"]: peer["trust"] for peer in worker.get("/v1/peers")["peers"]}
    assert peers == {ops_handle: "verified", worker_handle: "verified"}
    assert [one["trust"] for one in ops.get("/v1/messages")["messages"]] == ["verified"]
    assert worker.get("/v1/works")["works"][0]["trust"] == "verified"
    assert worker.get("/v1/inbox")["items"][0]["message"]["trust"] == "verified"
    assert worker.get("/v1/directs")["directs"][0]["trust"] == "verified"
    for words in (
        ("peers",),
        ("whois",),
        ("inbox", "list"),
        ("messages", "list"),
        ("work", "show", work),
        ("work", "list"),
        ("directs",),
    ):
        shown = home.ctl("--name", "worker", *words)
        assert b"verified" in shown.stdout, (words, shown)
        assert b"unverified" not in shown.stdout.replace(b"unverified, verified", b""), (words, shown)


def test_require_refuses_plain_peers_and_sends_them_no_receipts(home: Home) -> None:
    worker_handle, _ = with_key(home, "worker")
    with (
        Daemon(home, "worker", "--trust-mode", "require", *OFTEN) as worker,
        Daemon(home, "plain") as plain,
    ):
        wait_for(lambda: plain.knows(worker_handle), 15, "presence")
        works = [open_work(home, "plain", worker_handle) for _ in range(3)]
        wait_for(lambda: all(ended(plain, work) for work in works), 15, "the refusals")
        assert plain.get("/v1/messages?kind=receipt&direction=in")["messages"] == []  # commit acknowledgements tell it
        assert not worker.knows("plain")
        message = plain.get("/v1/messages?kind=say")["messages"][0]["id"]
        case = trust(home, "worker", "why", message)["cases"][0]
        assert (case["decided_by"], case["trust"]) == ("mode", "unverified")
