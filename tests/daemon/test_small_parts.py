"""Announcer, budgets, roster, counters: the small values that the daemon is made of."""

import asyncio

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.daemon.base import failpoints
from aghbus.daemon.base.metrics import Counters
from aghbus.daemon.base.notifier import Announcer
from aghbus.daemon.state.presence import MAX_PEERS, Roster
from aghbus.protocol.acks import Ack, encode_ack, encode_signed_ack, is_answer_of, may_answer, parse_ack
from aghbus.protocol.bodies import PeerCard
from aghbus.protocol.envelope import parse
from aghbus.protocol.errors import Malformed
from aghbus.protocol.rate_limit import Budgets
from aghbus.protocol.trust.keys import SigningKey
from aghbus.protocol.trust.proof import EnvelopeSigner


async def test_a_ring_wakes_everybody_who_waits_and_is_not_missed() -> None:
    bell = Announcer(0)
    waiters = [asyncio.create_task(bell.wait()) for _ in range(3)]
    await asyncio.sleep(0)  # let them begin to wait
    bell.ring(7)
    assert await asyncio.gather(*waiters) == [True, True, True]
    assert (bell.seq, bell.rings) == (7, 1)
    bell.ring(3)
    assert bell.seq == 7
    assert await bell.wait(0.01) is False
    bell.close()
    assert await bell.wait() is True


async def test_who_waits_for_one_of_several_bells_misses_none_from_the_moment_he_asks() -> None:
    bells = [Announcer(0), Announcer(0)]
    rings = [bell.next_ring() for bell in bells]
    bells[1].ring()  # before the loop has had a turn
    assert [ring.done() for ring in rings] == [False, True]
    rings[0].cancel()
    bells[0].ring()  # nobody waits any more
    bells[0].close()
    assert bells[0].next_ring().done()


@given(st.lists(st.floats(0, 10), max_size=60), st.integers(1, 5))
def test_a_budget_never_gives_more_than_its_capacity_and_its_refill(steps: list[float], capacity: int) -> None:
    budget = Budgets(capacity=capacity, per_second=0.5)
    now, given_out = 0.0, 0
    for step in steps:
        now += step
        given_out += budget.spend("peer", now)
        assert given_out <= capacity + now * 0.5 + 1e-9


def test_budgets_are_apart_and_bounded_in_number() -> None:
    budget = Budgets(capacity=1, per_second=0.0, keys=2)
    assert budget.spend("a", 0)
    assert not budget.spend("a", 0)
    assert budget.spend("b", 0)
    assert budget.spend("c", 0)  # the least recently used, a, is forgotten
    assert not budget.spend("b", 0)
    assert budget.spend("a", 0)


def test_presence_fades_and_the_roster_is_bounded() -> None:
    roster = Roster(interval=30)
    for number in range(MAX_PEERS + 5):
        roster.heard("ws", "c", PeerCard(peer_id=f"p{number}", capabilities=("x",)), "unverified", number)
    assert len(list(roster.all())) == MAX_PEERS
    assert roster.expected("ws", "c", "p0", 0) == frozenset()
    last = f"p{MAX_PEERS + 4}"
    assert roster.expected("ws", "c", last, 20_000) == {last}
    assert roster.expected("ws", "other", last, 20_000) == frozenset()
    assert roster.expected("ws", "c", last, 200_000) == frozenset()


def test_the_rosters_bell_rings_for_who_appears_and_for_what_they_claim_but_not_for_each_greet() -> None:
    roster = Roster(interval=30)

    def rings(*capabilities: str, at: int) -> int:
        before = roster.bell.rings
        roster.heard("ws", "c", PeerCard(peer_id="p", capabilities=capabilities), "unverified", at)
        return roster.bell.rings - before

    assert rings("x", at=0) == 1
    assert rings("x", at=20_000) == 0
    assert rings("x", "y", at=25_000) == 1
    assert rings("x", "y", at=500_000) == 1  # it was away


def test_problems_fade_unless_noticed_again() -> None:
    counters = Counters()
    counters.problem("k", "it hurts", 0)
    assert counters.problems(299) == ["it hurts"]
    assert counters.problems(301) == []
    counters.problem("k", "it still hurts", 301)
    counters.solved("k")
    assert counters.problems(302) == []


@given(st.binary(max_size=200))
def test_no_bytes_on_a_reply_subject_do_harm(raw: bytes) -> None:
    ack = parse_ack(raw)
    assert ack is None or encode_ack(ack)


def test_an_acknowledgement_survives_its_way_and_a_streams_is_skipped() -> None:
    ack = Ack("msg_1", "refused", "malformed")
    assert parse_ack(encode_ack(ack)) == ack
    assert parse_ack(b'{"stream":"AGH_NETWORK_V0","seq":12}') is None


def test_only_the_key_of_a_handle_answers_for_it_and_only_to_whom_it_says() -> None:
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
def test_only_inboxes_for_acknowledgements_are_answered(reply: str, allowed: bool) -> None:
    assert may_answer(reply) is allowed


def test_an_unknown_failpoint_is_refused() -> None:
    with pytest.raises(ValueError, match="nonsense"):
        failpoints.arm({failpoints.VARIABLE: "nonsense:2"})
    failpoints.arm({})
    failpoints.failpoint("send.decided")  # unarmed: we are still here
