"""Discovery over a real store and a link that is only played: what goes out, when, and what is kept of what was heard."""

import asyncio
import contextlib
import json
import time
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import msgspec
import pytest

from aghbus.daemon.discovery import presence_writer as heards
from aghbus.daemon.state.catalog import Catalog
from aghbus.protocol.api.peers import WhoisRequest
from aghbus.protocol.envelope import parse
from aghbus.store.engine.dedup import key_of
from aghbus.store.engine.transaction import Transaction
from aghbus.store.errors import StoreUnavailable
from tests.support.intake_bench import Bench, bench
from tests.support.natsutil import wait_until

CARD = {"peer_id": "worker", "profiles_supported": [], "capabilities": ["test.run"], "artifacts_supported": []}


class PlayedLink:
    """Takes what is sent, at once or, when it is `full`, as soon as somebody waits."""

    def __init__(self, *, full: bool = False) -> None:
        self.full = full
        self.state = "up"
        self.posted: list[dict[str, Any]] = []
        self.published: list[dict[str, Any]] = []

    def rtt_ms(self) -> float | None:
        return None

    def publish_nowait(self, subject: str, data: bytes, headers: Mapping[str, str] | None = None) -> bool:
        parse(data, int(time.time()))  # anybody would take it
        if not self.full:
            self.posted.append({**json.loads(data), "subject": subject})
        return not self.full

    async def publish(self, subject: str, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        await asyncio.sleep(0)
        self.published.append({**json.loads(data), "subject": subject})


def linked(b: Bench, *, full: bool = False) -> PlayedLink:
    link = PlayedLink(full=full)
    b.core.link = link  # type: ignore[assignment]
    return link


def discovery(b: Bench, sender: str, kind: str, body: dict[str, Any], **fields: Any) -> dict[str, Any]:
    document = b.say(sender, kind=kind, body=body, **{"to": None, **fields})
    del document["surface"], document["thread_id"]
    return document


def question(b: Bench, query: str = "", **fields: Any) -> dict[str, Any]:
    return discovery(b, "asker", "whois", {"type": "request", "query": query}, **fields)


def answer(b: Bench, asked: dict[str, Any], sender: str = "worker") -> dict[str, Any]:
    body = {"type": "response", "peer_card": {**CARD, "peer_id": sender, "trust_modes_supported": []}}
    return discovery(b, sender, "whois", body, to="ops", reply_to=asked["id"])


async def test_an_answer_is_on_its_way_before_anything_is_kept(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        link, asked = linked(b), question(b, trace_id="trace_1")
        offered = b.offer(asked)
        with contextlib.suppress(StopIteration):
            offered.send(None)  # not one turn of the loop
        assert [one["reply_to"] for one in link.posted] == [asked["id"]]
        assert (link.posted[0]["to"], link.posted[0]["trace_id"]) == ("asker", "trace_1")
        assert not await b.count("SELECT count(*) FROM seen")
        await b.heard()
        assert await b.count("SELECT count(*) FROM seen") == 1


async def test_answers_after_the_first_and_after_a_change_are_as_good(tmp_path: Path) -> None:
    """The card passes the door of all envelopes once (the link here asks each time), and is always the present one."""
    async with bench(tmp_path) as b:
        link = linked(b)
        for _ in range(3):
            await b.offer(question(b))
        b.core.catalog = Catalog(claims=("new.claim",))
        for _ in range(2):
            await b.offer(question(b))
        b.core.catalog = Catalog(claims=("x" * 100_000,))  # no such card can go out, however often it is asked for
        for _ in range(2):
            await b.offer(question(b))
        cards = [one["body"]["peer_card"]["capabilities"] for one in link.posted]
        assert cards == [[], [], [], ["new.claim"], ["new.claim"]]
        assert b.core.counters["discovery.unsent"] == 2


async def test_an_answer_that_finds_no_room_waits_for_it(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        link = linked(b, full=True)
        await b.offer(question(b))
        await b.intake._discovery.close(10)
        assert len(link.published) == 1


async def test_a_question_ends_with_its_first_answer(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        link = linked(b)
        asking = asyncio.create_task(b.intake._discovery.whois(WhoisRequest(query="test.run", first=True, wait=60)))
        await wait_until(lambda: link.posted)
        asked = link.posted[0]
        await b.offer(answer(b, asked, "one"))
        await b.offer(answer(b, asked, "two"))
        found = await asking
        assert (found.ended, found.request_id) == ("first", asked["id"])
        assert found.peers[0].peer_id == "one"
        assert {peer.peer_id for peer in b.core.roster.all()} == {"one", "two"}


async def test_a_question_waits_no_longer_than_asked(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        linked(b)
        found = await b.intake._discovery.whois(WhoisRequest(to="nobody", wait=0.05))
        assert (found.ended, found.peers) == ("timeout", [])


async def test_what_was_heard_twice_is_known_before_it_is_committed(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        link, asked = linked(b), question(b)
        await b.offer(asked)
        await b.offer(asked)
        assert len(link.posted) == 1
        assert b.core.counters["ignored.duplicate"] == 1
        await b.heard()
        await b.offer(asked)
        assert b.core.counters["ignored.duplicate"] == 2


async def test_what_is_heard_in_a_while_is_one_commit(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heards, "_WHILE", 0.02)
    async with bench(tmp_path) as b:
        linked(b)
        before = b.store._writer.stats.commits
        for _ in range(50):
            await b.offer(question(b))
            await b.offer(answer(b, {"id": "msg_none"}))
        await wait_until(lambda: len(b.store.memory.dedup) == 100)
        await b.heard()
        assert await b.count("SELECT count(*) FROM peers") == 1
        assert b.store._writer.stats.commits - before <= 3


async def test_a_rollback_loses_nothing_that_was_heard(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        linked(b)

        def fail(tx: Transaction) -> None:
            tx.db.execute("INSERT INTO seen VALUES (1, x'00')")
            raise RuntimeError("after it had written")

        asked = question(b)
        await b.offer(asked)
        b.intake._discovery.heard.flush()
        with pytest.raises(RuntimeError):
            await b.store.write(fail)
        assert await b.count("SELECT count(*) FROM seen") == 1


async def test_a_store_that_cannot_write_costs_no_memory(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(heards, "_MOST", 10)
    async with bench(tmp_path) as b:
        linked(b)
        heard = b.intake._discovery.heard
        b.store._writer.stop()
        for _ in range(20):
            asked = question(b)
            await b.offer(asked)
        heard.flush()
        with pytest.raises(StoreUnavailable):
            await b.store.write(lambda tx: None)
        assert len(heard._keys) == 10
        assert key_of(parse(msgspec.json.encode(asked), asked["ts"])) not in heard
