"""What all names together can cause: processing, remembered ids, receipts and answers. Names and keys are free."""

import json
import time
from collections.abc import Iterable, Mapping
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from aghbus.daemon.config.settings import LimitsSettings, ReceiveSettings
from aghbus.daemon.config.trust_settings import TrustSettings
from aghbus.daemon.discovery.discovery import SMALL_CATALOG
from aghbus.daemon.nats.link import InboundMessage
from aghbus.daemon.state.catalog import Catalog
from aghbus.daemon.state.limited_peers import LIFE, MAX_NAMES, LimitedPeers
from aghbus.daemon.state.presence import MAX_PEERS
from aghbus.protocol.agh.discovery import CATALOG, CATALOG_KEY, INCLUDE_KEY, Record
from aghbus.protocol.agh.envelope import parse
from aghbus.protocol.agh.identifiers import subject_for
from aghbus.protocol.agh.limits import MAX_LIFETIME, REPLAY_AGE
from aghbus.protocol.agh.trust.keys import SigningKey
from aghbus.protocol.agh.trust.proof import EnvelopeSigner
from aghbus.protocol.base.rate_limit import SharedBucket
from tests.support.publishing import Up
from tests.support.receiving import FRIEND, Bench, Settled, Stepped, Still, bench

SMALL = LimitsSettings(processor_percent=1)  # a tenth of a second of processing: some hundred messages
CARD: dict[str, list[str]] = {
    "profiles_supported": [],
    "capabilities": [],
    "artifacts_supported": [],
    "trust_modes_supported": [],
}


class Recording(Up):
    """A link that keeps what is published without being stored: receipts and answers."""

    def __init__(self) -> None:
        super().__init__()
        self.published: list[dict[str, Any]] = []

    def publish_nowait(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None = None, reply: str = "", **_options: Any
    ) -> bool:
        self.published.append(parse(data, int(time.time())).document())
        return True

    def publish_all_nowait(self, messages: Iterable[tuple[str, bytes]]) -> bool:
        for message in messages:
            self.publish_nowait(*message)
        return True


def greet(b: Bench, sender: str, **fields: Any) -> dict[str, Any]:
    return b.discovery(sender, "greet", {"peer_card": {"peer_id": sender, **CARD}}, **fields)


def fresh_key(number: int) -> EnvelopeSigner:
    return EnvelopeSigner(SigningKey(number.to_bytes(32, "big")), "fresh")


def invalid_opening(b: Bench, sender: str) -> dict[str, Any]:
    return b.say(sender, work_id=f"work_invalid_{sender}", body={"text": 1})


def problems(b: Bench) -> list[str]:
    return list(b.parts.limited.problems(b.parts.clock.monotonic()))


async def rows_out(b: Bench) -> int:
    return await b.count("SELECT count(*) FROM envelopes WHERE direction = 'out'")


async def test_processing_is_reserved_for_contacts(tmp_path: Path) -> None:
    async with bench(tmp_path, Still(), limits=SMALL) as b:
        await b.admit(*(f"known{number}" for number in range(1000)), FRIEND.handle)
        b.take(*(b.say(f"unknown{number}") for number in range(1000)))
        await b.commit()
        unknown = len(await b.senders())
        assert 300 < unknown < 500
        assert b.counters["overload.processing"] == 1000 - unknown
        late, settled = b.say("newcomer"), Settled()
        await b.offer(late, settled)
        assert settled.said == "ack"
        b.take(*(b.say(f"known{number}") for number in range(1000)))
        await b.commit()
        known = len(await b.senders()) - unknown
        assert unknown / 3 < known < unknown * 2 / 3
        for _ in range(10):
            await b.offer(b.signed(FRIEND))
        assert (await b.senders())[-10:] == [FRIEND.handle] * 10
        assert not await b.count("SELECT count(*) FROM quarantine")


async def test_one_problem_names_all_rate_limited_others(tmp_path: Path) -> None:
    async with bench(tmp_path, Still(), limits=SMALL) as b:
        b.take(*(b.say(f"unknown{number}") for number in range(1000)))
        (problem,) = problems(b)
        assert "limits.processor_percent is used up" in problem
        assert (
            " of others, in the lane that they share; the last, as they call themselves: unknown995, unknown996, unknown997, "
            "unknown998, unknown999)" in problem
        )
        later = b.parts.clock.monotonic() + LIFE + 1
        assert not list(b.parts.limited.problems(later))


async def test_refused_bytes_spend_processing_and_are_then_not_parsed(tmp_path: Path) -> None:
    async with bench(tmp_path, Still(), limits=SMALL) as b:
        await b.admit("known")
        for _ in range(1000):
            b.intake.offer(InboundMessage(subject_for("ws_local", "default", "ops"), b'{"from":"unknown"}', "", None))
        parsed = b.counters["refused"]
        assert 300 < parsed < 600
        assert b.counters["overload.processing"] == 1000 - parsed
        await b.offer(b.say("known"))
        assert await b.senders() == ["known"]


async def test_a_message_that_names_a_known_peer_first_is_judged_by_its_sender(tmp_path: Path) -> None:
    async with bench(tmp_path, Still(), limits=SMALL) as b:
        await b.admit("known")
        b.take(*(b.say(f"unknown{number}") for number in range(1000)))
        await b.commit()
        accepted = len(await b.senders())
        for _ in range(1000):
            await b.offer({"body": {"text": "hello", "from": "known"}, **b.say("unknown")})
        assert len(await b.senders()) == accepted
        await b.offer(b.signed(FRIEND))  # no contact, and so not of the quarter that only contacts with a key have
        await b.admit(FRIEND.handle)
        await b.offer(b.signed(FRIEND))
        assert len(await b.senders()) == accepted + 1


async def test_large_messages_spend_by_their_size(tmp_path: Path) -> None:
    async with bench(tmp_path, Still(), limits=SMALL) as b:
        large = [b.say(f"unknown{number}", body={"text": "x" * 100_000}) for number in range(20)]
        b.take(*large)
        await b.commit()
        assert 5 <= len(await b.senders()) <= 10


@given(st.lists(st.tuples(st.sampled_from([0.5, 0.75, 1.0]), st.floats(1, 30), st.floats(0, 2)), max_size=60))
def test_nobody_takes_what_a_share_leaves_to_others(steps: list[tuple[float, float, float]]) -> None:
    bucket, now = SharedBucket(100, 5), 0.0
    for share, cost, wait in steps:
        now += wait
        before = bucket.level(now)
        taken = bucket.spend(cost, now, share)
        assert bucket.level(now) >= min(before, 100 * (1 - share))
        assert taken == (before - cost >= 100 * (1 - share) or before == 100)
        bucket.drain(cost, now, share)
        assert bucket.level(now) >= min(before, 100 * (1 - share))


def test_notes_of_limited_peers_are_bounded() -> None:
    limited = LimitedPeers()
    for number in range(1000):
        limited.note("sender", f"peer{number}", "plain", 0)
    assert (limited.names(1), limited.names(1000)) == (["sender"], [])
    (problem,) = limited.problems(1)
    assert problem.count("peer9") == MAX_NAMES
    assert "(in 1 s: 1000 of contacts without a key;" in problem


async def test_greets_fill_half_of_dedup_and_directed_messages_still_fit(
    tmp_path: Path,
) -> None:
    clock = Stepped()
    async with bench(tmp_path, clock, receive=ReceiveSettings(remembered=1000)) as b:
        await b.admit("known")
        week = int(time.time()) + MAX_LIFETIME - 60
        b.take(*(greet(b, f"unknown{number}", expires_at=week) for number in range(2000)))
        await b.flush()
        assert len(b.store.memory.dedup) <= 500
        assert b.counters["overload.memory"] >= 1500
        await b.offer(b.say("known", expires_at=int(time.time()) + 86_400))
        assert await b.senders() == ["known"]


async def test_greets_of_fresh_keys_leave_room_too(tmp_path: Path) -> None:
    async with bench(tmp_path, receive=ReceiveSettings(remembered=1000)) as b:
        await b.admit(FRIEND.handle)
        for number in range(1, 900):
            signer = fresh_key(number)
            b.take(signer(greet(b, signer.handle)))
        await b.flush()
        assert 250 < len(b.store.memory.dedup) <= 500
        await b.offer(b.signed(FRIEND, expires_at=int(time.time()) + 86_400))
        assert await b.senders() == [FRIEND.handle]


async def test_discovery_id_expires_with_replay_window_and_replay_is_stale(
    tmp_path: Path,
) -> None:
    clock = Stepped()
    async with bench(tmp_path, clock) as b:
        document = greet(b, "peer", expires_at=int(time.time()) + 86_400)
        b.take(document)
        await b.flush()
        assert len(b.store.memory.dedup) == 1
        await b.offer(document)
        assert b.counters["ignored.duplicate"] == 1
        clock.advance(REPLAY_AGE + 200)
        await b.store.write(lambda tx: tx.memory.dedup.expire(tx, clock.millis() // 1000))
        assert len(b.store.memory.dedup) == 0
        await b.offer(document)
        assert b.counters["ignored.stale"] == 1


async def test_receipts_to_peers_that_are_not_known_leave_no_row(tmp_path: Path) -> None:
    link = Recording()
    async with bench(tmp_path, link=link) as b:
        for number in range(20):
            await b.offer(invalid_opening(b, f"unknown{number}"))
            await b.offer(b.say(f"unknown{number}", work_id=f"work_{number}"))
            await b.offer(b.say(f"unknown{number}", work_id=f"work_{number}", thread_id="thread_other"))
        assert [one["body"]["status"] for one in link.published] == ["rejected"] * 40
        assert {one["to"] for one in link.published} == {f"unknown{number}" for number in range(20)}
        assert await rows_out(b) == await b.count("SELECT count(*) FROM outbox") == 0
        await b.admit("known")
        await b.offer(invalid_opening(b, "known"))
        assert await rows_out(b) == 1


async def test_receipts_to_all_unknown_names_together_are_bounded(tmp_path: Path) -> None:
    link = Recording()
    async with bench(tmp_path, Still(), link=link, limits=LimitsSettings(all_receipts_per_minute=20)) as b:
        await b.admit("known")
        for number in range(50):
            await b.offer(invalid_opening(b, f"unknown{number}"))
        assert len(link.published) == 10
        assert b.counters["receipts.suppressed"] == 40
        assert any("automatic receipts are not sent" in problem for problem in problems(b))
        await b.offer(invalid_opening(b, "known"))
        assert await rows_out(b) == 1


async def test_copies_are_answered_once_a_minute_and_leave_no_row(tmp_path: Path) -> None:
    link = Recording()
    async with bench(tmp_path, Still(), link=link) as b:
        await b.admit("known")
        for sender in ("known", "unknown"):
            opening = b.say(sender, work_id=f"work_{sender}")
            for _ in range(20):
                await b.offer(opening)
        assert [(one["to"], one["body"]["status"]) for one in link.published] == [
            ("known", "duplicate"),
            ("unknown", "duplicate"),
        ]
        assert await rows_out(b) == 0


async def test_unverified_names_get_no_receipts_where_verification_is_required(tmp_path: Path) -> None:
    link = Recording()
    async with bench(tmp_path, link=link, trust=TrustSettings(mode="require")) as b:
        await b.admit("known")
        for sender in ("known", "unknown"):
            await b.offer(b.say(sender, work_id="work_1"))
            await b.offer(b.say(sender, work_id="work_2", body={"text": 1}))
            await b.offer(b.forged(FRIEND.handle, work_id="work_3"))
        assert link.published == []
        assert await rows_out(b) == 0
        await b.offer(b.signed(FRIEND, work_id="work_4"))
        await b.offer(b.signed(FRIEND, work_id="work_4", thread_id="thread_other"))
        assert [one["body"]["status"] for one in link.published] == ["rejected"]


def question(b: Bench, sender: str, **fields: Any) -> dict[str, Any]:
    ext = {INCLUDE_KEY: [CATALOG]}
    return b.discovery(sender, "whois", {"type": "request", "query": ""}, ext=ext, **fields)


def give_catalog(b: Bench, size: int) -> None:
    document = {"id": "test.run", "summary": "runs tests", "outcome": "x" * size}
    b.parts.own_card.catalog = Catalog(records=(Record("test.run", "runs tests", "sha256:0", document),))


async def test_large_catalog_is_sent_only_to_verified_directed_questions(tmp_path: Path) -> None:
    link = Recording()
    async with bench(tmp_path, link=link) as b:
        give_catalog(b, SMALL_CATALOG)
        asked = [question(b, "unknown"), question(b, "unknown", to="ops")]
        asked += [FRIEND(question(b, FRIEND.handle)), FRIEND(question(b, FRIEND.handle, to="ops"))]
        for one in asked:
            await b.offer(one)
        assert [CATALOG_KEY in one["ext"] for one in link.published] == [False, False, False, True]
        assert all(len(json.dumps(one)) < 2_000 for one in link.published[:3])
        assert b.counters["whois.catalogs_withheld"] == 3
        give_catalog(b, SMALL_CATALOG // 2)
        await b.offer(question(b, "unknown"))
        assert CATALOG_KEY in link.published[-1]["ext"]


async def test_answers_to_all_unknown_names_together_are_bounded_in_bytes(tmp_path: Path) -> None:
    link = Recording()
    bound = 1 << 20
    async with bench(tmp_path, Still(), link=link, limits=LimitsSettings(answer_bytes_per_minute=bound)) as b:
        await b.admit("known")
        give_catalog(b, SMALL_CATALOG - 1000)
        for number in range(200):
            await b.offer(question(b, f"unknown{number}"))
        assert bound * 0.45 < sum(len(json.dumps(one)) for one in link.published) < bound * 0.6
        assert b.counters["whois.suppressed"] == 200 - len(link.published)
        assert any("whois is not answered" in problem for problem in problems(b))
        await b.offer(question(b, "known"))
        assert link.published[-1]["to"] == "known"


async def test_greets_of_many_names_lock_no_plain_peer_out(tmp_path: Path) -> None:
    async with bench(tmp_path, trust=TrustSettings(first_use="pin")) as b:
        b.take(greet(b, "friend"), *(greet(b, f"name{number}") for number in range(MAX_PEERS)))
        assert not b.parts.presence.knows("ws_local", "default", "friend")
        b.take(FRIEND(greet(b, FRIEND.handle)))
        await b.flush()
        assert b.parts.presence.knows("ws_local", "default", FRIEND.handle)
        await b.offer(b.say("friend"))
        assert await b.senders() == ["friend"]
        assert "no nickname is pinned by first use" in b.parts.status.problems()[-1]
