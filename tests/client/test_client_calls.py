"""Calls: types, errors, and repetition over restarts of the daemon."""

import threading
from functools import partial
from pathlib import Path

import pytest

from aghbus.client import (
    AsyncClient,
    Client,
    Conflict,
    Endpoint,
    InvalidRequest,
    NotFound,
    SecretLike,
    Unexpected,
    Unreachable,
    WorkClosed,
)
from aghbus.daemon.base.failpoints import VARIABLE
from tests.support.client_pair import Pair
from tests.support.cluster import free_ports
from tests.support.daemons import Daemon, Home, wait_for


def test_answers_have_the_types_of_the_api(pair: Pair) -> None:
    client = pair.asking
    assert client.health().alive and client.readiness().ready and client.version().api == "v1"
    assert client.openapi()["openapi"] == "3.1.0"
    assert {peer.peer_id for peer in client.peers().peers} == {"ops", "worker"}
    assert client.whois("test.run", wait=10, first=True).peers[0].peer_id == "worker"
    sent = client.send("say", {"text": "a/b & c"}, to="worker", id="msg/1 ü")
    assert client.message("msg/1 ü").seq == sent.seq
    found = client.messages(kinds=frozenset({"say"}), directions=frozenset({"out"}), last=True, limit=1)
    assert [one.id for one in found.messages] == ["msg/1 ü"]
    assert client.messages(kinds=frozenset({"trace"})).messages == []
    assert {one.id for one in pair.working.capabilities().capabilities} == {"other", "test.run"}


def test_errors_have_a_class_and_a_hint(pair: Pair) -> None:
    client = pair.asking
    with pytest.raises(NotFound) as missing:
        client.work("work_nothing")
    assert (missing.value.code, missing.value.hint) == ("not_found", "`aghctl work list` shows the works")
    with pytest.raises(InvalidRequest):
        client.messages(limit=0)
    with pytest.raises(SecretLike):
        client.send("say", {"text": "token ghp_" + "a1B2" * 9}, to="worker")
    opened = client.open_work("worker", "hello", id="msg_one")
    assert client.open_work("worker", "hello", id="msg_one").seq == opened.seq
    with pytest.raises(Conflict):
        client.open_work("worker", "another", id="msg_one")
    assert opened.work_id is not None
    client.act_on_work(opened.work_id, "cancel", message="never mind")
    with pytest.raises(WorkClosed):
        client.act_on_work(opened.work_id, "cancel")


def test_a_lease_accepts_the_work_that_its_message_opens(pair: Pair) -> None:
    opened = pair.asking.open_work("worker", "hello")
    said = pair.asking.act_on_work(opened.work_id, "say", message="more")
    wait_for(lambda: len(pair.working.inbox().items) == 2, 30, "the messages")
    first, second = pair.working.inbox().items
    for _ in range(2):  # the same lease again is a renewal
        leased = pair.working.lease(first.seq, lease="lease_of_a_worker", accept=True)
        assert (leased.state, leased.attempts, leased.work_state) == ("leased", 1, "working")
    assert pair.working.lease(second.seq, lease="lease_of_a_worker", accept=True).message.id == said.id
    wait_for(lambda: pair.asking.work(opened.work_id).work.state == "working", 30, "the acceptance")
    steps = [step.event for step in pair.working.work(opened.work_id).history]
    assert steps == ["message", "message", "receipt:accepted"]
    pair.asking.act_on_work(opened.work_id, "cancel")
    wait_for(lambda: pair.working.work(opened.work_id).work.state == "canceled", 30, "the end")
    with pytest.raises(Conflict):
        pair.working.lease(first.seq, lease="lease_of_another", accept=True)


def test_a_work_is_read_with_or_without_its_history(pair: Pair) -> None:
    opened = pair.asking.open_work("worker", "hello")
    whole, alone = pair.asking.work(opened.work_id), pair.asking.work(opened.work_id, before=1)
    assert (len(whole.history), alone.history, alone.history_omitted) == (1, [], 0)
    assert alone.work == whole.work
    for channel in ("main", "other"):
        with pytest.raises(NotFound):
            pair.asking.work("work_none", before=1, channel=channel)


def test_a_call_waits_for_a_daemon_that_starts(tmp_path: Path) -> None:
    daemon = Daemon(Home(tmp_path), "ops")
    starter = threading.Timer(0.5, daemon.start, kwargs={"wait": False})
    starter.start()
    try:
        assert Client(Endpoint(path=str(daemon.socket_path)), timeout=60).status().peer_id == "ops"
    finally:
        starter.join()
        daemon.stop()


def test_without_a_daemon_a_call_ends_after_the_timeout(tmp_path: Path) -> None:
    with pytest.raises(Unreachable) as caught:
        Client(Endpoint(path=str(tmp_path / "none.sock")), timeout=0.1).status()
    assert caught.value.hint == "start one: aghd run"


@pytest.mark.parametrize("point", ["send.decided", "send.committed"])
def test_a_message_is_sent_once_over_a_kill_of_the_daemon(pair: Pair, point: str) -> None:
    ops, _, asking, working = pair
    assert ops.stop() == 0
    ops.env[VARIABLE] = point
    ops.start()
    ops.env.pop(VARIABLE)
    restart = threading.Thread(target=lambda: (ops.process.wait(60), ops.start()) if ops.process else None)
    restart.start()
    sent = asking.open_work("worker", "only once")
    restart.join()
    assert [work.work_id for work in asking.works().works] == [sent.work_id]
    events = working.events(kinds=frozenset({"say"}), since=0)
    assert next(event.message.id for event in events if event.message) == sent.id
    assert len(working.messages(kinds=frozenset({"say"})).messages) == 1


async def test_the_asynchronous_client_does_the_same(pair: Pair) -> None:
    client = AsyncClient(Endpoint(path=str(pair.ops.socket_path)))
    assert (await client.status()).peer_id == "ops"
    with pytest.raises(NotFound):
        await client.work("work_nothing")


async def test_tcp_is_used_with_a_proof_of_the_token(home: Home) -> None:
    (port,) = free_ports(1)
    with Daemon(home, "ops", "--api-tcp", f"127.0.0.1:{port}") as ops:
        token = (ops.store_path.parent / "api.token").read_text().strip()
        endpoint = Endpoint(host="127.0.0.1", port=port, token=token)
        assert Client(endpoint).status().peer_id == "ops"
        assert (await AsyncClient(endpoint).status()).peer_id == "ops"
        with pytest.raises(Unexpected):
            Client(Endpoint(host="127.0.0.1", port=port, token="another" * 8)).status()


def test_from_env_finds_the_daemon_as_aghctl_does(pair: Pair, monkeypatch: pytest.MonkeyPatch) -> None:
    for name, value in pair.ops.home.env.items():
        monkeypatch.setenv(name, value)
    assert Client.from_env("worker").status().peer_id == "worker"
    monkeypatch.setenv("AGHD_NAME", "ops")
    assert Client.from_env().status().peer_id == "ops"
    assert pair.ops.home.ctl_json("--name", "ops", "status")["peer_id"] == "ops"


def test_a_capability_is_announced_for_a_while_and_withdrawn(pair: Pair) -> None:
    announce = partial(
        pair.working.announce_capability,
        "text.review",
        summary="Reviews a text",
        outcome="findings",
        examples=["Review this", " "],
    )
    made = announce(expires_in=60)
    assert pair.asking.wait_capability("text.review", timeout=10).peer_id == "worker"
    rich = pair.asking.whois("text.review", catalog=True, wait=10, first=True).peers[0]
    assert rich.capabilities is not None
    reviews = [one for one in rich.capabilities if one["id"] == "text.review"]
    assert [one["examples"] for one in reviews] == [["Review this"]]
    assert [one["digest"] for one in reviews] == [made.digest]
    announce(expires_in=0)
    with pytest.raises(TimeoutError):
        pair.asking.wait_capability("text.review", timeout=0.5)
    assert "text.review" not in {one.id for one in pair.working.capabilities().capabilities}
    with pytest.raises(InvalidRequest, match="summary: must be one line"):
        pair.working.announce_capability("text.review", summary="two\nlines", outcome="x", expires_in=60)


def test_an_artifact_is_stored_and_read_in_pieces(tmp_path: Path) -> None:
    content = bytes(range(256)) * 4_000
    with Daemon(Home(tmp_path), "ops", "--durability", "jetstream") as ops:
        client = Client(Endpoint(path=str(ops.socket_path)))
        made = client.put_artifact("work_1", "data.bin", content)
        halves = [content[:700_000], content[700_000:]]
        assert client.put_artifact("work_1", "data.bin", halves, size=len(content)) == made
        assert b"".join(client.get_artifact("work_1", "data.bin")) == content
        assert [one.uri for one in client.artifacts(work_id="work_1").artifacts] == [made.uri]
        with pytest.raises(Conflict):
            client.put_artifact("work_1", "data.bin", b"other")
        with pytest.raises(NotFound):
            list(client.get_artifact("work_1", "none"))
