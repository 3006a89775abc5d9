"""Discovery over a real store and a simulated link: answers, questions, and what is persisted."""

import asyncio
import json
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aghbus.daemon.discovery.presence_writer import PresenceWriteBehind
from aghbus.daemon.nats.link import Link
from aghbus.daemon.state.catalog import Catalog
from aghbus.protocol.api.peers import WhoisRequest
from aghbus.protocol.envelope import parse
from aghbus.store.engine.dedup import key_of
from aghbus.store.engine.transaction import Transaction
from aghbus.store.errors import StoreUnavailable
from tests.support.links import no_broker
from tests.support.natsutil import wait_until
from tests.support.receiving import Bench, bench

CARD = {"peer_id": "worker", "profiles_supported": [], "capabilities": ["test.run"], "artifacts_supported": []}


class RecordingLink(Link):
    """A link without a server that records messages, at once or, when it is `full`, when `publish` is awaited."""

    def __init__(self, *, full: bool = False) -> None:
        super().__init__(no_broker, name="test")
        self.full = full
        self.posted: list[dict[str, Any]] = []
        self.published: list[dict[str, Any]] = []

    def publish_nowait(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None = None, reply: str = "", **_options: Any
    ) -> bool:
        parse(data, int(time.time()))  # every peer would accept it
        if not self.full:
            self.posted.append({**json.loads(data), "subject": subject})
        return not self.full

    async def publish(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None = None, reply: str = "", **_options: Any
    ) -> None:
        await asyncio.sleep(0)
        self.published.append({**json.loads(data), "subject": subject})


def discovery(b: Bench, sender: str, kind: str, body: dict[str, Any], **fields: Any) -> dict[str, Any]:
    document = b.say(sender, kind=kind, body=body, **{"to": None, **fields})
    del document["surface"], document["thread_id"]
    return document


def question(b: Bench, query: str = "", **fields: Any) -> dict[str, Any]:
    return discovery(b, "asker", "whois", {"type": "request", "query": query}, **fields)


def answer(b: Bench, asked: dict[str, Any], sender: str = "worker") -> dict[str, Any]:
    body = {"type": "response", "peer_card": {**CARD, "peer_id": sender, "trust_modes_supported": []}}
    return discovery(b, sender, "whois", body, to="ops", reply_to=asked["id"])


async def test_an_answer_is_sent_before_anything_is_stored(tmp_path: Path) -> None:
    link = RecordingLink()
    async with bench(tmp_path, link=link) as b:
        asked = question(b, trace_id="trace_1")
        b.take(asked)  # without a turn of the event loop
        assert [one["reply_to"] for one in link.posted] == [asked["id"]]
        assert (link.posted[0]["to"], link.posted[0]["trace_id"]) == ("asker", "trace_1")
        assert not await b.count("SELECT count(*) FROM seen")
        await b.flush()
        assert await b.count("SELECT count(*) FROM seen") == 1


async def test_later_answers_and_answers_after_a_change_are_valid(tmp_path: Path) -> None:
    """The card is validated once (the link here validates each message), and is always the current one."""
    link = RecordingLink()
    async with bench(tmp_path, link=link) as b:
        for _ in range(3):
            await b.offer(question(b))
        b.parts.own_card.catalog = Catalog(claims=("new.claim",))
        for _ in range(2):
            await b.offer(question(b))
        b.parts.own_card.catalog = Catalog(claims=("x" * 100_000,))  # too large a card is never sent
        for _ in range(2):
            await b.offer(question(b))
        cards = [one["body"]["peer_card"]["capabilities"] for one in link.posted]
        assert cards == [[], [], [], ["new.claim"], ["new.claim"]]
        assert b.counters["discovery.unsent"] == 2


async def test_an_answer_waits_for_a_full_connection(tmp_path: Path) -> None:
    link = RecordingLink(full=True)
    async with bench(tmp_path, link=link) as b:
        await b.offer(question(b))
        await b.parts.background.close(10)
        assert len(link.published) == 1


async def test_a_whois_for_the_first_answer_ends_with_it(tmp_path: Path) -> None:
    link = RecordingLink()
    async with bench(tmp_path, link=link) as b:
        asking = asyncio.create_task(b.parts.discovery.whois(WhoisRequest(query="test.run", first=True, wait=60)))
        await wait_until(lambda: link.posted)
        asked = link.posted[0]
        await b.offer(answer(b, asked, "one"))
        await b.offer(answer(b, asked, "two"))
        found = await asking
        assert (found.ended, found.request_id) == ("first", asked["id"])
        assert found.peers[0].peer_id == "one"
        assert {peer.peer_id for peer in b.parts.presence.all()} == {"one", "two"}


async def test_a_whois_ends_after_its_wait_time(tmp_path: Path) -> None:
    async with bench(tmp_path, link=RecordingLink()) as b:
        found = await b.parts.discovery.whois(WhoisRequest(to="nobody", wait=0.05))
        assert (found.ended, found.peers) == ("timeout", [])


async def test_a_duplicate_is_recognized_before_the_first_copy_is_committed(tmp_path: Path) -> None:
    link = RecordingLink()
    async with bench(tmp_path, link=link) as b:
        asked = question(b)
        await b.offer(asked)
        await b.offer(asked)
        assert len(link.posted) == 1
        assert b.counters["ignored.duplicate"] == 1
        await b.flush()
        await b.offer(asked)
        assert b.counters["ignored.duplicate"] == 2


async def test_discovery_messages_of_an_interval_are_one_commit(tmp_path: Path) -> None:
    write_behind = partial(PresenceWriteBehind, interval=0.02)
    async with bench(tmp_path, link=RecordingLink(), write_behind=write_behind) as b:
        before = b.store.stats.commits
        for _ in range(50):
            await b.offer(question(b))
            await b.offer(answer(b, {"id": "msg_none"}))
        await wait_until(lambda: len(b.store.memory.dedup) == 100)
        await b.flush()
        assert await b.count("SELECT count(*) FROM peers") == 1
        assert b.store.stats.commits - before <= 3


async def test_a_rollback_loses_no_pending_discovery(tmp_path: Path) -> None:
    async with bench(tmp_path, link=RecordingLink()) as b:

        def fail(tx: Transaction) -> None:
            tx.db.execute("INSERT INTO seen VALUES (1, x'00')")
            raise RuntimeError("after it had written")

        asked = question(b)
        await b.offer(asked)
        b.parts.write_behind.flush()
        with pytest.raises(RuntimeError):
            await b.store.write(fail)
        assert await b.count("SELECT count(*) FROM seen") == 1


async def test_pending_discovery_is_bounded_while_the_store_cannot_write(tmp_path: Path) -> None:
    write_behind = partial(PresenceWriteBehind, capacity=10)
    async with bench(tmp_path, link=RecordingLink(), write_behind=write_behind) as b:
        pending = b.parts.write_behind
        await b.store.close()
        for _ in range(20):
            asked = question(b)
            await b.offer(asked)
        pending.flush()
        with pytest.raises(StoreUnavailable):
            await b.store.write(lambda tx: None)
        assert pending.pending == 10
        assert key_of(parse(msgspec.json.encode(asked), asked["ts"])) not in pending
