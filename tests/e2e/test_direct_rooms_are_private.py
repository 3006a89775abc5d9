"""A third peer is never let into a direct room: on the wire, in the API, in streams, in the store, observing or by its id."""

import json
import sqlite3
import time
from pathlib import Path
from typing import Any

import pytest

from aghbus.protocol.agh.identifiers import direct_id, subject_for
from tests.support.daemons import Daemon, Home, HttpError, wait_for
from tests.support.foreign import Foreign, foreign_peer
from tests.support.natsutil import NatsServer

SECRET = "between-the-two-of-us"
WORKSPACE, CHANNEL = "ws_local", "default"


def store_bytes(daemon: Daemon) -> bytes:
    """Everything that the store's files hold."""
    folder = daemon.store_path.parent
    return b"".join(path.read_bytes() for path in sorted(folder.glob("store.db*")))


def texts(found: dict[str, Any]) -> list[str]:
    return [message["envelope"]["body"]["text"] for message in found["messages"]]


def counted(daemon: Daemon, name: str) -> int:
    return int(daemon.get("/v1/status")["counters"].get(name, 0))


def room(one: str, other: str) -> str:
    return direct_id(WORKSPACE, CHANNEL, one, other)


def whisper(peer: Foreign, to: str | None, container: str, text: str, **fields: Any) -> dict[str, Any]:
    more = {"surface": "direct", "direct_id": container, "to": to, **fields}
    return peer.envelope("say", {"text": text}, **more)


async def test_an_observer_sees_and_keeps_nothing_of_a_room(tmp_path: Path, server: NatsServer) -> None:
    home, nats = Home(tmp_path), ("--nats", server.url)
    with (
        Daemon(home, "alice", *nats) as alice,
        Daemon(home, "bob", *nats) as bob,
        Daemon(home, "carol", *nats, "--observe") as carol,
    ):
        wait_for(lambda: alice.knows("bob", "carol") and bob.knows("alice"), 20, "presence")
        said = alice.post("/v1/messages", kind="say", to="bob", direct=True, body={"text": SECRET})
        work = alice.post("/v1/works", to="bob", text=SECRET, direct=True)
        alice.post("/v1/messages", kind="say", to="bob", body={"text": "in a thread"}, thread_id="thread_open")
        wait_for(lambda: len(bob.get("/v1/directs")["directs"]) == 1, 30, "the room")
        wait_for(lambda: bob.state_of(work["work_id"]), 30, "the work, which comes after the room's first message")
        bob.post(f"/v1/works/{work['work_id']}/complete", message=SECRET)
        wait_for(lambda: alice.state_of(work["work_id"]) == "completed", 30, "the end of the work")
        wait_for(lambda: carol.get("/v1/threads")["threads"], 30, "the observed thread")
        wait_for(lambda: counted(carol, "ignored.private_room") >= 3, 30, "the room's traffic to pass by")

        # What was refused on its way between the two is followed too: expired, and no JSON.
        async with foreign_peer(server.url, "dave") as dave:
            stale = int(time.time()) - 5_000
            await dave.publish(whisper(dave, "bob", room("dave", "bob"), SECRET, ts=stale, expires_at=stale + 1))
            await dave.publish(b'{"surface":"direct","body":"' + SECRET.encode(), "bob")
            wait_for(lambda: counted(carol, "refused") >= 2, 30, "the refusals")
            wait_for(lambda: len(carol.get("/v1/quarantine")["quarantined"]) >= 2, 30, "the quarantine")

        direct = said["direct_id"]
        assert texts(carol.get("/v1/messages")) == ["in a thread"]
        assert carol.get(f"/v1/messages?direct={direct}")["messages"] == []
        assert carol.get(f"/v1/messages?direct={direct}&peer=alice")["messages"] == []
        assert carol.get(f"/v1/messages?work={work['work_id']}")["messages"] == []
        assert carol.get("/v1/directs")["directs"] == []
        assert carol.get("/v1/works")["works"] == []
        assert [thread["thread_id"] for thread in carol.get("/v1/threads")["threads"]] == ["thread_open"]
        for path in (f"/v1/messages/{said['id']}", f"/v1/works/{work['work_id']}"):
            with pytest.raises(HttpError) as caught:
                carol.get(path)
            assert caught.value.status == 404
        alice.post("/v1/messages", kind="say", to="bob", body={"text": "the last"}, thread_id="thread_open")
        streamed = []
        for event in carol.events("?since=0"):
            streamed.append(event)
            if event["message"]["envelope"]["body"].get("text") == "the last":
                break
        assert [event["message"]["thread_id"] for event in streamed] == ["thread_open"] * 2
        assert SECRET not in str(streamed) + str(carol.get("/v1/quarantine"))
        logged = [json.loads(line) for line in home.ctl("--name", "carol", "audit", "export").stdout.splitlines()]
        assert {row["event"] for row in logged} == {"policy", "receive"}  # not even that they spoke, refused or not
        assert {row["recipient"] for row in logged if row["event"] == "receive"} == {"bob"}
    assert SECRET.encode() in store_bytes(bob)  # the look finds what is there
    assert SECRET.encode() not in store_bytes(carol)
    assert SECRET not in carol.log.read_text()


async def test_every_way_into_the_room_of_two_others_is_closed(home: Home, server: NatsServer) -> None:
    async with foreign_peer(server.url, "alice") as alice, foreign_peer(server.url, "mallory") as mallory:
        with Daemon(home, "bob", "--nats", server.url) as bob:
            theirs = room("alice", "bob")
            await alice.publish(whisper(alice, "bob", theirs, SECRET))
            wait_for(lambda: texts(bob.get(f"/v1/messages?direct={theirs}")) == [SECRET], 30, "the room")
            tries = [
                whisper(mallory, "bob", theirs, "with the room's id"),
                whisper(mallory, None, theirs, "to nobody"),
                whisper(mallory, "bob", theirs, "as a work", work_id="work_m"),
                whisper(mallory, None, room("mallory", "alice"), "another room, to everybody"),
                whisper(mallory, None, "direct_" + "a" * 32, "an opaque room, to everybody"),
            ]
            for envelope in tries:
                await mallory.publish(envelope)
            # A message of two others on our subject, as a faulty peer would route it.
            stray = whisper(alice, "mallory", room("alice", "mallory"), "stray-" + SECRET)
            await alice.client.publish(subject_for(WORKSPACE, CHANNEL, "bob"), json.dumps(stray).encode())
            await alice.client.flush()
            wait_for(lambda: counted(bob, "refused.not_target") == len(tries) + 1, 30, "the refusals")

            assert texts(bob.get("/v1/messages")) == [SECRET]
            assert [(found["peer"], found["messages"]) for found in bob.get("/v1/directs")["directs"]] == [("alice", 1)]
            assert bob.get("/v1/works")["works"] == []
            assert len(bob.get("/v1/inbox")["items"]) == 1
            assert "stray-" not in str(bob.get("/v1/quarantine"))
            assert bob.get("/v1/status")["outbox"].get("queued", 0) == 0
            ours = whisper(mallory, "bob", room("mallory", "bob"), "by its own room")
            await mallory.publish(ours)
            wait_for(lambda: len(bob.get("/v1/directs")["directs"]) == 2, 30, "mallory's own room")
            assert not [
                message for message in mallory.received if message["kind"] == "receipt"
            ]  # no word about the others' room
        assert b"stray-" not in store_bytes(bob)


async def test_direct_id_takeover_hides_earlier_messages_of_the_room(home: Home, server: NatsServer) -> None:
    """An id that is derived for one pair, used as an opaque one by another first."""
    async with foreign_peer(server.url, "carol") as carol, foreign_peer(server.url, "mallory") as mallory:
        with Daemon(home, "bob", "--nats", server.url) as bob:
            taken = room("bob", "carol")
            await mallory.publish(whisper(mallory, "bob", taken, "first", work_id="work_first"))
            wait_for(lambda: texts(bob.get(f"/v1/messages?direct={taken}")) == ["first"], 30, "the squatter")
            await carol.publish(whisper(carol, "bob", taken, SECRET))
            wait_for(lambda: texts(bob.get(f"/v1/messages?direct={taken}")) == [SECRET], 30, "the true pair")
            await mallory.publish(whisper(mallory, "bob", taken, "second"))
            await mallory.publish(whisper(mallory, "bob", taken, "third", work_id="work_first"))
            wait_for(lambda: counted(bob, "refused.not_target") == 2, 30, "mallory to be put out")

            assert texts(bob.get(f"/v1/messages?direct={taken}")) == [SECRET]
            assert texts(bob.get(f"/v1/messages?direct={taken}&peer=carol")) == [SECRET]
            assert texts(bob.get(f"/v1/messages?direct={taken}&peer=mallory")) == ["first"]
            assert bob.get(f"/v1/messages?direct={taken}&peer=dave")["messages"] == []
            rooms = {
                found["peer"]: (found["messages"], found["derived"]) for found in bob.get("/v1/directs")["directs"]
            }
            assert rooms == {"carol": (1, True), "mallory": (1, False)}
            stream = bob.events(f"?since=0&direct={taken}")
            assert next(stream)["message"]["sender"] == "carol"
            stream.close()
            answer = bob.post("/v1/messages", kind="say", to="carol", direct=True, body={"text": "for carol"})
            assert answer["direct_id"] == taken
            await carol.expect(text="for carol")
            with pytest.raises(HttpError):
                bob.post("/v1/messages", kind="say", to="mallory", direct_id=taken, body={"text": "no"})
            for message in mallory.received:
                assert SECRET not in str(message)
                assert "for carol" not in str(message)
    with sqlite3.connect(f"file:{bob.store_path}?mode=ro", uri=True) as db:
        pairs = db.execute("SELECT pair_a, pair_b, current FROM rooms ORDER BY pair_b").fetchall()
    db.close()
    assert pairs == [("bob", "carol", 1), ("bob", "mallory", 0)]
