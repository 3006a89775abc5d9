"""Admission on a broker that others may join: what they ask for waits, and the operator admits or refuses it."""

import asyncio
import contextlib
import sys
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

from aghbus.client.work.clients import Client, endpoint_from
from aghbus.client.work.worker import Worker
from tests.support.client_pair import Running
from tests.support.daemons import DURABLE, Daemon, Home, HttpError, delivery, wait_for
from tests.support.foreign import foreign_peer
from tests.support.natsutil import NatsServer
from tests.support.serving import SERVE, WAIT, Bus, serving

QUICK = ("--retry-first", "100ms", "--retry-limit", "2")
RUNS = [sys.executable, "-c", "import os; open('runs', 'a').write(os.environ['AGH_WORK_ID'] + '\\n'); print('done')"]


class Site(Bus):
    """`worker`, whose operator admits, and `ops`, which has the peer id `peer` and is not admitted."""

    def __init__(self, home: Home, url: str, *flags: str, keyed: bool) -> None:
        self.peer, self.key_id = "ops", None
        if keyed:
            key = home.ctl_json("--name", "ops", "key", "generate")
            self.peer, self.key_id = key["handle"], key["key_id"]
        worker = Daemon(home, "worker", "--nats", url, "--capability", "test.run", *flags)
        super().__init__(home, Daemon(home, "ops", "--nats", url, *flags), worker)

    def meet(self) -> None:
        wait_for(lambda: self.ops.knows("worker") and self.worker.knows(self.peer), WAIT, "the two to know each other")

    def trust(self, verb: str, peer: str, *more: str) -> Any:
        return self.home.ctl_json("--name", "worker", "trust", verb, peer, *more)

    def client(self) -> Client:
        return Client(endpoint_from("worker", env=self.home.env))

    def requests(self) -> list[dict[str, Any]]:
        found: list[dict[str, Any]] = self.home.ctl_json("--name", "worker", "requests")["requests"]
        return found

    def told(self, work_id: str) -> list[str]:
        """What `ops` was told about the work, in words."""
        said = self.ops.get(f"/v1/messages?work={work_id}&direction=in&kind=say")["messages"]
        return [message["envelope"]["body"]["text"] for message in said]

    def until_told(self, work_id: str) -> None:
        wait_for(lambda: self.told(work_id), WAIT, "the answer that the work waits")


@contextlib.contextmanager
def site(root: Path, url: str, *flags: str, keyed: bool) -> Iterator[Site]:
    made = Site(Home(root), url, *flags, keyed=keyed)
    with made.worker, made.ops:
        made.meet()
        yield made


@pytest.fixture
def keyed(tmp_path: Path, server: NatsServer) -> Iterator[Site]:
    with site(tmp_path, server.url, keyed=True) as made:
        yield made


@pytest.fixture
def plain(tmp_path: Path, server: NatsServer) -> Iterator[Site]:
    with site(tmp_path, server.url, keyed=False) as made:
        yield made


def test_work_waits_over_restarts_and_runs_once_admitted(keyed: Site, tmp_path: Path) -> None:
    with serving(keyed, tmp_path, "--accept", "trust=verified", command=RUNS):
        with serving(keyed, tmp_path, command=RUNS) as second:
            second.until("ready")
            work_id = keyed.open("Run the\x1b[31m tests")
            keyed.until_told(work_id)
            assert [(one["peer"], one["key_id"], one["trust"], one["openings"]) for one in keyed.requests()] == [
                (keyed.peer, keyed.key_id, "verified", 1)
            ]
            shown = keyed.home.ctl("--name", "worker", "requests")
            assert keyed.peer.encode() in shown.stdout and b"`aghctl --name worker trust admit PEER`" in shown.stderr
            status = keyed.home.ctl("--name", "worker", "status").stdout
            assert b"1 peer to admit: aghctl --name worker requests" in status
            assert b"\x1b" not in shown.stdout
            keyed.worker.kill()
            keyed.worker.start()
        with serving(keyed, tmp_path, command=RUNS) as third:
            third.until("ready")
            later = keyed.open("and these")
            keyed.until_told(later)
            assert third.until("waiting", work_id=later)["message"].endswith("aghctl --name worker requests")
            (item,) = keyed.waiting(work_id)
            assert (item["state"], item["attempts"], item["lane"], item["work_state"]) == (
                "ready",
                0,
                "other",
                "submitted",
            )
            assert not (tmp_path / "runs").exists()
            nickname = keyed.home.ctl("--name", "worker", "trust", "admit", "ops")
            assert f"not {keyed.peer}".encode() in nickname.stderr and keyed.requests()
            keyed.trust("admit", keyed.peer)
            assert keyed.requests() == []
            for each in (work_id, later):
                assert keyed.end_of(each)["event"] == "trace:completed"
                assert len(keyed.told(each)) == 1
    assert sorted((tmp_path / "runs").read_text().split()) == sorted([work_id, later])


@pytest.mark.parametrize("form", ["peer", "key_id"])
def test_a_refused_peer_gets_an_end_and_no_further_hearing(keyed: Site, tmp_path: Path, form: str) -> None:
    with serving(keyed, tmp_path, command=RUNS):
        work_id = keyed.open()
        keyed.until_told(work_id)
        answer = keyed.trust("refuse", getattr(keyed, form))
        assert (answer["rule"]["rule"], answer["purged"]) == ("deny", {"messages": 1, "works": 1})
        assert keyed.end_of(work_id)["event"] == "receipt:rejected"
        assert keyed.ops.get(f"/v1/works/{work_id}")["work"]["state"] == "failed"
        later = keyed.ops.post("/v1/works", to="worker", text="again")["work_id"]
        assert keyed.end_of(later)["event"] in ("receipt:rejected", "receipt:canceled")
        assert keyed.requests() == []
        assert keyed.trust("refuse", keyed.peer, "--remove")["changed"]
    assert not (tmp_path / "runs").exists()


def test_a_stream_keeps_the_answer_for_an_initiator_that_is_away(tmp_path: Path, server: NatsServer) -> None:
    with site(tmp_path, server.url, *DURABLE, keyed=False) as made:
        work_id = made.open()
        made.ops.kill()
        with serving(made, tmp_path, command=RUNS) as serve:
            serve.until("waiting", work_id=work_id)
        said = f"/v1/messages?work={work_id}&direction=out&kind=say"
        wait_for(lambda: [one["delivery"] for one in made.worker.get(said)["messages"]] == ["published"], WAIT, "it")
        made.ops.start()
        made.until_told(work_id)


def test_a_plain_name_is_admitted_and_refused_by_name(plain: Site, tmp_path: Path) -> None:
    with serving(plain, tmp_path, command=RUNS):
        first = plain.open()
        plain.until_told(first)
        assert [(one["peer"], one["key_id"]) for one in plain.requests()] == [("ops", None)]
        assert b"anybody can use this name" in plain.home.ctl("--name", "worker", "requests").stdout
        plain.trust("admit", "ops")
        assert plain.end_of(first)["event"] == "trace:completed"
        plain.trust("refuse", "ops")
        denied = plain.ops.post("/v1/works", to="worker", text="again")["work_id"]
        assert plain.end_of(denied)["event"] in ("receipt:rejected", "receipt:canceled")
        with pytest.raises(AssertionError, match="that name is denied"):
            plain.trust("admit", "ops")
        plain.trust("refuse", "ops", "--remove")
        second = plain.open()
        plain.until_told(second)  # the refusal took the admission back


def test_a_step_of_a_chain_says_that_it_waits(plain: Site, tmp_path: Path) -> None:
    chain = {
        "name": "c",
        "start": "a",
        "max_steps": 1,
        "nodes": {"a": {"peer": "worker", "input": "do it"}},
        "edges": [],
    }
    with serving(plain, tmp_path, command=RUNS):
        run_id = plain.ops.post("/v1/chains/runs", chain=chain)["run_id"]

        def step() -> tuple[str, str | None]:
            (last,) = plain.ops.get(f"/v1/chains/runs/{run_id}")["history"]
            return last["work_state"], last["message"]

        says = "This work waits until the operator admits its initiator."
        wait_for(lambda: step() == ("submitted", says), WAIT, "the reason")
        plain.trust("admit", "ops")
        wait_for(lambda: step()[0] == "completed", WAIT, "the end of the step")


def test_a_peer_that_our_agent_addresses_is_served(plain: Site, tmp_path: Path) -> None:
    with serving(plain, tmp_path, command=RUNS):
        work_id = plain.open()
        plain.until_told(work_id)
        plain.worker.post("/v1/messages", kind="say", to="ops", thread_id="thread_hello", body={"text": "hello"})
        assert plain.end_of(work_id)["event"] == "trace:completed"


@pytest.mark.parametrize("words", [SERVE, ("bridge", "sacp")], ids=["serve", "bridge"])
def test_others_are_served_where_the_worker_says_so(plain: Site, tmp_path: Path, words: tuple[str, ...]) -> None:
    command = [
        sys.executable,
        "-c",
        """print('{"thought": "t", "status": "success", "data": {"n": 1}, "message": "m"}')""",
    ]
    with serving(plain, tmp_path, command=command, words=words):
        waits = plain.open()
        plain.until_told(waits)
    with serving(plain, tmp_path, "--accept", "others", command=command, words=words):
        work_id = plain.open()
        assert [plain.end_of(each)["event"] for each in (waits, work_id)] == ["trace:completed"] * 2
        assert plain.told(work_id) == []


def test_a_worker_of_the_client_takes_those_of_others_on_request(plain: Site) -> None:
    endpoint, first = endpoint_from("worker", env=plain.home.env), plain.open()

    @contextlib.contextmanager
    def working(*, others: bool) -> Iterator[None]:
        worker = Worker(endpoint, others=others)
        worker.capability("test.run")(lambda job: "done")
        running = Running(lambda: asyncio.run(worker.serve()))
        try:
            yield
        finally:
            worker.stop()
            running.result()

    with working(others=False):
        plain.until_told(first)
    with working(others=True):
        works = [first, plain.open()]
        assert [plain.end_of(each)["event"] for each in works] == ["trace:completed"] * 2
        assert plain.told(works[1]) == []


def test_jobs_of_the_client_log_what_waits(plain: Site, caplog: pytest.LogCaptureFixture) -> None:
    work_id = plain.open()
    with ThreadPoolExecutor() as pool, contextlib.closing(plain.client().jobs()) as jobs:
        first = pool.submit(next, jobs)
        try:
            wait_for(lambda: f"work {work_id} waits" in caplog.text, WAIT, "the warning")
        finally:
            plain.trust("admit", "ops")
            assert first.result(WAIT).work_id == work_id


def test_jobs_of_the_client_take_those_of_others_on_request(plain: Site) -> None:
    work_id = plain.open()
    with contextlib.closing(plain.client().jobs(others=True)) as jobs:
        assert next(jobs).work_id == work_id


async def test_waiting_others_take_no_place_in_the_queue_of_a_busy_worker(
    plain: Site, server: NatsServer, tmp_path: Path
) -> None:
    plain.trust("admit", "ops")
    waits = "import pathlib, time\nwhile not pathlib.Path('go').exists(): time.sleep(0.01)"
    with serving(plain, tmp_path, "--queue", "1", command=[sys.executable, "-c", waits]) as serve:
        running = plain.open()
        serve.until("started", work_id=running)
        async with foreign_peer(server.url, "unknown") as unknown:
            for number in range(3):
                await unknown.publish(unknown.work("worker", f"work_{number}"))
            for number in range(3):
                await unknown.expect(kind="say", work_id=f"work_{number}")
            queued = plain.open()
            too_many = plain.open()
            assert plain.end_of(too_many)["event"] == "receipt:rejected"
            (tmp_path / "go").touch()
            assert plain.end_of(queued)["event"] == "trace:completed"
            assert {plain.worker.state_of(f"work_{number}") for number in range(3)} == {"submitted"}


async def test_the_answer_is_sent_once_and_makes_no_notice_for_our_agent(server: NatsServer, tmp_path: Path) -> None:
    home = Home(tmp_path)
    with Daemon(home, "worker", "--nats", server.url, "--capability", "test.run", *QUICK) as worker:
        bus = Bus(home, worker, worker)
        with serving(bus, tmp_path, command=RUNS):
            async with foreign_peer(server.url, "unknown") as unknown:
                await unknown.publish(unknown.work("worker", "work_1"))
                said = await unknown.expect(kind="say", work_id="work_1")
            other = worker.post("/v1/messages", kind="say", to="nobody", body={"text": "hello"})
            wait_for(lambda: delivery(worker, other["id"]) == "dead", WAIT, "the end of a message that is repeated")
            assert delivery(worker, said["id"]) == "published"
            requests = worker.get("/v1/requests")
            assert ([one["peer"] for one in requests["requests"]], requests["more"]) == (["unknown"], 0)
            items = worker.get("/v1/inbox")["items"]
            assert [item["message"]["id"] for item in items if item["message"]["direction"] == "out"] == [other["id"]]


def test_a_handle_that_was_never_seen_is_denied_by_its_fingerprint(plain: Site) -> None:
    key = plain.home.ctl_json("--name", "spy", "key", "generate")
    handle = key["handle"]
    assert plain.trust("deny", handle)["rule"]["who"] == handle
    assert plain.trust("deny", f"other@{handle.partition('@')[2]}")["changed"] is False
    assert plain.trust("deny", key["key_id"], "--remove")["changed"] is True
    with pytest.raises(HttpError, match="own key or name"):
        plain.worker.post("/v1/trust/deny", who="worker")


def test_requests_are_shortened_and_the_rest_is_counted(plain: Site) -> None:
    plain.open("long " * 1000)
    answer = plain.worker.get("/v1/requests?limit=1")
    assert [(len(one["text"]), one["messages"]) for one in answer["requests"]] == [(200, 1)]
