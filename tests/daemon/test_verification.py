"""Signatures checked ahead of their turn: nothing is believed that would not have been, in no other order, at no other cost."""

import asyncio
import json
import threading
from pathlib import Path
from typing import Any

import pytest

from aghbus.daemon.nats.link import InboundMessage
from aghbus.daemon.services.trust_rules import TrustRuleService
from aghbus.daemon.state.signature_pool import FEW, Verification
from aghbus.protocol.api.trust import TrustChangeRequest
from aghbus.protocol.envelope import Envelope, parse
from aghbus.protocol.errors import VerificationFailed
from aghbus.protocol.identifiers import subject_for
from aghbus.protocol.rate_limit import Budgets, Doubts
from aghbus.protocol.trust.keys import SigningKey
from aghbus.protocol.trust.proof import EnvelopeSigner, verify_envelope
from tests.support.intake_bench import FRIEND, OTHER, Bench, Settled, Still, bench, spent_by

MANY = 3 * FEW
ROTATED = EnvelopeSigner(SigningKey(bytes(range(2, 34))), "friend")


def take(b: Bench, *documents: dict[str, Any], settlement: Settled | None = None) -> None:
    """All of them arrive before the first is worked off."""
    for document in documents:
        subject = subject_for("ws_local", "default", document["to"])
        b.intake.offer(InboundMessage(subject, json.dumps(document).encode(), "", None, settlement))


async def work_off(b: Bench) -> None:
    while b.intake.depth:
        await b.intake._work_queue_off()


async def texts(b: Bench) -> list[str]:
    rows = await b.store.reader.execute_fetchall("SELECT raw FROM envelopes WHERE direction = 'in' ORDER BY seq")
    return [json.loads(raw)["body"]["text"] for (raw,) in rows]


class Counted:
    """The real check, which notes what it was asked and in which thread."""

    def __init__(self) -> None:
        self.asked: list[str] = []
        self.threads: set[int] = set()

    def __call__(self, envelope: Envelope) -> None:
        self.asked.append(envelope.id)
        self.threads.add(threading.get_ident())
        verify_envelope(envelope)


def counted(b: Bench) -> Counted:
    check = Counted()
    b.core.verification._check = check
    return check


async def test_what_waits_together_is_checked_once_each_off_the_loop_and_kept_in_order(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        check = counted(b)
        signers = [FRIEND, OTHER, None]
        sent = []
        for number in range(600):  # more than two batches
            signer, body = signers[number % 3], {"text": str(number)}
            sent.append(b.say("plain", body=body) if signer is None else b.signed(signer, body=body))
        take(b, *sent)
        await work_off(b)
        assert await texts(b) == [str(number) for number in range(600)]
        assert sorted(check.asked) == sorted(one["id"] for one in sent if one["from"] != "plain")
        assert threading.get_ident() not in check.threads
        assert b.core.verification.known == 0


async def test_one_or_two_are_checked_on_the_spot(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        check = counted(b)
        take(b, *(b.signed(FRIEND) for _ in range(FEW)))
        await work_off(b)
        assert check.threads == {threading.get_ident()}
        assert len(await texts(b)) == FEW


@pytest.mark.parametrize("wrong", [0, 1, MANY - 1])
async def test_a_wrong_signature_among_right_ones_is_the_only_one_refused(tmp_path: Path, wrong: int) -> None:
    async with bench(tmp_path) as b:
        sent = [b.signed(FRIEND, body={"text": str(number)}) for number in range(MANY)]
        sent[wrong]["body"]["text"] = "changed"
        take(b, *sent)
        await work_off(b)
        assert await texts(b) == [str(number) for number in range(MANY) if number != wrong]
        ((message, detail),) = await b.store.reader.execute_fetchall("SELECT message_id, detail FROM quarantine")
        assert message == sent[wrong]["id"]
        assert detail == "proof.sig: does not belong to this envelope and key"


async def test_the_same_bytes_many_times_over_are_checked_once_and_taken_once(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        check = counted(b)
        copies = [b.signed(FRIEND, body={"text": "again"})] * MANY
        take(b, *copies, *(b.signed(FRIEND, body={"text": str(number)}) for number in range(MANY)))
        await work_off(b)
        assert await texts(b) == ["again", *map(str, range(MANY))]
        assert len(check.asked) == MANY + 1


async def test_a_key_rotated_in_the_middle_is_another_peer_from_there_on(tmp_path: Path) -> None:
    """Also with the old handle over the new key, which no verdict on either key's envelopes may let in."""
    async with bench(tmp_path) as b:
        before, after = ([b.signed(signer) for _ in range(MANY)] for signer in (FRIEND, ROTATED))
        stolen = b.signed(ROTATED)
        stolen["from"] = FRIEND.handle
        take(b, *before, stolen, *after)
        await work_off(b)
        assert await b.senders() == [FRIEND.handle] * MANY + [ROTATED.handle] * MANY
        assert b.core.counters["refused.verification_failed"] == 1


async def test_a_peer_denied_while_its_messages_wait_is_denied(tmp_path: Path) -> None:
    """What is looked up is the signature; whom we listen to is decided in the message's turn."""
    async with bench(tmp_path) as b:
        take(b, *(b.signed(FRIEND) for _ in range(MANY)))
        verification = b.core.verification
        waiting = [arrived.envelope for arrived in b.intake._queue if arrived.envelope is not None]
        verification.begin(b.core.flood.checkable(waiting))
        await verification.ready(waiting)
        await TrustRuleService(b.core).change("deny", TrustChangeRequest(who=FRIEND.key_id))
        await work_off(b)
        assert await texts(b) == []
        assert b.core.counters["refused.verification_failed"] == MANY


async def test_a_flood_of_wrong_signatures_is_not_checked_beyond_its_budget(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        check = counted(b)
        friend, stranger = b.signed(FRIEND), FRIEND.handle.replace("friend", "stranger")
        spent = spent_by(b.forged(stranger))
        b.core.flood._doubts = Doubts(Budgets(10 * spent, 0), Budgets(20 * spent, 0))
        take(b, friend, *(b.forged(stranger) for _ in range(600)))
        await work_off(b)
        assert len(check.asked) == 21
        assert b.core.counters["refused.verification_failed"] == 20
        assert b.core.counters["overload.doubt"] == 580
        take(b, *(b.forged(FRIEND.handle) for _ in range(100)), *(b.signed(FRIEND) for _ in range(100)))
        await work_off(b)
        assert len(check.asked) == 21 + 10  # a proved name spends its own, and the others' is spent
        assert b.core.counters["overload.doubt"] == 580 + 190


async def test_no_more_large_ones_are_checked_ahead_than_the_budget_would_pay_if_all_were_wrong(tmp_path: Path) -> None:
    async with bench(tmp_path, Still()) as b:
        check = counted(b)
        large = [b.forged(FRIEND.handle, ext={"filler": "x" * 1_000_000}) for _ in range(MANY)]
        small = [b.forged(FRIEND.handle) for _ in range(MANY)]
        take(b, *large, *small)
        await work_off(b)
        assert sorted(check.asked) == sorted([large[0]["id"], *(one["id"] for one in small)])
        assert b.core.counters["overload.doubt"] == MANY - 1


async def test_a_proved_peer_is_taken_whole_while_others_flood(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.core.flood._doubts = Doubts(Budgets(10, 0), Budgets(20, 0))
        await b.offer(b.signed(FRIEND))
        stranger = FRIEND.handle.replace("friend", "stranger")
        for _ in range(100):
            take(b, b.forged(stranger), b.signed(FRIEND))
        await work_off(b)
        assert await b.senders() == [FRIEND.handle] * 101


async def test_a_defect_of_the_check_hits_its_message_alone(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        sent = [b.signed(FRIEND, body={"text": str(number)}) for number in range(MANY)]

        def check(envelope: Envelope) -> None:
            if envelope.id == sent[5]["id"]:
                raise RuntimeError("a defect")
            verify_envelope(envelope)

        b.core.verification._check = check
        take(b, *sent)
        await work_off(b)
        assert await texts(b) == [str(number) for number in range(MANY) if number != 5]
        assert b.core.counters["internal_errors"] == 1


async def test_a_daemon_that_stops_while_its_threads_work_loses_nothing(tmp_path: Path) -> None:
    """What was not committed was not settled either: the stream brings it again, to the next life of the daemon."""
    document, settled = {}, Settled()
    async with bench(tmp_path) as b:
        entered, go_on = threading.Event(), threading.Event()

        def check(envelope: Envelope) -> None:
            entered.set()
            assert go_on.wait(30)
            verify_envelope(envelope)

        b.core.verification._check = check
        sent = [b.signed(FRIEND, body={"text": str(number)}) for number in range(MANY)]
        document = sent[0]
        take(b, *sent, settlement=settled)
        running = asyncio.create_task(b.intake.run())
        await asyncio.to_thread(entered.wait, 30)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        go_on.set()
        b.core.verification.close()
        assert settled.said == ""
        assert await texts(b) == []
    async with bench(tmp_path) as b:
        take(b, document, *sent, settlement=settled)
        await work_off(b)
        assert settled.said == "ack"
        assert await texts(b) == [str(number) for number in range(MANY)]


async def test_a_daemon_that_drains_commits_what_its_threads_still_check(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        take(b, *(b.signed(FRIEND, body={"text": str(number)}) for number in range(600)))
        running = asyncio.create_task(b.intake.run())
        assert await b.intake.drained(30)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        b.core.verification.close()
        assert len(await texts(b)) == 600


async def test_closed_it_checks_on_the_spot(tmp_path: Path) -> None:
    verification = Verification(verify_envelope)
    verification.close()
    async with bench(tmp_path) as b:
        good, bad = (
            parse(json.dumps(one).encode(), b.core.clock.seconds())
            for one in (b.signed(FRIEND), b.forged(FRIEND.handle))
        )
    verification.verify(good)
    with pytest.raises(VerificationFailed, match=r"proof\.sig"):
        verification.verify(bad)
