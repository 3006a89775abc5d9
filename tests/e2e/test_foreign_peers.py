"""A peer of another implementation, which acknowledges no commits: what reaches it, in which order, and what is taken from it."""

import json
import statistics
import time
from collections.abc import AsyncIterator
from functools import partial
from pathlib import Path
from typing import Any, Final

import pytest

from tests.support.daemons import Daemon, Home, HttpError, delivery, has_no_subscriber, wait_for
from tests.support.foreign import Foreign, foreign_peer
from tests.support.natsutil import NatsServer, wait_until

WAIT: Final = 30.0
QUICK: Final = ("--retry-first", "100ms", "--retry-ceiling", "300ms")
SLOW: Final = ("--retry-first", "10m", "--retry-ceiling", "10m")
REFERENCE: Final = "reference"


@pytest.fixture
async def broker() -> AsyncIterator[NatsServer]:
    async with NatsServer() as server:
        yield server


def daemon(folder: Path, broker: NatsServer, *options: str) -> Daemon:
    return Daemon(Home(folder), "ops", "--nats", broker.url, *options)


def retried(ops: Daemon) -> int:
    return int(ops.get("/v1/status")["counters"].get("outbox.retried", 0))


def retried_since(ops: Daemon, before: int) -> bool:
    return retried(ops) > before


def knows_work(ops: Daemon, work: str) -> bool:
    return any(one["work_id"] == work for one in ops.get("/v1/works")["works"])


async def met(ops: Daemon, peer: Foreign, **fields: Any) -> None:
    """The peer has greeted."""
    await peer.greet(**fields)
    await wait_until(lambda: ops.knows(peer.peer_id), WAIT, "presence")


def say(ops: Daemon, text: str, to: str = REFERENCE) -> dict[str, Any]:
    answer: dict[str, Any] = ops.post(
        "/v1/messages", kind="say", body={"text": text}, to=to, thread_id="thread_one", expires_in=3600
    )
    return answer


def firsts(peer: Foreign) -> list[str]:
    """The ids of what was directed at the peer, in the order of their first copies."""
    return list(
        dict.fromkeys(one["id"] for one in peer.received if one["to"] == peer.peer_id and one["kind"] != "whois")
    )


def copies(peer: Foreign, message_id: str) -> int:
    return sum(one["id"] == message_id for one in peer.received)


@pytest.mark.parametrize("known", [True, False], ids=["known", "never greeted"])
@pytest.mark.parametrize("greets", [True, False], ids=["greets", "says nothing"])
async def test_what_nobody_subscribed_to_arrives_in_order(
    tmp_path: Path, broker: NatsServer, known: bool, greets: bool
) -> None:
    """Openings, words, ends and messages without a work; after the greet at once, else at the usual times."""
    with daemon(tmp_path, broker, *(SLOW if greets else QUICK)) as ops:
        if known:
            async with foreign_peer(broker.url, REFERENCE) as reference:
                await met(ops, reference)
        sent = [ops.post("/v1/works", to=REFERENCE, text="go", work_id="work_1")["id"]]
        wait_for(lambda: has_no_subscriber(ops, sent[0]), WAIT, "the broker's answer")
        for number in range(4):
            sent.append(ops.post("/v1/works/work_1/say", message=f"word {number}")["id"])
            sent.append(say(ops, f"beside {number}")["id"])
        sent.append(ops.post("/v1/works", to=REFERENCE, text="no, this", work_id="work_2")["id"])
        sent += [ops.post(f"/v1/works/{work}/cancel")["id"] for work in ("work_1", "work_2")]
        assert {delivery(ops, one) for one in sent} == {"queued"}
        if known:
            ops.kill()
            ops.start()
        async with foreign_peer(broker.url, REFERENCE) as reference:
            if greets:
                await reference.greet()
            await wait_until(lambda: len(firsts(reference)) == len(sent), WAIT, "everything")
            assert firsts(reference) == sent
        wait_for(lambda: {delivery(ops, one) for one in sent} == {"published"}, WAIT, "the record of it")


async def test_the_receipt_and_the_end_of_a_work_wait_for_its_opener(tmp_path: Path, broker: NatsServer) -> None:
    with daemon(tmp_path, broker, *SLOW) as ops:
        async with foreign_peer(broker.url, REFERENCE) as reference:
            await met(ops, reference)
            await reference.publish(reference.work("ops", "work_1"))
            wait_for(lambda: ops.get("/v1/works")["works"], WAIT, "the work")
        sent = [ops.post(f"/v1/works/work_1/{verb}")["id"] for verb in ("accept", "update", "complete")]
        wait_for(lambda: has_no_subscriber(ops, sent[0]), WAIT, "the broker's answer")
        async with foreign_peer(broker.url, REFERENCE) as reference:
            await reference.greet()
            await wait_until(lambda: len(firsts(reference)) == 3, WAIT, "everything")
            assert firsts(reference) == sent


def test_what_nobody_subscribes_to_expires(tmp_path: Path) -> None:
    with Daemon(Home(tmp_path), "ops", *QUICK) as ops:
        sent = ops.post("/v1/works", to=REFERENCE, text="quickly", expires_in=5)
        wait_for(lambda: has_no_subscriber(ops, sent["id"]), WAIT, "the broker's answer")
        wait_for(lambda: delivery(ops, sent["id"]) == "expired", WAIT, "the expiry")


async def test_retries_to_a_peer_that_is_silent_keep_the_order(tmp_path: Path, broker: NatsServer) -> None:
    with daemon(tmp_path, broker, *QUICK) as ops:
        async with foreign_peer(broker.url, REFERENCE) as reference:
            await met(ops, reference)
            opening = ops.post("/v1/works", to=REFERENCE, text="go", work_id="work_1")["id"]
            words = [ops.post("/v1/works/work_1/say", message=f"word {number}")["id"] for number in range(3)]
            await wait_until(lambda: all(copies(reference, one) > 3 for one in words), WAIT, "three retries of each")
            order = [one["id"] for one in reference.received if one["id"] in (opening, *words)]
            for at, message_id in enumerate(order):
                before = order[:at]
                assert all(
                    before.count(one) > before.count(message_id) for one in [opening, *words] if one < message_id
                )


async def test_the_opening_of_an_ended_work_is_not_repeated(tmp_path: Path, broker: NatsServer) -> None:
    """A peer that has forgotten the work would open it again."""
    with daemon(tmp_path, broker, *QUICK) as ops:
        async with foreign_peer(broker.url, REFERENCE) as reference:
            await met(ops, reference)
            opening = ops.post("/v1/works", to=REFERENCE, text="go", work_id="work_1")["id"]
            ops.post("/v1/works/work_1/cancel")
            await reference.expect(kind="receipt", status="canceled")
            until_now = copies(reference, opening)
            other = ops.post("/v1/works", to=REFERENCE, text="another one")["id"]
            await wait_until(lambda: copies(reference, other) > 4, WAIT, "retries of another opening")
            assert copies(reference, opening) <= until_now + 1  # one may have been on its way
            assert delivery(ops, opening) == "published"


@pytest.mark.parametrize("peer", ["contact", "not a contact", "ours"])
async def test_a_forgotten_work_ends_under_an_id_that_was_not_seen(
    tmp_path: Path, broker: NatsServer, peer: str
) -> None:
    """A restarted peer opens it anew and drops the ids that it has seen; a daemon of this project gets the same bytes."""
    with daemon(tmp_path, broker, *SLOW) as ops:
        async with foreign_peer(broker.url, REFERENCE) as reference:
            await met(ops, reference, **({"ext": {"aghbus.instance": "1"}} if peer == "ours" else {}))
            if peer != "not a contact":
                say(ops, "hello")
            await reference.publish(reference.work("ops", "work_1", trace_id="trace_1"))
            wait_for(lambda: ops.state_of("work_1") == "submitted", WAIT, "the work")
            for verb in ("accept", "complete"):
                ops.post(f"/v1/works/work_1/{verb}")
            end = await reference.expect(kind="trace", state="completed")
            first, second = (reference.work("ops", "work_1") for _ in range(2))
            for document in (first, first, first, second):  # two copies, of which one is answered
                await reference.publish(document)
            last = await reference.expect(kind="receipt", status="rejected", for_id=second["id"])
            rejected = await reference.expect(kind="receipt", status="rejected", for_id=first["id"])
            ends = [one for one in reference.received if one["body"].get("state") == "completed"]
            if peer == "ours":
                assert len(ends) > 1
                assert all(one == end for one in ends)
                return
            assert len({one["id"] for one in ends}) == len(ends) == 4
            order = [one["id"] for one in reference.received]
            assert order.index(ends[1]["id"]) < order.index(rejected["id"])
            assert order.index(ends[-1]["id"]) < order.index(last["id"])
            fresh = {"id", "ts", "expires_at", "ext"}
            for one in ends[1:]:
                assert {**one, **dict.fromkeys(fresh)} == {**end, **dict.fromkeys(fresh)}
            assert ops.state_of("work_1") == "completed"
            if peer == "contact":  # they are kept, and repeated like other messages
                wait_for(lambda: {delivery(ops, one["id"]) for one in ends} == {"published"}, WAIT, "the record of it")


async def test_a_peer_that_never_greeted_is_answered_at_once(tmp_path: Path, broker: NatsServer) -> None:
    """Also if it was away when it was answered before."""
    with daemon(tmp_path, broker, *SLOW) as ops:
        sent: list[str] = []

        async def ask(script: Foreign, work: str) -> None:
            await script.publish(script.work("ops", work))
            wait_for(lambda: knows_work(ops, work), WAIT, "the work")

        def answer(work: str) -> None:
            sent.extend(ops.post(f"/v1/works/{work}/{verb}")["id"] for verb in ("accept", "complete"))

        async with foreign_peer(broker.url, "script") as script:
            await ask(script, "work_1")
        answer("work_1")
        wait_for(lambda: has_no_subscriber(ops, sent[0]), WAIT, "the broker's answer")
        async with foreign_peer(broker.url, "script") as script:
            await ask(script, "work_2")
            answer("work_2")
            await wait_until(lambda: len(firsts(script)) == 4, WAIT, "all answers")
            assert firsts(script) == sent


async def test_a_script_that_acknowledges_nothing_is_answered_at_once_for_as_long_as_it_sends(
    tmp_path: Path, broker: NatsServer
) -> None:
    """Its answers are repeated at growing intervals, but new ones never wait for that."""
    with daemon(tmp_path, broker) as ops:
        async with foreign_peer(broker.url, "script") as script:
            seconds = []
            for number in range(4):
                work = f"work_{number}"
                before = retried(ops)
                await script.publish(script.work("ops", work))
                wait_for(partial(knows_work, ops, work), WAIT, "the work")
                began = time.monotonic()
                for verb in ("accept", "complete"):
                    ops.post(f"/v1/works/{work}/{verb}")
                await script.expect(work_id=work, state="completed")
                seconds.append(time.monotonic() - began)
                wait_for(partial(retried_since, ops, before), WAIT, "a retry of an answer")
            # The first retry comes after a second, the next ones after 2, 4 and 8; a machine may stand still for one answer.
            assert statistics.median(seconds) < 1.0, seconds


async def test_a_copied_predecessor_withholds_nothing(tmp_path: Path, broker: NatsServer) -> None:
    after = {"aghbus.after": {"id": "msg_x", "expires_at": int(time.time()) + 86_400}}
    with daemon(tmp_path, broker) as ops:
        async with foreign_peer(broker.url, REFERENCE) as reference:
            await reference.publish(reference.work("ops", "work_unknown", ext=after))
            wait_for(lambda: ops.state_of("work_unknown") == "submitted", WAIT, "that of an unknown peer")
            await met(ops, reference)
            await reference.publish(reference.work("ops", "work_known", ext=after))
            wait_for(lambda: ops.state_of("work_known") == "submitted", WAIT, "that of a known peer")


async def test_a_message_that_is_held_back_is_shown(tmp_path: Path, broker: NatsServer) -> None:
    until = int(time.time()) + 600
    with daemon(tmp_path, broker) as ops:
        async with foreign_peer(broker.url, "ours") as ours:
            await met(ops, ours, ext={"aghbus.instance": "1"})
            first = ours.work("ops", "work_1")
            after = {"aghbus.after": {"id": first["id"], "expires_at": until}}
            second = ours.work("ops", "work_1", ext=after, expires_at=until + 600)
            await ours.publish(second)

            def problems() -> str:
                return " ".join(ops.get("/v1/status")["problems"])

            stamp = time.strftime("%Y-%m-%d %H:%M:%S UTC", time.gmtime(until))
            sentence = f"1 message of ours is held back: {second['id']} until {first['id']} has come, at the latest until {stamp}"
            wait_for(lambda: sentence in problems(), WAIT, "the problem")
            assert sentence in json.dumps(ops.home.ctl_json("--name", "ops", "doctor")["checks"])
            with pytest.raises(HttpError, match="is held back"):
                ops.get(f"/v1/messages/{second['id']}")
            await ours.publish(first)
            await ours.publish(second)
            wait_for(lambda: len(ops.get("/v1/messages")["messages"]) == 2, WAIT, "both")
            assert not problems()


async def test_a_restarted_peer_is_greeted_back(tmp_path: Path, broker: NatsServer) -> None:
    def greets(peer: Foreign) -> int:
        return sum(one["kind"] == "greet" and one["from"] == "ops" for one in peer.received)

    with daemon(tmp_path, broker, "--discovery-interval", "10m") as ops:
        async with foreign_peer(broker.url, REFERENCE) as reference:
            await met(ops, reference)
            await wait_until(lambda: greets(reference) == 1, WAIT, "the first greet")
        async with foreign_peer(broker.url, REFERENCE) as reference:
            await reference.greet()
            await wait_until(lambda: greets(reference) == 1, WAIT, "the greet after its restart")


async def test_a_catalog_lines_up_with_bare_claims(tmp_path: Path, broker: NatsServer) -> None:
    """The reference drops a catalog whose ids are not those of the card."""
    catalog = tmp_path / "capabilities.toml"
    catalog.write_text('[capabilities."test.run"]\nsummary = "Run tests."\noutcome = "A report."\n')
    with daemon(tmp_path, broker, "--catalog", str(catalog), "--capability", "deploy.it") as ops:
        async with foreign_peer(broker.url, REFERENCE) as reference:
            await met(ops, reference)
            for wanted in ({}, {"agh.capability_ids": ["deploy.it"]}):
                ask = reference.envelope("whois", {"type": "request", "query": ""}, to="ops")
                await reference.publish({**ask, "ext": {"agh.include": ["capability_catalog"], **wanted}})
                answer = await reference.expect(kind="whois", reply_to=ask["id"])
                card = answer["body"]["peer_card"]
                records = [record["id"] for record in answer["ext"]["agh.capability_catalog"]["capabilities"]]
                brief = [entry["id"] for entry in card["ext"]["agh.capabilities_brief"]]
                assert card["capabilities"] == brief == records
                assert "deploy.it" in records


@pytest.mark.parametrize("kind", ["greet", "whois"])
async def test_an_opening_under_the_id_of_discovery_is_a_duplicate(
    tmp_path: Path, broker: NatsServer, kind: str
) -> None:
    with daemon(tmp_path, broker) as ops:
        async with foreign_peer(broker.url, REFERENCE) as reference:
            first = await reference.greet()
            if kind == "whois":
                first = reference.envelope("whois", {"type": "request", "query": ""}, to="ops")
                await reference.publish(first)
                await reference.expect(kind="whois", reply_to=first["id"])
            await reference.publish(reference.work("ops", "work_1", id=first["id"]))
            receipt = await reference.expect(kind="receipt", status="duplicate")
            assert receipt["body"]["for_id"] == first["id"]
            assert ops.get("/v1/works")["works"] == []
