"""Rate limits: messages of one sender, failed signatures, receipts to unknown senders, and large cards of many names."""

import asyncio
import json
import time
from collections.abc import Iterable
from functools import partial
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.daemon.base.background import MAX_TASKS
from aghbus.daemon.config.settings import LimitsSettings, ReceiveSettings
from aghbus.daemon.config.trust_settings import TrustSettings
from aghbus.daemon.receive.received import ReceivedMessage
from aghbus.daemon.wiring import Replacements
from aghbus.protocol.agh.effects import Quarantine
from aghbus.protocol.agh.envelope import parse
from aghbus.protocol.agh.limits import MAX_LIFETIME
from aghbus.protocol.base.rate_limit import TokenBuckets, VerificationBudget
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.log.dedup import DedupWindow
from tests.support.auditing import exported
from tests.support.makers import NOW_MS
from tests.support.natsutil import wait_until
from tests.support.receiving import FRIEND, OTHER, Messages, Recorded, Settled, Still, bench, spent_by

PER_MINUTE = 50


async def test_messages_over_the_limit_are_rejected_per_sender(tmp_path: Path) -> None:
    async with bench(tmp_path, Still(), limits=LimitsSettings(messages_per_minute=PER_MINUTE)) as b:
        for _ in range(PER_MINUTE):
            await b.offer(b.say("flood"))
        late, settled = b.say("flood"), Settled()
        await b.offer(late, settled)
        assert settled.said == "ack"  # it keeps no place in the stream: the sender brings it again
        await b.offer(b.say("quiet"))
        assert await b.senders() == [*["flood"] * PER_MINUTE, "quiet"]
        assert b.counters["overload.sender"] == 1
        assert not await b.count("SELECT count(*) FROM quarantine")
        b.change_settings(limits=LimitsSettings(messages_per_minute=1000))
        again = Settled()
        await b.offer(late, again)
        assert again.said == "ack"
        assert (await b.senders()).count("flood") == PER_MINUTE + 1


async def test_messages_wait_in_the_stream_while_the_store_cannot_write(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        await b.store.close()
        settled = Settled()
        await b.offer(b.say("bob"), settled)
        assert (settled.said, b.counters["overload.store"]) == ("nak", 1)


async def test_duplicate_of_committed_message_is_acked_despite_new_policy(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[str] = []

    def publish_all_nowait(messages: Iterable[tuple[str, bytes]]) -> bool:
        answers.extend(json.loads(raw)["outcome"] for _, raw in messages)
        return True

    async with bench(tmp_path) as b:
        monkeypatch.setattr(b.parts.link, "publish_all_nowait", publish_all_nowait)
        first, later = b.say("peer"), b.say("peer")
        await b.offer(first, reply=f"_INBOX.{'0' * 32}.ack.1")
        b.change_settings(trust=TrustSettings(mode="require"))
        await b.offer(first, reply=f"_INBOX.{'0' * 32}.ack.1")
        await b.offer(later, reply=f"_INBOX.{'0' * 32}.ack.1")
        await wait_until(lambda: len(answers) == 3, 10, "the answers")
        assert answers == ["committed", "committed", "refused"]


async def test_policy_refusals_are_answered_but_not_failed_verification(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    answers: list[tuple[str, str]] = []

    def publish_all_nowait(messages: Iterable[tuple[str, bytes]]) -> bool:
        for _, raw in messages:
            answer = json.loads(raw)
            answers.append((answer["id"], answer["outcome"]))
        return True

    async with bench(tmp_path) as b:
        monkeypatch.setattr(b.parts.link, "publish_all_nowait", publish_all_nowait)
        taken, refused = b.signed(FRIEND), b.signed(FRIEND)
        stripped = b.say(FRIEND.handle)
        for document in (b.forged(FRIEND.handle), stripped, taken, {**taken, "body": {"text": "other"}}, taken):
            await b.offer(document, reply=f"_INBOX.{'0' * 32}.ack.1")
        b.change_settings(trust=TrustSettings(deny=(FRIEND.key_id,)))
        await b.offer(refused, reply=f"_INBOX.{'0' * 32}.ack.1")
        await wait_until(lambda: len(answers) == b.counters["acks.sent"], 10, "the answers")
        assert answers == [(taken["id"], "committed")] * 2 + [(refused["id"], "refused")]
        assert b.counters["refused.verification_failed"] == 4


async def test_forgeries_do_not_spend_the_message_budget_of_the_real_sender(tmp_path: Path) -> None:
    async with bench(tmp_path, Still(), limits=LimitsSettings(messages_per_minute=PER_MINUTE)) as b:
        await b.offer(b.signed(FRIEND))
        for _ in range(2 * PER_MINUTE):
            await b.offer(b.forged(FRIEND.handle))
        for _ in range(PER_MINUTE - 1):
            await b.offer(b.signed(FRIEND))
        assert await b.senders() == [FRIEND.handle] * PER_MINUTE
        await b.offer(b.signed(FRIEND))
        assert b.counters["overload.sender"] == 1  # its own messages do spend it


async def test_verified_peer_is_served_during_an_invalid_signature_flood(tmp_path: Path) -> None:
    budget = VerificationBudget(TokenBuckets(60, 6), TokenBuckets(600, 30))  # smaller than real, for a slow machine
    async with bench(tmp_path, replaced=Replacements(failed_signatures=budget)) as b:
        await b.offer(b.signed(FRIEND))
        for number in range(500):
            await b.offer(b.forged(f"unknown-{number}@{FRIEND.handle.partition('@')[2]}"))
        rejected = b.counters["overload.signatures"]
        assert rejected > 0
        assert b.counters["refused.verification_failed"] + rejected == 500
        while OTHER.handle not in await b.senders():  # accepted with one of its retries
            await b.offer(b.signed(OTHER))
        await b.offer(b.signed(FRIEND))
        assert await b.senders() == [FRIEND.handle, OTHER.handle, FRIEND.handle]


async def test_rejected_messages_are_not_verified(tmp_path: Path) -> None:
    """Cost: nothing is verified that the budgets do not allow, and nothing of a plain message is."""
    cost, recorded = spent_by(Messages().forged(FRIEND.handle)), Recorded()
    budget = VerificationBudget(TokenBuckets(1, 0), TokenBuckets(2 * cost, 0))
    async with bench(tmp_path, replaced=Replacements(verifier=recorded, failed_signatures=budget)) as b:
        await b.offer(b.say("plain"))
        assert recorded.asked == []
        for forgery in [b.forged(FRIEND.handle) for _ in range(10)]:
            await b.offer(forgery)
        assert len(recorded.asked) == 2
        stripped = b.say(FRIEND.handle)
        await b.offer(stripped)
        assert b.counters["overload.signatures"] == 9


async def test_a_wrong_signature_spends_by_the_size_of_its_envelope(tmp_path: Path) -> None:
    large = {"ext": {"filler": "x" * 1_000_000}}
    recorded = Recorded()
    async with bench(tmp_path, Still(), replaced=Replacements(verifier=recorded)) as b:
        first, more, small = b.forged(FRIEND.handle, **large), b.forged(FRIEND.handle, **large), b.forged(FRIEND.handle)
        for document in (first, more, more, small):
            await b.offer(document)
        assert recorded.asked == [first["id"], small["id"]]
        assert b.counters["overload.signatures"] == 2


async def test_a_denied_sender_gets_one_receipt_and_keeps_its_own_budget(tmp_path: Path) -> None:
    """Forged openings would have us answer their victim, and use up the receipts that it needs."""
    async with bench(tmp_path, Still(), limits=LimitsSettings(receipts_per_minute=5)) as b:
        work: dict[str, Any] = {"thread_id": "thread_one"}
        await b.admit(FRIEND.handle)
        for number in range(30):
            await b.offer(b.forged(FRIEND.handle, work_id=f"work_f{number}", **work))
        assert await b.count("SELECT count(*) FROM envelopes WHERE direction = 'out'") == 1
        assert b.counters["receipts.suppressed"] == 29
        await b.offer(b.signed(FRIEND, work_id="work_1", **work))
        for number in range(3):  # in another container than the opening: rejected
            await b.offer(b.signed(FRIEND, work_id="work_1", thread_id=f"thread_other_{number}"))
        assert await b.count("SELECT count(*) FROM envelopes WHERE direction = 'out'") == 4


async def test_receipts_for_unreadable_messages_have_a_budget_of_their_own(tmp_path: Path) -> None:
    async with bench(tmp_path, Still(), limits=LimitsSettings(receipts_per_minute=5)) as b:
        await b.admit("friend")
        for number in range(30):
            await b.offer(b.say("friend", work_id=f"work_b{number}", body={"text": 1}))
        assert await b.count("SELECT count(*) FROM envelopes WHERE direction = 'out'") == 5
        assert await b.count("SELECT count(*) FROM quarantine") == 30  # kept all the same, within its bounds
        for thread in ("thread_one", "thread_two", "thread_three"):  # the others are in another container: rejected
            await b.offer(b.say("friend", work_id="work_1", thread_id=thread))
        assert await b.count("SELECT count(*) FROM envelopes WHERE direction = 'out'") == 7


async def test_large_cards_of_many_names_do_not_fill_the_store(tmp_path: Path) -> None:
    entries = ["x" * 1000] * 1000
    async with bench(tmp_path, limits=LimitsSettings(processor_percent=1000)) as b:
        for number in range(100):
            card = {"peer_id": f"p{number}", "profiles_supported": [], "capabilities": entries}
            card |= {"artifacts_supported": [], "trust_modes_supported": []}
            greet = b.say(f"p{number}", kind="greet", to=None, body={"peer_card": card})
            del greet["surface"], greet["thread_id"]
            await b.offer(greet)
        await b.flush()
        assert 60 <= await b.count("SELECT count(*) FROM peers") <= 70
        assert await b.count("SELECT sum(length(card)) FROM peers") <= 64 << 20
        await b.offer(greet | {"id": "msg_again"})
        await b.flush()
        assert await b.count("SELECT count(*) FROM peers WHERE peer_id = 'p99'") == 1


async def test_a_full_dedup_window_rejects_long_lifetimes_first(tmp_path: Path) -> None:
    async with bench(tmp_path, receive=ReceiveSettings(remembered=1000)) as b:
        for _ in range(450):
            await b.offer(b.say("flood", expires_at=int(time.time()) + 600))
        for_days, settled = b.say("quiet", expires_at=int(time.time()) + 6 * 86_400), Settled()
        await b.offer(for_days, settled)
        assert settled.said == "ack"
        await b.offer(b.say("quiet", expires_at=int(time.time()) + 3600))
        assert (await b.senders()).count("quiet") == 1
        assert b.counters["overload.memory"] == 1


@given(st.integers(1, 10**6), st.integers(0, 10**6), st.integers(0, MAX_LIFETIME))
def test_the_window_takes_everything_half_full_and_nothing_when_full(capacity: int, used: int, remaining: int) -> None:
    class Sized(DedupWindow):
        def __len__(self) -> int:
            return used

    window = Sized()
    window.keys = range(used)  # type: ignore[assignment] # only its length counts here
    admitted = window.admits(remaining, capacity)
    if used >= capacity:
        assert not admitted
    elif 2 * used <= capacity:
        assert admitted
    elif admitted and remaining:
        assert window.admits(remaining - 1, capacity)


@given(st.lists(st.tuples(st.sampled_from("abc"), st.booleans()), max_size=200))
def test_a_name_without_failures_is_always_verified(steps: list[tuple[str, bool]]) -> None:
    budget = VerificationBudget(TokenBuckets(3, 0), TokenBuckets(5, 0))
    budget.proved("friend")
    tried = 0
    for name, right in steps:
        assert budget.may_try("friend", 0)
        if budget.may_try(name, 0):
            if right:
                budget.proved(name)
            else:
                budget.failed(name, 0)
                tried += 1
    assert tried <= 5 + 3 * 3


@given(
    st.lists(st.tuples(st.sampled_from("abc"), st.sampled_from([1.0, 1.5, 5.0, 9.0])), max_size=40),
    st.integers(0, 8),
    st.integers(0, 12),
    st.sets(st.sampled_from("abc")),
)
def test_verifications_in_advance_are_allowed_as_if_all_of_them_failed(
    claims: list[tuple[str, float]], own: int, shared: int, known: set[str]
) -> None:
    budget = VerificationBudget(TokenBuckets(own, 0), TokenBuckets(shared, 0))
    for name in known:
        budget.proved(name)
    ahead = budget.may_try_all(claims, 0)
    assert ahead == budget.may_try_all(claims, 0)  # nothing was spent
    assert all(ahead) or not budget.may_try_together(sum(cost for _, cost in claims), 0)
    for (name, cost), allowed in zip(claims, ahead, strict=True):
        assert budget.may_try(name, 0, cost) == allowed
        if allowed:
            budget.failed(name, 0, cost)


def test_a_cost_above_the_capacity_needs_a_full_bucket() -> None:
    budget = VerificationBudget(TokenBuckets(3, 1), TokenBuckets(5, 0))
    budget.proved("friend")
    budget.failed("friend", 0, 100)  # its own
    budget.failed("unknown", 2, 100)  # what all share
    assert [budget.may_try("friend", 2, cost) for cost in (2, 2.5, 100)] == [True, False, False]
    assert budget.may_try("friend", 3, 100)
    assert not budget.may_try("unknown", 100, 1)


def test_a_query_of_a_bucket_spends_nothing() -> None:
    budget = TokenBuckets(capacity=1, per_second=0.0)
    assert all(budget.has("a", 0) for _ in range(5))
    assert budget.spend("a", 0)
    assert not budget.has("a", 0)


def test_verified_names_are_bounded() -> None:
    budget = VerificationBudget(TokenBuckets(1, 0), TokenBuckets(0, 0), names=2)
    for name in ("a", "b", "c"):
        budget.proved(name)
    assert [budget.may_try(name, 0) for name in "abc"] == [False, True, True]


@pytest.mark.parametrize("field", ["id", "body", "to"])
async def test_a_changed_signed_envelope_is_not_delivered(tmp_path: Path, field: str) -> None:
    async with bench(tmp_path) as b:
        document = b.signed(FRIEND)
        document[field] = {"id": "msg_other", "body": {"text": "other"}, "to": None}[field]
        await b.offer(document)
        assert await b.senders() == []


async def test_acks_wait_for_full_connection_and_drop_above_the_limit(
    tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    published: list[str] = []

    async def publish(_subject: str, raw: bytes) -> None:
        published.append(json.loads(raw)["id"])

    released = asyncio.Event()

    async def wait() -> None:
        await released.wait()

    async with bench(tmp_path) as b:
        for _ in range(MAX_TASKS - 1):
            b.parts.background.spawn(wait())
        monkeypatch.setattr(b.parts.link, "publish_all_nowait", lambda _messages: False)
        monkeypatch.setattr(b.parts.link, "publish", publish)
        waits, dropped = b.say("friend"), b.say("friend")
        b.take(waits, dropped, reply=f"_INBOX.{'0' * 32}.ack.1")
        await b.commit()
        released.set()
        await b.parts.background.close(10)
        assert published == [waits["id"]]
        assert b.counters["acks.unsent"] == 1


async def test_a_rollback_loses_no_count_of_refused_messages_without_a_row(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        effect, refused = (
            Quarantine("malformed", "garbage"),
            parse(json.dumps(b.say("peer")).encode(), int(time.time())),
        )
        message = ReceivedMessage("subject", refused.raw, NOW_MS, "ops", envelope=refused)
        record = partial(b.parts.refused.keep, message=message, effect=effect)

        def fail(tx: Transaction) -> None:
            record(tx)
            raise RuntimeError("after it had written")

        for _ in range(3):
            b.parts.refused.skip()
        with pytest.raises(RuntimeError):
            await b.store.write(fail)
        for _ in range(2):
            await b.store.write(record)
    reasons = [event["reason"] for event in exported(tmp_path / "store.db") if event["outcome"] == "not_kept"]
    assert reasons == ["3 refused messages not recorded: quarantine rate exceeded"]
