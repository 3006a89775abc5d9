"""An agent that does not read, and a flood: honest peers get through, and the operator removes the flood."""

import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from aghbus.protocol.agh.identifiers import subject_for
from tests.support.daemons import Daemon, Home, wait_for
from tests.support.foreign import Foreign, foreign_peer
from tests.support.natsutil import NatsServer

CAPACITY = 40


class Site:
    """A worker with a small inbox or store, and an honest peer with a key, its contact."""

    def __init__(self, home: Home, url: str, *flags: str) -> None:
        self.home = home
        self.handle = str(home.ctl_json("--name", "ops", "key", "generate")["handle"])
        self.worker = Daemon(home, "worker", "--nats", url, *(flags or ("--inbox-capacity", str(CAPACITY))))
        self.ops = Daemon(home, "ops", "--nats", url)

    def __enter__(self) -> "Site":
        self.worker.__enter__()
        self.ops.__enter__()
        wait_for(lambda: self.worker.knows(self.handle) and self.ops.knows("worker"), 30, "presence")
        self.ctl("say", "--to", self.handle, "hello")  # from now on it is a contact
        return self

    def __exit__(self, *_: object) -> None:
        self.ops.stop()
        self.worker.stop()

    def ctl(self, *args: str) -> Any:
        return self.home.ctl_json("--name", "worker", *args)

    def status(self) -> Any:
        return self.worker.get("/v1/status")

    def counter(self, name: str) -> int:
        return int(self.status()["counters"].get(name, 0))

    def wait_received(self, count: int) -> None:
        wait_for(
            lambda: self.counter("received") >= count and not any(self.status()["queues"].values()), 30, "messages"
        )

    def read_all(self) -> None:
        """The agent reads and acknowledges everything."""
        while self.worker.post("/v1/inbox/next", ack=True)["item"] is not None:
            pass

    def honest_works(self, count: int) -> list[str]:
        """Works that the honest peer opens, once the worker has them."""
        opened = [self.ops.post("/v1/works", to="worker", text="please")["work_id"] for _ in range(count)]
        wait_for(lambda: {one["work_id"] for one in self.worker.get("/v1/works")["works"]} >= set(opened), 30, "works")
        return opened


@pytest.fixture
def site(tmp_path: Path, server: NatsServer) -> Iterator[Site]:
    with Site(Home(tmp_path), server.url) as made:
        yield made


async def flood(peer: Foreign, names: list[str], each: int) -> None:
    """Every name opens so many works."""
    for number in range(each):
        for name in names:
            work = {**peer.work("worker", f"work_{name}_{number}"), "from": name, "id": f"msg_{name}_{number}"}
            await peer.client.publish(subject_for("ws_local", "default", "worker"), json.dumps(work).encode())
    await peer.client.flush()


async def test_one_sender_leaves_room_for_the_others_and_is_purged(site: Site, server: NatsServer) -> None:
    async with foreign_peer(server.url, "mallory") as mallory:
        await flood(mallory, ["mallory"], 2 * CAPACITY)
        wait_for(lambda: site.status()["counters"].get("overload.inbox", 0) >= CAPACITY, 30, "the overload")
        assert site.status()["inbox_use"]["senders"] == [
            {"sender": "mallory", "messages": CAPACITY // 4, "bytes": site.status()["inbox_use"]["bytes"]}
        ]
        (opened, *_) = site.honest_works(3)
        purged = site.ctl("inbox", "purge", "--from", "mallory")
        assert purged == {"v": 1, "messages": CAPACITY // 4, "works": CAPACITY // 4}
        ended = await mallory.expect(kind="receipt", status="rejected")
        assert ended["body"]["detail"] == "purged by the operator"
        assert site.worker.state_of(ended["work_id"]) == "failed"
        assert site.worker.state_of(opened) == "submitted"
        dead = site.ctl("inbox", "list", "--state", "dead")["items"]
        assert {(item["message"]["sender"], item["last_error"]) for item in dead} == {
            ("mallory", "purged by the operator")
        }


async def test_any_number_of_plain_names_leaves_room_for_an_admitted_peer(site: Site, server: NatsServer) -> None:
    site.ctl("trust", "admit", site.handle)
    async with foreign_peer(server.url, "mallory") as mallory:
        await flood(mallory, [f"name{number}" for number in range(3 * CAPACITY)], 1)
        wait_for(lambda: site.status()["counters"].get("overload.inbox", 0) >= CAPACITY, 30, "the overload")
        use = site.status()["inbox_use"]
        assert (use["messages"], use["unverified_messages"]) == (CAPACITY // 2, CAPACITY // 2)
        assert any("takes messages of contacts only" in problem for problem in site.status()["problems"])
        assert "inbox.other" in site.status()["limits"]
        opened = site.honest_works(5)
        assert site.ctl("inbox", "purge", "--others")["messages"] == CAPACITY // 2
        assert site.status()["inbox_use"]["unverified_messages"] == 0
        taken = [site.worker.post("/v1/inbox/next", ack=True)["item"]["message"]["work_id"] for _ in opened]
        assert taken == opened


async def pour(site: Site, peer: Foreign, envelopes: list[dict[str, Any]]) -> None:
    """Each under another name, as fast as the worker takes them; its agent reads everything."""
    before = site.counter("received")
    for number, envelope in enumerate(envelopes, 1):
        await peer.publish({**envelope, "from": f"name{number}"})
        if number % 20 == 0:
            site.wait_received(before + number)
            site.read_all()


async def test_others_neither_stop_contacts_nor_erase_their_works(tmp_path: Path, server: NatsServer) -> None:
    with Site(Home(tmp_path), server.url, "--store-retention-size", "64MiB") as site:
        finished = site.honest_works(3)
        for work_id in finished:
            site.worker.post(f"/v1/works/{work_id}/complete", result={"text": "done"})
        async with foreign_peer(server.url, "mallory") as mallory:
            large = {"body": {"text": "x" * 300_000}}
            openings = [{**mallory.work("worker", f"work_open_{number}"), **large} for number in range(320)]
            await pour(site, mallory, openings)
            assert site.counter("ignored.busy") > 200
            problems = "\n".join(site.status()["problems"])
            assert "others have as many open works as they may" in problems
            assert site.handle not in problems
            place = {"surface": "thread", "thread_id": "thread_foreign", "to": "worker"}
            body = {"state": "working", "message": "x" * 450_000}
            traces = [mallory.envelope("trace", body, work_id=f"work_{number}", **place) for number in range(220)]
            await pour(site, mallory, traces)
            sweeps = site.counter("retention.sweeps")
            wait_for(lambda: site.counter("retention.sweeps") > sweeps, 60, "retention")
            site.honest_works(3)
            assert [site.worker.state_of(work_id) for work_id in finished] == ["completed"] * 3
            assert site.status()["store"]["bytes"] < 64 << 20
            left = site.worker.get("/v1/works?state=submitted&limit=500")["works"]
            others = [work["work_id"] for work in left if work["initiator"] != site.handle]
            assert 20 < len(others) < 30
            assert site.ctl("inbox", "purge", "--others")["works"] == len(others)
            await mallory.publish(mallory.work("worker", "work_later"))
            wait_for(lambda: site.worker.state_of("work_later") == "submitted", 30, "the work of another")


async def test_a_denied_peer_is_purged_and_its_works_end_on_both_sides(site: Site) -> None:
    accepted, waiting = site.honest_works(2)
    site.worker.post(f"/v1/works/{accepted}/accept")
    answer = site.ctl("trust", "refuse", site.handle)
    assert (answer["changed"], answer["purged"]) == (True, {"messages": 2, "works": 2})
    wait_for(lambda: site.ops.state_of(accepted) == "canceled", 30, "the end of the accepted work")
    wait_for(lambda: site.ops.state_of(waiting) == "failed", 30, "the end of the other")
    entries = [json.loads(line) for line in site.home.ctl("--name", "worker", "audit", "export").stdout.splitlines()]
    outcomes = [entry["outcome"] for entry in entries if entry["event"] in ("deliver", "policy")]
    assert outcomes.count("purged") == 2
    assert outcomes[-1] == "inbox_purged"
