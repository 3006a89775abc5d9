"""Works for a capability: the least busy peer gets one, and another one does it if that peer does not (docs/hand-over.md)."""

import asyncio
import json
import subprocess
import sys
from collections.abc import Iterator
from contextlib import ExitStack, closing
from functools import partial
from pathlib import Path
from typing import Any

import pytest

from aghbus.client import Client, Endpoint
from tests.support.daemons import Daemon, Home, HttpError, UnixClient, wait_for
from tests.support.foreign import CARD, foreign_peer
from tests.support.natsutil import NatsServer

FAST = pytest.mark.parametrize("site", [("--discovery-interval", "4s")], indirect=True, ids=["greets often"])
"""For peers that die: they are gone after two intervals without a greet, as is one that stands still for so long."""
CAPABILITY = ("--capability", "test.run")


class Site:
    """A daemon that opens works, and peers with the capability by their names."""

    def __init__(
        self, home: Home, stack: ExitStack, *names: str, broker: tuple[str, ...] = (), interval: tuple[str, ...] = ()
    ) -> None:
        self.home, self.stack, self.flags = home, stack, (*interval, *broker)
        self.peers = {name: stack.enter_context(Daemon(home, name, *self.flags, *CAPABILITY)) for name in names}
        self.ops = stack.enter_context(Daemon(home, "ops", *self.flags))
        for name in names:
            wait_for(partial(self.ops.knows, name), 30, f"ops to know {name}")

    def open(self, **more: Any) -> dict[str, Any]:
        found: dict[str, Any] = self.ops.post("/v1/works", to_capability="test.run", text="run it", **more)
        return found

    def work(self, work_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ops.get(f"/v1/works/{work_id}")
        return found

    def take(self, name: str, verb: str, **more: Any) -> str:
        """The next work in the inbox of a peer, answered by `verb`."""
        item = self.peers[name].post("/v1/inbox/next", wait=30)["item"]
        work_id: str = item["message"]["work_id"]
        self.peers[name].post(f"/v1/works/{work_id}/{verb}", **more)
        return work_id

    def other(self, name: str) -> str:
        return next(one for one in self.peers if one != name)


@pytest.fixture
def stack() -> Iterator[ExitStack]:
    with ExitStack() as stack:
        yield stack


@pytest.fixture
def site(tmp_path: Path, stack: ExitStack, request: pytest.FixtureRequest) -> Site:
    return Site(Home(tmp_path), stack, "one", "two", interval=getattr(request, "param", ()))


def test_a_rejected_work_is_done_by_the_next_peer_under_one_id(site: Site) -> None:
    opened = site.open(reactions="all")
    first, second = opened["to"], site.other(opened["to"])
    site.take(first, "reject", reason="unsupported_profile", message="no disk")
    wait_for(lambda: site.work(opened["work_id"])["work"]["target"] == second, 30, "the second peer")
    at_second = site.take(second, "accept")
    site.peers[second].post(f"/v1/works/{at_second}/complete", result={"passed": True})

    done = site.ops.get(f"/v1/works/{opened['work_id']}?wait=30")
    assert (done["work"]["state"], done["work"]["result"]) == ("completed", {"passed": True})
    assert (done["work"]["work_id"], done["work"]["first_id"]) == (at_second, opened["work_id"])
    assert [(one["peer"], one["work_id"]) for one in done["attempts"]] == [(first, opened["work_id"])]
    assert "no disk" in done["attempts"][0]["why"]
    changes = [step["after"] for step in done["history"] if step["outcome"] in ("opened", "advanced")]
    assert changes == ["submitted", "failed", "submitted", "working", "completed"]
    assert [work["work_id"] for work in site.ops.get("/v1/works")["works"]] == [at_second]
    told = [item["message"]["envelope"]["body"] for item in site.ops.get("/v1/inbox")["items"]]
    assert [body["state"] for body in told] == ["completed"]  # nothing of the first peer


def test_rejected_by_all_ends_it(site: Site) -> None:
    opened = site.open()
    site.take(opened["to"], "reject", message="full")
    site.take(site.other(opened["to"]), "reject", message="full, too")
    done = site.ops.get(f"/v1/works/{opened['work_id']}?wait=30")
    assert (done["work"]["state"], done["work"]["message"]) == ("failed", "full, too")
    assert len(done["attempts"]) == 1


def test_a_retry_has_the_limits_of_the_work_and_is_hedged_as_it_was(site: Site) -> None:
    limits = {"accept_within": 77, "progress_within": 99, "hedge": True}
    opened = site.open(**limits)
    site.take(opened["to"], "reject")
    site.take(site.other(opened["to"]), "reject")
    site.ops.get(f"/v1/works/{opened['work_id']}?wait=30")
    retry = ("--name", "ops", "work", "retry", opened["work_id"])
    again = site.work(site.home.ctl_json(*retry)["work_id"])
    assert (again["work"]["capability"], again["limits"]) == ("test.run", limits)
    one = site.work(site.home.ctl_json(*retry, "--to", "one")["work_id"])
    assert (one["work"]["capability"], one["limits"]) == (None, {**limits, "hedge": False})


def test_not_accepted_in_time_goes_on_and_is_closed_at_the_first(site: Site) -> None:
    opened = site.open(accept_within=4)  # the second one has so long, too
    first, second = opened["to"], site.other(opened["to"])
    at_second = site.take(second, "accept")
    site.peers[second].post(f"/v1/works/{at_second}/complete")
    done = site.ops.get(f"/v1/works/{opened['work_id']}?wait=30")
    assert (done["work"]["state"], done["work"]["target"]) == ("completed", second)
    wait_for(
        lambda: site.peers[first].state_of(opened["work_id"]) in ("failed", "canceled"), 30, "the end at the first"
    )
    assert site.peers[first].get("/v1/inbox")["items"] == []
    with pytest.raises(HttpError, match="work_closed"):
        site.peers[first].post(f"/v1/works/{opened['work_id']}/accept")


def test_nobody_accepts_within_the_limit(site: Site) -> None:
    opened = site.open(accept_within=1)
    done = site.ops.get(f"/v1/works/{opened['work_id']}?wait=30")
    assert done["work"]["state"] in ("failed", "canceled")
    assert "not accepted within 1 s" in done["work"]["message"]
    assert [one["peer"] for one in done["attempts"]] == [opened["to"]]


@pytest.mark.parametrize("more", [{}, {"accept_within": 60}])
def test_the_limit_that_passed_is_the_reason(site: Site, more: dict[str, Any]) -> None:
    opened = site.open(progress_within=2, **more)
    done = site.ops.get(f"/v1/works/{opened['work_id']}?wait=30")
    assert done["work"]["state"] in ("canceled", "failed")
    assert "no progress within 2 s" in done["work"]["message"]
    assert [one["why"] for one in done["attempts"]] == ["no progress within 2 s"]
    sent = site.ops.get(f"/v1/messages?work={opened['work_id']}&direction=out&kind=say")["messages"][0]["envelope"]
    assert sent["ext"]["aghbus.accept_within"] == 2  # so the first peer does not accept what the second one has


async def test_an_opening_that_the_broker_does_not_take_for_the_next_peer_ends_with_its_size(
    tmp_path: Path, stack: ExitStack
) -> None:
    async with NatsServer(config="max_payload: 20000") as server:
        site = Site(Home(tmp_path), stack, "one", broker=("--nats", server.url))
        sent = site.ops.get(f"/v1/messages/{site.open()['id']}")["envelope"]
        room = 20_000 - len(json.dumps(sent, separators=(",", ":")))
        long = "two-with-a-long-name-" * 4
        second = stack.enter_context(Daemon(site.home, "two", "--peer-id", long, *site.flags))
        wait_for(lambda: site.ops.knows(long), 30, "the next peer")
        opened = site.ops.post("/v1/works", to_capability="test.run", text="x" * (room - 40), accept_within=5)
        with closing(Client(Endpoint(path=str(second.socket_path)))) as client:  # it can do the work from now on
            client.announce_capability("test.run", summary="Runs tests", outcome="a report", expires_in=600)
        done = await asyncio.to_thread(site.ops.get, f"/v1/works/{opened['work_id']}?wait=30")
        assert (done["work"]["state"], done["work"]["target"], done["attempts"]) == ("canceled", "one", [])
        assert "not accepted within 5 s; it cannot be handed over: the envelope has 20" in done["work"]["message"]
        assert second.get("/v1/inbox")["items"] == []


def test_a_peer_that_stops_gives_its_works_back_at_once(site: Site) -> None:
    opened = site.open()
    first, second = opened["to"], site.other(opened["to"])
    wait_for(lambda: site.peers[first].get("/v1/inbox")["counts"]["ready"] == 1, 30, "the work")
    assert site.peers[first].stop() == 0
    at_second = site.take(second, "accept")
    assert site.work(opened["work_id"])["work"]["work_id"] == at_second
    wait_for(lambda: not site.ops.knows(first), 10, "the peer to be gone")  # long before its greets are missed
    site.peers[first].start()
    assert site.peers[first].state_of(opened["work_id"]) == "failed"


@FAST
def test_a_killed_peer_is_given_up_before_it_has_the_work(site: Site) -> None:
    site.peers["one"].kill()
    site.peers["two"].kill()
    opened = site.open()  # both are still thought to be present
    second = site.other(opened["to"])
    site.peers[second].start()
    at_second = site.take(second, "accept")
    assert site.work(opened["work_id"])["work"]["work_id"] == at_second
    site.peers[opened["to"]].start()
    wait_for(lambda: site.ops.knows(opened["to"]), 30, "the first peer")
    assert site.peers[opened["to"]].get("/v1/inbox")["items"] == []


@FAST
def test_a_hedged_work_goes_on_when_its_peer_dies(site: Site) -> None:
    opened = site.open(hedge=True)
    first, second = opened["to"], site.other(opened["to"])
    site.take(first, "accept")
    wait_for(lambda: site.work(opened["work_id"])["work"]["state"] == "working", 30, "working")
    site.peers[first].kill()
    at_second = site.take(second, "accept")
    assert site.work(opened["work_id"])["work"]["work_id"] == at_second
    site.peers[first].start()
    wait_for(lambda: site.peers[first].state_of(opened["work_id"]) == "canceled", 30, "the cancellation")


@pytest.mark.parametrize("status", ["unsupported", "expired"])
async def test_a_peer_that_does_not_support_the_opening_is_passed_over_at_once(
    tmp_path: Path, stack: ExitStack, status: str
) -> None:
    async with NatsServer() as server, foreign_peer(server.url, "foreign") as foreign:
        site = Site(Home(tmp_path), stack, broker=("--nats", server.url))
        card = {**CARD, "peer_id": "foreign", "capabilities": ["test.run"]}
        await foreign.publish(foreign.envelope("greet", {"peer_card": card}))
        wait_for(lambda: site.ops.knows("foreign"), 30, "the foreign peer")
        opened = site.open(reactions="all")
        site.peers["two"] = stack.enter_context(Daemon(site.home, "two", *site.flags, *CAPABILITY))
        wait_for(lambda: site.ops.knows("two"), 30, "the next peer")
        opening = await foreign.expect(id=opened["id"])
        body = {"for_id": opening["id"], "status": status, "reason_code": "unsupported_profile"}
        where = {key: opening[key] for key in ("work_id", "surface", "thread_id")}
        await foreign.publish(foreign.envelope("receipt", body, to="ops", reply_to=opening["id"], **where))
        at_second = await asyncio.to_thread(site.take, "two", "accept")
        site.peers["two"].post(f"/v1/works/{at_second}/complete")
        done = await asyncio.to_thread(site.ops.get, f"/v1/works/{opened['work_id']}?wait=30")
        assert (done["work"]["state"], done["work"]["target"]) == ("completed", "two")
        assert [one["peer"] for one in done["attempts"]] == ["foreign"]
        assert "unsupported_profile" in done["attempts"][0]["why"]
        told = [item["message"]["envelope"]["body"] for item in site.ops.get("/v1/inbox")["items"]]
        assert [body["state"] for body in told] == ["completed"]


@pytest.mark.parametrize("accepted", [True, False])
async def test_a_forged_last_greet_moves_no_work(tmp_path: Path, stack: ExitStack, accepted: bool) -> None:
    slow = ("--discovery-interval", "60s")
    async with NatsServer() as server, foreign_peer(server.url, "one") as forger:
        site = Site(Home(tmp_path), stack, "one", broker=("--nats", server.url), interval=slow)
        if not accepted:
            site.peers["one"].kill()
        opened = site.open(hedge=True)
        if accepted:
            site.take("one", "accept")
            wait_for(lambda: site.work(opened["work_id"])["work"]["state"] == "working", 30, "working")
        site.peers["two"] = stack.enter_context(Daemon(site.home, "two", *site.flags, *CAPABILITY))
        wait_for(lambda: site.ops.knows("two"), 30, "the other peer")
        await forger.greet(ext={"aghbus.leaving": True})
        wait_for(lambda: accepted or not site.ops.knows("one"), 30, "the last greet")
        if not accepted:
            site.peers["one"].start()
            site.take("one", "accept")
        site.peers["one"].post(f"/v1/works/{opened['work_id']}/complete")
        done = await asyncio.to_thread(site.ops.get, f"/v1/works/{opened['work_id']}?wait=30")
        assert (done["work"]["state"], done["work"]["target"], done["attempts"]) == ("completed", "one", [])


def test_the_only_peer_keeps_a_work_with_a_limit_over_its_restart(tmp_path: Path, stack: ExitStack) -> None:
    site = Site(Home(tmp_path), stack, "one")
    opened = site.open(accept_within=120)
    wait_for(lambda: site.peers["one"].get("/v1/inbox")["counts"]["ready"] == 1, 30, "the work")
    assert site.peers["one"].stop() == 0
    site.peers["one"].start()
    assert site.take("one", "accept") == opened["work_id"]
    wait_for(lambda: site.work(opened["work_id"])["work"]["state"] == "working", 30, "working")


def test_an_accepted_work_stays_with_its_peer(site: Site) -> None:
    opened = site.open()
    first = opened["to"]
    site.take(first, "accept")
    wait_for(lambda: site.work(opened["work_id"])["work"]["state"] == "working", 30, "working")
    assert site.peers[first].stop() == 0
    wait_for(lambda: not site.ops.knows(first), 30, "the peer to be gone")
    site.peers[first].start()
    site.peers[first].post(f"/v1/works/{opened['work_id']}/complete")
    done = site.ops.get(f"/v1/works/{opened['work_id']}?wait=30")
    assert (done["work"]["state"], done["attempts"]) == ("completed", [])


def test_the_handle_stands_for_the_work_over_a_restart(site: Site) -> None:
    opened = site.open()
    site.take(opened["to"], "reject")
    second = site.other(opened["to"])
    wait_for(lambda: site.work(opened["work_id"])["work"]["target"] == second, 30, "the second peer")
    site.ops.kill()
    site.ops.start()
    at_second = site.take(second, "accept")
    wait_for(lambda: site.work(opened["work_id"])["work"]["state"] == "working", 30, "working")
    site.ops.post(f"/v1/works/{opened['work_id']}/cancel")
    wait_for(lambda: site.peers[second].state_of(at_second) == "canceled", 30, "the cancellation")


@FAST
def test_the_least_busy_peer_gets_the_next_work(site: Site) -> None:
    for name, daemon in site.peers.items():  # workers that carry out four and two works at a time
        worker = UnixClient(daemon.socket_path)
        worker.request("GET", f"/v1/events?takes={4 if name == 'one' else 2}")
        site.stack.callback(worker.close)
        assert worker.getresponse().status == 200
    wait_for(lambda: {"one": 4, "two": 2}.items() <= loads(site.ops).items(), 30, "the loads")
    given = [site.open()["to"] for _ in range(6)]
    assert sorted(given) == ["one"] * 4 + ["two"] * 2
    wait_for(lambda: shown_loads(site) == {"one": "4/4", "two": "2/2", "ops": "0/0"}, 30, "the loads in the list")


def shown_loads(site: Site) -> dict[str, str]:
    titles, *lines = site.home.ctl("--name", "ops", "peers").stdout.decode().splitlines()
    at = titles.split().index("LOAD")
    return {line.split()[0]: line.replace(" ago", "").split()[at] for line in lines}


def test_this_daemon_is_in_the_list_since_its_start(site: Site) -> None:
    first, again = (site.ops.get("/v1/peers")["peers"][0] for _ in range(2))
    assert (first["peer_id"], first["presence"]) == ("ops", "local")
    assert first["first_seen_ms"] == again["first_seen_ms"] < first["last_seen_ms"]


def test_the_same_id_opens_once(site: Site) -> None:
    first = site.open(id="msg_mine")
    site.open()
    assert site.open(id="msg_mine")["work_id"] == first["work_id"]


def test_without_a_peer_it_is_refused(tmp_path: Path, stack: ExitStack) -> None:
    site = Site(Home(tmp_path), stack)
    with pytest.raises(HttpError, match=r"announces the capability test\.run.*`aghctl wait --capability test\.run`"):
        site.open()
    with pytest.raises(HttpError, match="either `to` or `to_capability`"):
        site.ops.post("/v1/works", text="run it")


@pytest.mark.parametrize("verb", ["run", "watch"])
def test_the_commands_follow_the_work_to_the_next_peer(site: Site, verb: str) -> None:
    work_id = "work_followed"
    opening = ["--to-capability", "test.run", "--text", "run it", "--work-id", work_id]
    if verb == "watch":
        site.home.ctl_json("--name", "ops", "work", "open", *opening)
        opening = [work_id]
    command = [sys.executable, "-m", "aghbus.cli", "--name", "ops", "work", verb, *opening]
    with subprocess.Popen(command, env=site.home.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE) as following:
        wait_for(lambda: site.ops.state_of(work_id), 30, "the work")
        first = site.work(work_id)["work"]["target"]
        site.take(first, "reject")
        at_second = site.take(site.other(first), "accept")
        site.peers[site.other(first)].post(f"/v1/works/{at_second}/complete", result={"passed": True})
        shown, notes = following.communicate(timeout=60)
    assert following.returncode == 0, notes
    assert b"receipt rejected" in shown + notes and b"passed" in shown
    again = site.home.ctl("--name", "ops", "work", "watch", work_id)
    assert again.returncode == 0
    steps = [line.rpartition(b"[")[2].rstrip(b"]") for line in again.stdout.splitlines()]
    assert [step.split()[-1].decode() for step in steps] == ["submitted", "failed", "submitted", "working", "completed"]


def test_the_client_follows_its_work_to_the_next_peer(site: Site) -> None:
    with closing(Client(Endpoint(path=str(site.ops.socket_path)))) as client:
        work = client.start(to_capability="test.run", text="run it")
        first = site.work(work.id)["work"]["target"]
        site.take(first, "reject")
        second = site.other(first)
        at_second = site.take(second, "accept")
        site.peers[second].post(f"/v1/works/{at_second}/complete", message="done")
        done = work.result(timeout=30)
        assert (work.id, done.state, done.message, done.target) == (work.id, "completed", "done", second)


def test_the_limit_for_progress_stays_when_no_other_peer_is_left(site: Site) -> None:
    opened = site.open(progress_within=6)
    assert site.peers[site.other(opened["to"])].stop() == 0
    done = site.ops.get(f"/v1/works/{opened['work_id']}?wait=40")
    assert (done["work"]["state"], done["attempts"]) == ("canceled", [])


def test_repeats_after_a_hand_over_are_the_same_message(site: Site) -> None:
    opened = site.open(id="msg_open")
    said = site.ops.post(f"/v1/works/{opened['work_id']}/say", id="msg_more", message="more")
    first, second = opened["to"], site.other(opened["to"])
    site.take(first, "reject")
    wait_for(lambda: site.work(opened["work_id"])["work"]["target"] == second, 30, "the second peer")
    again = site.ops.post(f"/v1/works/{opened['work_id']}/say", id="msg_more", message="more")
    assert (again["seq"], again["work_id"]) == (said["seq"], opened["work_id"])
    repeated = site.open(id="msg_open")
    assert (repeated["work_id"], repeated["to"], repeated["work_state"]) == (opened["work_id"], first, None)
    with pytest.raises(HttpError, match="already sent with other content"):
        site.open(id="msg_more")
    with pytest.raises(HttpError, match="already sent with other content"):
        site.ops.post("/v1/works", to_capability="test.run", text="something else", id="msg_open")


def loads(daemon: Daemon) -> dict[str, int | None]:
    return {peer["peer_id"]: peer["takes"] for peer in daemon.get("/v1/peers")["peers"]}
