"""Discovery over a real store and a simulated link: answers, questions, and what is persisted."""

import asyncio
import json
import sqlite3
import time
from collections.abc import Mapping
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from msgspec.structs import replace

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.config.settings import LimitsSettings
from aghbus.daemon.config.trust_settings import TrustSettings
from aghbus.daemon.discovery.greeter import GREET_BACK_EVERY
from aghbus.daemon.discovery.presence_writer import BATCH, PresenceWriteBehind
from aghbus.daemon.nats.events import InboundMessage
from aghbus.daemon.nats.link import Link
from aghbus.daemon.state.catalog import Catalog
from aghbus.daemon.wiring import Replacements
from aghbus.protocol.agh.envelope import parse
from aghbus.protocol.agh.identifiers import subject_for
from aghbus.protocol.api.peers import WhoisRequest
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.errors import StoreUnavailable
from aghbus.store.tables import peers
from aghbus.store.tables.quarantine import quarantined
from tests.support.links import no_broker
from tests.support.natsutil import wait_until
from tests.support.receiving import Bench, Stepped, bench

CARD = {"peer_id": "worker", "profiles_supported": [], "capabilities": ["test.run"], "artifacts_supported": []}


class RecordingLink(Link):
    """A link without a server that records messages, at once or, when it is `full`, when `publish` is awaited.

    `at` has the monotonic second of each in `posted`.
    """

    def __init__(self, *, full: bool = False) -> None:
        super().__init__(no_broker, name="test")
        self.full = full
        self.posted: list[dict[str, Any]] = []
        self.at: list[float] = []
        self.published: list[dict[str, Any]] = []

    def publish_nowait(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None = None, reply: str = "", **_options: Any
    ) -> bool:
        parse(data, int(time.time()))  # every peer would accept it
        if not self.full:
            self.posted.append({**json.loads(data), "subject": subject})
            self.at.append(time.monotonic())
        return not self.full

    async def publish(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None = None, reply: str = "", **_options: Any
    ) -> None:
        await asyncio.sleep(0)
        self.published.append({**json.loads(data), "subject": subject})


def question(b: Bench, query: str = "", **fields: Any) -> dict[str, Any]:
    return b.discovery("asker", "whois", {"type": "request", "query": query}, **fields)


def answer(b: Bench, asked: dict[str, Any], sender: str = "worker") -> dict[str, Any]:
    body = {"type": "response", "peer_card": {**CARD, "peer_id": sender, "trust_modes_supported": []}}
    return b.discovery(sender, "whois", body, to="ops", reply_to=asked["id"])


async def test_an_answer_is_sent_before_anything_is_stored(tmp_path: Path) -> None:
    link = RecordingLink()
    async with bench(tmp_path, link=link) as b:
        asked = question(b, trace_id="trace_1")
        b.take(asked)  # without a turn of the event loop
        assert [one["reply_to"] for one in link.posted] == [asked["id"]]
        assert (link.posted[0]["to"], link.posted[0]["trace_id"]) == ("asker", "trace_1")
        assert not await b.count("SELECT count(*) FROM remembered_ids")
        await b.flush()
        assert await b.count("SELECT count(*) FROM remembered_ids") == 1


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
        asking = b.parts.questions.whois(WhoisRequest(query="test.run", first=True, wait=60))
        await wait_until(lambda: link.posted)
        asked = link.posted[0]
        await b.offer(answer(b, asked, "one"))
        await b.offer(answer(b, asked, "two"))
        found = await asking
        assert (found.ended, found.request_id) == ("first", asked["id"])
        assert found.peers[0].peer_id == "one"
        assert {peer.peer_id for peer in b.parts.presence.all()} == {"one", "two"}


async def test_an_answer_to_a_question_with_a_filter_does_not_replace_a_card(tmp_path: Path) -> None:
    """In time or late: it lists the wanted capabilities alone. A peer that is not known yet is not added with such a card."""
    link = RecordingLink()
    async with bench(tmp_path, link=link) as b:
        await b.offer(b.discovery("worker", "greet", {"peer_card": {**CARD, "trust_modes_supported": []}}))
        ask = WhoisRequest(catalog=True, capability_ids=["other"], first=True, wait=60)
        asking = b.parts.questions.whois(ask)
        await wait_until(lambda: link.posted)
        for _ in range(2):
            for sender in ("worker", "unknown"):
                filtered = answer(b, link.posted[0], sender)
                filtered["body"]["peer_card"]["capabilities"] = []
                filtered["ext"] = {"agh.capability_catalog": {"capabilities": []}}
                await b.offer(filtered)
            await asking
        assert [(peer.peer_id, peer.card.capabilities) for peer in b.parts.presence.all()] == [
            ("worker", ("test.run",))
        ]


def greet(b: Bench, sender: str, **fields: Any) -> dict[str, Any]:
    card = {**CARD, "peer_id": sender, "trust_modes_supported": []}
    return b.discovery(sender, "greet", {"peer_card": card}, **fields)


async def test_a_wrong_workspace_is_called_that(tmp_path: Path) -> None:
    """In place of the channel, which is right."""
    async with bench(tmp_path) as b:
        elsewhere = json.dumps(b.say("worker", id="msg_elsewhere", workspace_id="ws_other")).encode()
        for subject in (subject_for("ws_local", "default", "ops"), subject_for("ws_other", "default", "ops")):
            b.intake.offer(InboundMessage(subject, elsewhere, "", None, None))
        await b.commit()
        refused = await quarantined(b.store.reader, limit=10)
        assert [(one.reason, one.detail) for one in refused] == [
            ("not_target", "workspace_id: is not the workspace of this daemon"),
            ("not_target", "workspace_id: does not match the NATS subject"),
        ]


async def test_a_new_peer_of_another_implementation_is_greeted_back_once(tmp_path: Path) -> None:
    link = RecordingLink()
    async with bench(tmp_path, clock=Unhurried(), link=link) as b:
        began = time.monotonic()
        for _ in range(2):
            await b.offer(greet(b, "other"))
        await wait_until(lambda: link.posted)
        assert link.at[0] - began > 0.09  # not in the same moment as all other daemons
        await b.offer(greet(b, "other"))
        assert [(one["kind"], one["to"]) for one in link.posted] == [("greet", None)]


@pytest.mark.parametrize(
    ("seconds", "restarts"),
    [
        ([30, 24, 30, 25], [False] * 4),  # with the jitter of the specification
        ([30, 10, 30, 20, 30, 300, 30], [False, True, False, True, False, False, False]),
        ([5, 5, 5, 5], [True, True, False, False]),  # until its interval is known
        ([30, 5, 5, 5, 30], [False, True, True, False, False]),
    ],
)
async def test_an_early_greet_is_a_restart(tmp_path: Path, seconds: list[int], restarts: list[bool]) -> None:
    clock = Unhurried()
    async with bench(tmp_path, clock=clock, link=RecordingLink()) as b:
        envelope = parse(json.dumps(greet(b, "other")).encode(), int(time.time()))
        assert not b.parts.greeter.is_restart(envelope)
        found: list[bool] = []
        for passed in seconds:
            clock.ahead += passed
            found.append(b.parts.greeter.is_restart(envelope))
        assert found == restarts


async def test_a_new_peer_of_this_project_is_not_greeted_back(tmp_path: Path) -> None:
    """It asks all peers when it joins."""
    link = RecordingLink()
    async with bench(tmp_path, clock=Unhurried(), link=link) as b:
        await b.offer(greet(b, "ours", ext={"aghbus.instance": "1"}))
        await b.offer(greet(b, "other"))
        await wait_until(lambda: link.posted)
        assert len(link.posted) == 1


async def test_many_new_names_cause_one_greet_in_a_time(tmp_path: Path) -> None:
    link = RecordingLink()
    clock = Unhurried()
    async with bench(tmp_path, clock=clock, link=link) as b:
        for number in range(50):
            await b.offer(greet(b, f"first{number}"))
        await wait_until(lambda: link.posted)
        clock.ahead = GREET_BACK_EVERY - 1.0
        for number in range(50):
            await b.offer(greet(b, f"then{number}"))
        await wait_until(lambda: len(link.posted) > 1)
        assert len(link.posted) == 2
        assert link.at[1] - link.at[0] > 0.5


class Unhurried(Clock):
    """The jitter is a tenth of its maximum; monotonic time can be set ahead."""

    ahead = 0.0

    def fraction(self) -> float:
        return 0.1

    def monotonic(self) -> float:
        return super().monotonic() + self.ahead


async def test_question_is_sent_at_once_and_dropped_on_disconnect(tmp_path: Path) -> None:
    link = RecordingLink()
    async with bench(tmp_path, link=link) as b:
        asking = asyncio.ensure_future(b.parts.questions.whois(WhoisRequest(first=True, wait=60)))
        assert len(link.posted) == 1  # without a turn of the event loop
        asking.cancel()
        await asyncio.sleep(0)
        await b.offer(answer(b, link.posted[0]))
        assert asking.cancelled()
        assert [peer.peer_id for peer in b.parts.presence.all()] == ["worker"]


async def test_a_whois_waits_for_a_full_connection(tmp_path: Path) -> None:
    link = RecordingLink(full=True)
    async with bench(tmp_path, link=link) as b:
        asking = b.parts.questions.whois(WhoisRequest(first=True, wait=60))
        await wait_until(lambda: link.published)
        await b.offer(answer(b, link.published[0]))
        assert (await asking).ended == "first"


async def test_answers_that_arrive_together_are_all_found(tmp_path: Path) -> None:
    link = RecordingLink()
    async with bench(tmp_path, link=link) as b:
        asking = b.parts.questions.whois(WhoisRequest(query="test.run", wait=60))
        b.take(*(answer(b, link.posted[0], sender) for sender in ("one", "two", "three")))
        found = await asking
        assert [peer.peer_id for peer in found.peers] == ["one", "two", "three"]
        assert (found.ended, found.expected) == ("quiet", 0)


async def test_a_whois_ends_after_its_wait_time(tmp_path: Path) -> None:
    async with bench(tmp_path, link=RecordingLink()) as b:
        found = await b.parts.questions.whois(WhoisRequest(to="nobody", wait=0.05))
        assert (found.ended, found.peers) == ("timeout", [])


async def test_the_last_answer_within_a_limit_says_so(tmp_path: Path) -> None:
    link = RecordingLink()
    async with bench(tmp_path, link=link, limits=LimitsSettings(answers_per_minute=2)) as b:
        b.take(question(b), question(b), question(b))
        assert [one["ext"].get("aghbus.last_answer") for one in link.posted] == [None, True]
        assert b.counters["whois.suppressed"] == 1


async def test_a_whois_tells_a_peer_that_limits_its_answers_from_one_that_is_away(tmp_path: Path) -> None:
    link = RecordingLink()
    async with bench(tmp_path, link=link) as b:
        for peer, ext in (("worker", {"aghbus.last_answer": True}), ("idle", {"aghbus.last_answer": 1})):
            asking = b.parts.questions.whois(WhoisRequest(to=peer, first=True, wait=60))
            b.take({**answer(b, link.posted[-1], peer), "ext": ext})
            assert (await asking).ended == "first"
        for peer, ended in (("worker", "limited"), ("idle", "timeout")):
            assert (await b.parts.questions.whois(WhoisRequest(to=peer, wait=0.05))).ended == ended


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
    replaced = Replacements(write_behind=partial(PresenceWriteBehind, interval=0.5))
    async with bench(tmp_path, link=RecordingLink(), replaced=replaced) as b:
        before, began = b.store.stats.commits, time.monotonic()
        for _ in range(50):
            await b.offer(question(b))
            await b.offer(answer(b, {"id": "msg_none"}))
        intervals = 1 + (time.monotonic() - began) // 0.5  # one, unless the machine stands still
        await wait_until(lambda: len(b.store.memory.dedup) == 100)
        await b.flush()
        assert await b.count("SELECT count(*) FROM peers") == 1
        assert 1 <= b.store.stats.commits - before <= intervals


async def test_many_pending_ids_are_written_before_the_interval_is_over(tmp_path: Path) -> None:
    async with bench(tmp_path, link=RecordingLink()) as b:
        for number in range(BATCH):
            b.parts.write_behind.remember(number, int(time.time()) + 300)
        await wait_until(lambda: not b.parts.write_behind.pending)
        assert len(b.store.memory.dedup) == BATCH


class TestPeersInTheStore:
    """What the table `peers` has after greets."""

    def greet(self, b: Bench, *capabilities: str) -> dict[str, Any]:
        card = {**CARD, "capabilities": list(capabilities), "trust_modes_supported": []}
        return b.discovery("worker", "greet", {"peer_card": card}, ts=b.parts.clock.seconds())

    async def test_a_peer_that_is_only_seen_again_is_written_at_the_end(self, tmp_path: Path) -> None:
        clock = Stepped()
        async with bench(tmp_path, clock, link=RecordingLink()) as b:
            await b.offer(self.greet(b, "test.run"))
            await b.flush()
            (first,) = await peers.load(b.store.reader)
            clock.advance(30)
            await b.offer(self.greet(b, "test.run"))
            await b.flush()
            assert await peers.load(b.store.reader) == [first]
            b.parts.write_behind.close()
            await b.store.write(lambda tx: None)
            (last,) = await peers.load(b.store.reader)
            assert last.last_seen_ms - first.last_seen_ms == 30_000

    async def test_a_peer_that_stays_is_written_now_and_then(self, tmp_path: Path) -> None:
        clock = Stepped()
        async with bench(tmp_path, clock, link=RecordingLink()) as b:
            written = set()
            for _ in range(50):
                await b.offer(self.greet(b, "test.run"))
                await b.flush()
                written.add((await peers.load(b.store.reader))[0].last_seen_ms)
                clock.advance(30)
            assert len(written) == 3  # in 25 minutes

    async def test_a_changed_card_is_written_with_the_next_transaction(self, tmp_path: Path) -> None:
        async with bench(tmp_path, link=RecordingLink()) as b:
            for capabilities in (("a",), ("b",), ("b", "c"), ("b",)):
                await b.offer(self.greet(b, *capabilities))
                assert [peer.card.capabilities for peer in b.parts.presence.all()] == [capabilities]
                await b.flush()
                assert [peer.card.capabilities for peer in await peers.load(b.store.reader)] == [capabilities]

    async def test_a_rollback_loses_no_peer(self, tmp_path: Path) -> None:
        def fail(tx: Transaction) -> None:
            error = sqlite3.OperationalError("disk I/O error")  # the whole transaction fails with it
            error.sqlite_errorcode = sqlite3.SQLITE_IOERR
            raise error

        async with bench(tmp_path, link=RecordingLink()) as b:
            await b.offer(self.greet(b, "test.run"))
            b.parts.write_behind.flush()
            with pytest.raises(StoreUnavailable):
                await b.store.write(fail)
            assert await peers.load(b.store.reader) == []
            await b.flush()
            assert len(await peers.load(b.store.reader)) == 1
            assert len(b.store.memory.dedup) == 1

    async def test_a_greet_that_a_crash_forgot_changes_nothing_when_it_comes_again(self, tmp_path: Path) -> None:
        async with bench(tmp_path, link=RecordingLink()) as b:
            greet = self.greet(b, "test.run")
            await b.offer(greet)
        for _ in range(2):  # its id was not written, then it was
            async with bench(tmp_path, link=RecordingLink()) as b:
                b.parts.presence.load(await peers.load(b.store.reader))
                await b.offer(greet)
                assert [peer.peer_id for peer in b.parts.presence.all()] == ["worker"]
                b.parts.write_behind.close()
                await b.store.write(lambda tx: None)
                assert len(await peers.load(b.store.reader)) == 1
                assert await b.count("SELECT count(*) FROM envelopes") == 0
        assert b.counters["ignored.duplicate"] == 1


async def test_a_rollback_loses_no_pending_discovery(tmp_path: Path) -> None:
    async with bench(tmp_path, link=RecordingLink()) as b:

        def fail(tx: Transaction) -> None:
            tx.db.execute("INSERT INTO remembered_ids (until, key) VALUES (1, 1)")
            raise RuntimeError("after it had written")

        asked = question(b)
        await b.offer(asked)
        b.parts.write_behind.flush()
        with pytest.raises(RuntimeError):
            await b.store.write(fail)
        assert await b.count("SELECT count(*) FROM remembered_ids") == 1


async def test_pending_discovery_is_bounded_while_the_store_cannot_write(tmp_path: Path) -> None:
    replaced = Replacements(write_behind=partial(PresenceWriteBehind, capacity=10))
    async with bench(tmp_path, link=RecordingLink(), replaced=replaced) as b:
        pending = b.parts.write_behind
        await b.store.close()
        for _ in range(20):
            asked = question(b)
            await b.offer(asked)
        pending.flush()
        with pytest.raises(StoreUnavailable):
            await b.store.write(lambda tx: None)
        assert pending.pending == 10
        assert b.store.memory.log.ids.dedup_key(asked["workspace_id"], asked["from"], asked["id"]) not in pending


async def test_versions_of_daemons_are_known_from_their_greets(tmp_path: Path) -> None:
    instance = {"aghbus.instance": "1"}
    said: dict[str, dict[str, Any]] = {
        "ours": {**instance, "aghbus.version": "1.2.3-rc.1"},
        "older": instance,
        "odd": {**instance, "aghbus.version": "1.0\x1b[0m"},
        "other": {"aghbus.version": "1.0"},
    }
    async with bench(tmp_path, link=RecordingLink()) as b:
        for name, ext in said.items():
            await b.offer(greet(b, name, ext=ext))
        presence = b.parts.presence
        found = {name: presence.version_of(name) for name in (*said, "unknown")}
        assert found == {"ours": "1.2.3-rc.1", "older": "", "odd": "", "other": None, "unknown": None}
        b.parts.settings.reload(replace(b.parts.settings.current, trust=TrustSettings(admit="all")))
        assert presence.older_contacts(b.parts.clock.millis()) == ["odd", "older"]
        (problem,) = [one for one in b.parts.status.problems() if "older than 0.1.0" in one]
        assert "odd, older:" in problem


async def test_a_filtered_answer_of_an_unknown_peer_leaves_nothing(tmp_path: Path) -> None:
    async with bench(tmp_path, link=RecordingLink()) as b:
        late = answer(b, question(b))
        late["ext"] = {"agh.capability_catalog": {"capabilities": []}, "aghbus.instance": "1"}
        await b.offer(late)
        assert b.parts.presence.acknowledges("worker") is None
        unknown = greet(b, "loaded", ext={**late["ext"], "aghbus.load": [1, 1]})
        await b.offer(unknown)
        assert b.parts.presence.load_of("loaded") is None
