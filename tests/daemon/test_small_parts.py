"""Notifier, token buckets, presence table, counters, acknowledgements: small parts of the daemon."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.daemon.base import failpoints
from aghbus.daemon.base.metrics import Counters
from aghbus.daemon.base.notifier import Notifier
from aghbus.daemon.state.presence import MAX_PEERS, PresenceTable
from aghbus.protocol.agh.bodies import PeerCard
from aghbus.protocol.agh.delivery.acks import Ack, encode_ack, encode_signed_ack, is_answer_of, may_answer, parse_ack
from aghbus.protocol.agh.envelope import parse
from aghbus.protocol.agh.errors import Malformed
from aghbus.protocol.agh.trust.keys import SigningKey
from aghbus.protocol.agh.trust.proof import EnvelopeSigner
from aghbus.protocol.base.rate_limit import SharedBucket, TokenBuckets


async def test_a_notification_wakes_all_waiters_and_is_not_missed() -> None:
    notifier = Notifier()
    waiters = [asyncio.create_task(notifier.wait()) for _ in range(3)]
    await asyncio.sleep(0)  # let them begin to wait
    notifier.notify(7)
    assert await asyncio.gather(*waiters) == [True, True, True]
    assert (notifier.seq, notifier.count) == (7, 1)
    notifier.notify(3)
    assert notifier.seq == 7
    assert await notifier.wait(0.01) is False
    notifier.close()
    assert await notifier.wait() is True


async def test_a_waiter_for_several_notifiers_misses_no_notification() -> None:
    notifiers = [Notifier(), Notifier()]
    rings = [notifier.next() for notifier in notifiers]
    notifiers[1].notify()  # before the loop has had a turn
    assert [ring.done() for ring in rings] == [False, True]
    rings[0].cancel()
    notifiers[0].notify()  # nobody waits any more
    notifiers[0].close()
    assert notifiers[0].next().done()


@given(st.lists(st.floats(0, 10), max_size=60), st.integers(1, 5))
def test_a_bucket_never_gives_more_than_its_capacity_and_its_refill(steps: list[float], capacity: int) -> None:
    budget = TokenBuckets(capacity=capacity, per_second=0.5)
    now, given_out = 0.0, 0
    for step in steps:
        now += step
        given_out += budget.spend("peer", now)
        assert given_out <= capacity + now * 0.5 + 1e-9


def test_buckets_are_separate_and_bounded_in_number() -> None:
    budget = TokenBuckets(capacity=1, per_second=0.0, keys=2)
    assert budget.spend("a", 0)
    assert not budget.spend("a", 0)
    assert budget.spend("b", 0)
    assert budget.spend("c", 0)  # the least recently used, a, is forgotten
    assert not budget.spend("b", 0)
    assert budget.spend("a", 0)
    budget.drain("d", 0, 1)
    assert [budget.has(key, 0) for key in "abd"] == [False, True, False]


def test_buckets_refill_up_to_their_capacity_and_take_back_what_was_spent() -> None:
    peers, shared = TokenBuckets(4, 0.5), SharedBucket(4, 0.5)
    assert [peers.spend("a", 10) for _ in range(3)] == [shared.spend(1, 10) for _ in range(3)] == [True] * 3
    assert (shared.affords(1, 10), shared.affords(2, 10), shared.spend(2, 10)) == (True, False, False)
    for now, level in ((8, 1), (10, 1), (13, 2.5), (100, 4)):  # a clock that goes back takes nothing
        assert peers.level("a", now) == shared.level(now) == level
    peers.give_back("a", 12)
    shared.give_back(1, 12)
    assert peers.level("a", 12) == shared.level(12) == 3
    assert [peers.spend("a", now) for now in (8, 8, 8, 8, 11, 11, 100)] == [*[True] * 3, False, True, False, True]
    assert peers.level("a", 100) == 3
    assert not SharedBucket(0, 0).affords(1, 0)


def test_presence_expires_and_the_table_is_bounded() -> None:
    presence = PresenceTable(30, {}, set().__contains__)
    for number in range(MAX_PEERS + 5):
        presence.observe("ws", "c", PeerCard(peer_id=f"p{number}", capabilities=("x",)), "unverified", number)
    assert len(list(presence.all())) == MAX_PEERS
    assert presence.expected("ws", "c", "p0", 0) == frozenset()
    last = f"p{MAX_PEERS + 4}"
    assert presence.expected("ws", "c", last, 20_000) == {last}
    assert presence.expected("ws", "other", last, 20_000) == frozenset()
    assert presence.expected("ws", "c", last, 200_000) == frozenset()


def test_presence_notifies_of_new_peers_and_capability_changes_only() -> None:
    presence = PresenceTable(30, {}, set().__contains__)

    def rings(*capabilities: str, at: int) -> int:
        before = presence.changed.count
        presence.observe("ws", "c", PeerCard(peer_id="p", capabilities=capabilities), "unverified", at)
        return presence.changed.count - before

    assert rings("x", at=0) == 1
    assert rings("x", at=20_000) == 0
    assert rings("x", "y", at=25_000) == 1
    assert rings("x", "y", at=500_000) == 1  # it was away
    presence.leave("ws", "c", "p", "unverified")
    assert rings("x", "y", at=500_001) == 1  # it had said that it stops


def test_a_peer_is_silent_only_after_the_link_was_up_for_as_long_as_it_may_be_silent() -> None:
    presence = PresenceTable(30, {}, set().__contains__)
    for name in ("silent", "stopped", "present"):
        presence.observe("ws", "c", PeerCard(peer_id=name), "unverified", 0 if name == "silent" else 500_000)
    presence.leave("ws", "c", "stopped", "verified")

    def silent(second: float) -> list[str]:
        names = ("silent", "stopped", "present", "unknown")
        return [name for name in names if presence.is_silent("ws", "c", name, 500_000, second)]

    assert silent(1_000) == []
    presence.hears_since(1_000)
    assert silent(1_060) == []
    assert silent(1_061) == ["silent", "unknown"]
    presence.hears_since(float("inf"))
    assert silent(2_000) == []


def test_only_a_signed_last_greet_says_that_its_peer_left() -> None:
    presence = PresenceTable(30, {}, set().__contains__)
    peer = presence.observe("ws", "c", PeerCard(peer_id="p"), "verified", 0)
    presence.leave("ws", "c", "p", "unverified")
    assert (presence.has_left("ws", "c", "p"), presence.of(peer, 1)) == (False, "expired")
    presence.leave("ws", "c", "p", "verified")
    presence.leave("ws", "c", "p", "unverified")
    assert presence.has_left("ws", "c", "p")
    presence.touch("ws", "c", "p", 2)
    assert not presence.has_left("ws", "c", "p")


def test_problems_expire_unless_reported_again() -> None:
    counters = Counters()
    counters.problem("k", "it hurts", 0)
    assert counters.problems(299) == ["it hurts"]
    assert counters.problems(301) == []
    counters.problem("k", "it still hurts", 301)
    counters.solved("k")
    assert counters.problems(302) == []


@given(st.binary(max_size=200))
def test_any_bytes_on_a_reply_subject_are_parsed_or_skipped(raw: bytes) -> None:
    ack = parse_ack(raw)
    assert ack is None or encode_ack(ack)


def test_an_acknowledgement_round_trips_and_a_streams_is_skipped() -> None:
    ack = Ack("msg_1", "refused", "malformed")
    assert parse_ack(encode_ack(ack)) == ack
    assert parse_ack(b'{"stream":"AGH_NETWORK_V0","seq":12}') is None


def test_ack_of_a_handle_needs_its_key_and_the_named_recipient() -> None:
    signer, thief = (EnvelopeSigner(SigningKey(bytes([number]) * 32), "worker") for number in (1, 2))
    ack, worker = Ack("msg_1", "refused", "not_target"), signer.handle
    raw = encode_signed_ack(ack, sender=worker, to="ops", signer=signer)
    assert parse_ack(raw) == ack
    assert is_answer_of(raw, recipient=worker, sender="ops")
    assert not is_answer_of(raw, recipient=worker, sender="another")
    assert not is_answer_of(raw.replace(b"refused", b"committed"), recipient=worker, sender="ops")
    assert not is_answer_of(encode_ack(ack), recipient=worker, sender="ops")
    forged = encode_signed_ack(ack, sender=thief.handle, to="ops", signer=thief)
    assert not is_answer_of(forged, recipient=worker, sender="ops")
    assert not is_answer_of(forged.replace(thief.handle.encode(), worker.encode()), recipient=worker, sender="ops")
    assert is_answer_of(encode_ack(ack), recipient="plain", sender="ops")
    with pytest.raises(Malformed):  # whatever else it is, it is no envelope
        parse(raw, 0)


@pytest.mark.parametrize(
    ("reply", "allowed"),
    [
        (f"_INBOX.{'0af3' * 8}.ack.0f.2", True),
        (f"_INBOX.{'0af3' * 8}.ack", False),
        (f"_INBOX.{'0af3' * 8}.ack.", False),
        (f"_INBOX.{'0af3' * 8}.ack..2", False),
        (f"_INBOX.{'0af3' * 8}.ack.0f..2", False),
        (f"_INBOX.{'0af3' * 8}.ack.0f.", False),
        (f"_INBOX.{'0af3' * 8}.ack.*", False),
        (f"_INBOX.{'0af3' * 8}.ack.0f.>", False),
        (f"_INBOX.{'0af3' * 8}.ack.a b", False),
        (f"_INBOX.{'0af3' * 8}.ack.{'x' * 300}", False),
        (f"_INBOX.{'0af3' * 8}.pub.0f.2", False),
        (f"_INBOX.{'0af3' * 8}.deliver.name", False),
        ("_INBOX.aghbus_1.2", False),
        ("agh.network.v0.ws_local.default.broadcast", False),
        ("$SYS.REQ.SERVER.PING", False),
        ("$JS.API.STREAM.DELETE.AGH_NETWORK_V0", False),
        ("_INBOX.>", False),
        ("_INBOX.a b", False),
        ("_INBOX." + "x" * 300, False),
        ("", False),
    ],
)
def test_only_acknowledgement_inboxes_are_answered(reply: str, allowed: bool) -> None:
    assert may_answer(reply) is allowed


def test_an_unknown_failpoint_is_refused() -> None:
    with pytest.raises(ValueError, match="nonsense"):
        failpoints.arm({failpoints.VARIABLE: "nonsense:2"})
    failpoints.arm({})
    failpoints.failpoint("send.decided")  # unarmed: we are still here
