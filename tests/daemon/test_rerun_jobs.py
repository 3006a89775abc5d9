"""A job that runs twice, because another one of its transaction wrote and then raised, counts and spends once."""

import asyncio
import contextlib
from pathlib import Path
from typing import NoReturn

import pytest

from aghbus.daemon.config.settings import LimitsSettings, SecretsSettings, Settings
from aghbus.daemon.config.trust_settings import TrustSettings
from aghbus.daemon.wiring import DaemonParts, Replacements
from aghbus.protocol.agh.send import Draft
from aghbus.protocol.base.errors import InvalidRequest, NotFound
from aghbus.protocol.base.rate_limit import TokenBuckets, VerificationBudget
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.tables.outbox import Outgoing
from tests.support.auditing import exported
from tests.support.makers import BOB, CHANNEL, US, WORKSPACE, mint, rows, say, sending
from tests.support.receiving import FRIEND, Bench, Messages, Recorded, Still, bench, spent_by
from tests.support.wiring import daemon_context, daemon_parts

TOKEN = "ghp_" + "a1" * 18


def late(tx: Transaction) -> NoReturn:
    tx.db.execute("INSERT INTO meta (key, value) VALUES ('late', 1)")
    raise NotFound("changed my mind")


async def rerun(store: Store) -> None:
    """Have the jobs that are queued now run twice."""
    reruns = store.stats.reruns
    with pytest.raises(NotFound):
        await store.write(late)
    assert store.stats.reruns == reruns + 1


async def commit_in_rerun(b: Bench) -> None:
    """Commit everything in the queue, in a transaction that is run again."""
    running = asyncio.create_task(b.committer.run())
    await asyncio.sleep(0)  # it has submitted its batch
    await rerun(b.store)
    assert await b.committer.drained(20)
    running.cancel()


async def test_a_message_that_is_given_up_is_counted_once(store: Store) -> None:
    parts = daemon_parts(daemon_context(Settings(name="ops", peer_id=US)), store)
    seq = (await store.write(sending(say(US, BOB)))).seq
    assert seq is not None
    giving_up = store.submit(lambda tx: parts.publisher.give_up(tx, seq, "dead", "no answer"))
    await rerun(store)
    await giving_up
    assert parts.counters["outbox.dead"] == 1
    assert parts.counters.undelivered == {("say", "dead"): 1}
    assert await rows(store, "SELECT state FROM outbox") == [("dead",)]


async def test_a_wrong_signature_spends_once_and_is_verified_once(tmp_path: Path) -> None:
    cost, recorded = spent_by(Messages().forged(FRIEND.handle)), Recorded()
    budget = VerificationBudget(TokenBuckets(1, 0), TokenBuckets(2 * cost, 0))
    async with bench(tmp_path, Still(), replaced=Replacements(verifier=recorded, failed_signatures=budget)) as b:
        b.take(b.forged(FRIEND.handle))
        await commit_in_rerun(b)
        await b.offer(b.forged(FRIEND.handle))
        assert b.counters["refused.verification_failed"] == 2
        assert len(recorded.asked) == 2


async def test_a_right_signature_spends_one_message_of_its_sender(tmp_path: Path) -> None:
    async with bench(tmp_path, Still(), limits=LimitsSettings(messages_per_minute=2)) as b:
        b.take(b.signed(FRIEND))
        await commit_in_rerun(b)
        await b.offer(b.signed(FRIEND))
        assert await b.senders() == [FRIEND.handle] * 2


async def test_a_refused_opening_gets_its_one_receipt(tmp_path: Path) -> None:
    async with bench(tmp_path, Still()) as b:
        await b.admit(FRIEND.handle)
        b.take(b.forged(FRIEND.handle, work_id="work_1"))
        await commit_in_rerun(b)
        assert await b.senders("out") == ["ops"]
        assert b.counters["receipts.suppressed"] == 0


async def test_what_a_batch_queues_is_published_in_the_order_of_its_transaction(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    """A later message of the same transaction does not go out before the receipt, which it may name as its predecessor."""
    async with bench(tmp_path, Still()) as b:
        await b.admit(FRIEND.handle)
        b.take(b.forged(FRIEND.handle, work_id="work_1"))
        published: list[int] = []

        def hand_over(row: Outgoing) -> bool:
            published.append(row.seq)
            return True

        monkeypatch.setattr(b.parts.publisher, "_hand_over", hand_over)
        running, commits = asyncio.create_task(b.committer.run()), b.store.stats.commits
        await asyncio.sleep(0)  # it has submitted its batch
        now = b.parts.clock.seconds()
        draft = Draft(mint(), "ws_local", "default", "say", "ops", now, {"text": "later"}, BOB, "thread", "thread_one")
        later = await b.parts.sender.send_all(lambda _tx, batch: batch.send(draft))
        assert await b.committer.drained(20)
        running.cancel()
        assert b.store.stats.commits == commits + 1
        assert published == [later.seq - 1, later.seq]


async def test_receipts_that_are_not_sent_are_counted_once(tmp_path: Path) -> None:
    async with bench(tmp_path, Still()) as b:
        b.take(*(b.forged(FRIEND.handle, work_id=f"work_{number}") for number in range(3)))
        await commit_in_rerun(b)
        assert b.counters["receipts.suppressed"] == 2
        told = [one["reason"] for one in exported(tmp_path / "store.db") if one["outcome"] == "receipts_suppressed"]
        assert told == ["1 automatic receipts not sent: rate limits"]


async def test_refused_messages_keep_their_rows_in_quarantine(tmp_path: Path) -> None:
    async with bench(tmp_path, Still(), trust=TrustSettings(mode="require")) as b:
        b.take(*(b.say(f"unknown-{number}") for number in range(60)))
        await commit_in_rerun(b)
        assert await b.count("SELECT count(*) FROM quarantine") == 60
        assert b.counters["quarantine.skipped"] == 0


@pytest.mark.parametrize(("guard", "counter"), [("warn", "secrets.warned"), ("refuse", "secrets.refused")])
async def test_a_sent_credential_is_counted_once(store: Store, guard: str, counter: str) -> None:
    parts = daemon_parts(daemon_context(Settings(name="ops", peer_id=US, secrets=SecretsSettings(guard=guard))), store)
    draft = Draft(
        mint(), WORKSPACE, CHANNEL, "say", US, parts.clock.seconds(), {"text": TOKEN}, BOB, "thread", "thread_one"
    )
    sent = asyncio.create_task(sending_of(parts, draft))
    await asyncio.sleep(0)  # it is submitted
    await rerun(store)
    assert await sent == (guard == "warn")
    assert parts.counters[counter] == 1


async def sending_of(parts: DaemonParts, draft: Draft) -> bool:
    """Whether the draft was sent, and not refused."""
    with contextlib.suppress(InvalidRequest):
        return (await parts.sender.send_all(lambda _tx, batch: batch.send(draft))).state == "queued"
    return False
