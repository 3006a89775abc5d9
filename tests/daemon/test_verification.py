"""Signatures verified in advance change no decision, no order and no budget."""

import asyncio
import hashlib
import json
import threading
from pathlib import Path

import pytest

from aghbus.daemon.base.logs import JsonFormatter
from aghbus.daemon.state.signature_pool import MIN_BATCH, SignaturePool
from aghbus.daemon.wiring import Replacements
from aghbus.protocol.agh.envelope import Envelope, parse
from aghbus.protocol.agh.errors import VerificationFailed
from aghbus.protocol.agh.trust.keys import SigningKey
from aghbus.protocol.agh.trust.proof import EnvelopeSigner, verify_envelope
from aghbus.protocol.api.trust import TrustChangeRequest
from aghbus.protocol.base.rate_limit import TokenBuckets, VerificationBudget
from tests.support.natsutil import wait_until
from tests.support.receiving import FRIEND, OTHER, Bench, Messages, Recorded, Settled, Still, bench, spent_by

MANY = 3 * MIN_BATCH
ROTATED = EnvelopeSigner(SigningKey(bytes(range(2, 34))), "friend")


async def texts(b: Bench) -> list[str]:
    rows = await b.store.reader.execute_fetchall("SELECT raw FROM envelopes WHERE direction = 'in' ORDER BY seq")
    return [json.loads(raw)["body"]["text"] for (raw,) in rows]


async def test_queued_messages_are_verified_once_in_threads_in_order(tmp_path: Path) -> None:
    recorded = Recorded()
    async with bench(tmp_path, replaced=Replacements(verifier=recorded)) as b:
        signers = [FRIEND, OTHER, None]
        sent = []
        for number in range(600):  # more than two batches
            signer, body = signers[number % 3], {"text": str(number)}
            sent.append(b.say("plain", body=body) if signer is None else b.signed(signer, body=body))
        b.take(*sent)
        await b.commit()
        assert await texts(b) == [str(number) for number in range(600)]
        assert sorted(recorded.asked) == sorted(one["id"] for one in sent if one["from"] != "plain")
        assert threading.get_ident() not in recorded.threads
        assert b.parts.signatures.pending == 0


async def test_a_few_messages_are_verified_on_the_event_loop(tmp_path: Path) -> None:
    recorded = Recorded()
    async with bench(tmp_path, replaced=Replacements(verifier=recorded)) as b:
        b.take(*(b.signed(FRIEND) for _ in range(MIN_BATCH - 1)))
        await b.commit()
        assert recorded.threads == {threading.get_ident()}
        assert len(await texts(b)) == MIN_BATCH - 1


async def test_a_contact_waits_for_no_signature_of_others(tmp_path: Path) -> None:
    """Those of the batch after its own are verified in threads already."""
    entered, go_on = threading.Event(), threading.Event()

    def check(envelope: Envelope) -> None:
        if envelope.sender == OTHER.handle:
            entered.set()
            assert go_on.wait(60)
        verify_envelope(envelope)

    async with bench(tmp_path, replaced=Replacements(verifier=check)) as b:
        await b.admit(FRIEND.handle)
        b.take(b.say("plain"), *(b.signed(OTHER) for _ in range(MANY)), b.signed(FRIEND))
        running = asyncio.create_task(b.committer.run())
        await asyncio.to_thread(entered.wait, 60)
        await wait_until(lambda: b.counters.received["say", "accepted"] == 2, 60, "the contact's message")
        assert await b.senders() == ["plain", FRIEND.handle]
        go_on.set()
        assert await b.committer.drained(60)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        assert len(await b.senders()) == MANY + 2


async def test_verification_in_threads_counts_as_processor_time(tmp_path: Path) -> None:
    def check(envelope: Envelope) -> None:
        hashlib.pbkdf2_hmac("sha256", b"", b"", 1_000)  # with the rest more than a message is estimated to take
        verify_envelope(envelope)

    async with bench(tmp_path, replaced=Replacements(verifier=check)) as b:
        sent = [b.signed(OTHER) for _ in range(2_400)]
        for part in (sent[:1_200], sent[1_200:]):
            b.take(*part)
            await b.commit()
        assert b.parts.limits.processing.scale == 1.0


@pytest.mark.parametrize("wrong", [0, 1, MANY - 1])
async def test_a_wrong_signature_among_right_ones_is_the_only_one_refused(tmp_path: Path, wrong: int) -> None:
    async with bench(tmp_path) as b:
        sent = [b.signed(FRIEND, body={"text": str(number)}) for number in range(MANY)]
        sent[wrong]["body"]["text"] = "changed"
        b.take(*sent)
        await b.commit()
        assert await texts(b) == [str(number) for number in range(MANY) if number != wrong]
        ((message, detail),) = await b.store.reader.execute_fetchall("SELECT message_id, detail FROM quarantine")
        assert message == sent[wrong]["id"]
        assert detail == "proof.sig: does not belong to this envelope and key"


async def test_copies_of_the_same_bytes_are_verified_once_and_stored_once(tmp_path: Path) -> None:
    recorded = Recorded()
    async with bench(tmp_path, replaced=Replacements(verifier=recorded)) as b:
        copies = [b.signed(FRIEND, body={"text": "again"})] * MANY
        b.take(*copies, *(b.signed(FRIEND, body={"text": str(number)}) for number in range(MANY)))
        await b.commit()
        assert await texts(b) == ["again", *map(str, range(MANY))]
        assert len(recorded.asked) == MANY + 1


async def test_a_rotated_key_is_another_peer(tmp_path: Path) -> None:
    """An envelope with the old handle and the new key is refused, whatever was verified of either key."""
    async with bench(tmp_path) as b:
        before, after = ([b.signed(signer) for _ in range(MANY)] for signer in (FRIEND, ROTATED))
        stolen = b.signed(ROTATED)
        stolen["from"] = FRIEND.handle
        b.take(*before, stolen, *after)
        await b.commit()
        assert await b.senders() == [FRIEND.handle] * MANY + [ROTATED.handle] * MANY
        assert b.counters["refused.verification_failed"] == 1


async def test_a_peer_denied_while_its_messages_are_queued_is_refused(tmp_path: Path) -> None:
    """Only the signature is verified in advance; the trust policy is applied in the message's turn."""
    async with bench(tmp_path) as b:
        documents = [b.signed(FRIEND) for _ in range(MANY)]
        b.take(*documents)
        queued = [parse(json.dumps(one).encode(), b.parts.clock.seconds()) for one in documents]
        b.parts.signatures.begin(b.parts.limits.verifiable(queued))
        await b.parts.signatures.ready(queued)
        await b.parts.trust_rules.change("deny", TrustChangeRequest(who=FRIEND.key_id))
        await b.commit()
        assert await texts(b) == []
        assert b.counters["refused.verification_failed"] == MANY


async def test_a_flood_of_wrong_signatures_is_not_verified_beyond_its_budget(tmp_path: Path) -> None:
    recorded, unknown = Recorded(), FRIEND.handle.replace("friend", "unknown")
    cost = spent_by(Messages().forged(unknown))
    budget = VerificationBudget(TokenBuckets(10 * cost, 0), TokenBuckets(20 * cost, 0))
    async with bench(tmp_path, replaced=Replacements(verifier=recorded, failed_signatures=budget)) as b:
        b.take(b.signed(FRIEND), *(b.forged(unknown) for _ in range(600)))
        await b.commit()
        assert len(recorded.asked) == 21
        assert b.counters["refused.verification_failed"] == 20
        assert b.counters["overload.signatures"] == 580
        b.take(*(b.forged(FRIEND.handle) for _ in range(100)), *(b.signed(FRIEND) for _ in range(100)))
        await b.commit()
        assert len(recorded.asked) == 21 + 10  # a verified name spends its own bucket; the shared one is empty
        assert b.counters["overload.signatures"] == 580 + 190


async def test_large_messages_are_preverified_within_the_failure_budget(
    tmp_path: Path,
) -> None:
    recorded = Recorded()
    async with bench(tmp_path, Still(), replaced=Replacements(verifier=recorded)) as b:
        large = [b.forged(FRIEND.handle, ext={"filler": "x" * 1_000_000}) for _ in range(MANY)]
        small = [b.forged(FRIEND.handle) for _ in range(MANY)]
        b.take(*large, *small)
        await b.commit()
        assert sorted(recorded.asked) == sorted([large[0]["id"], *(one["id"] for one in small)])
        assert b.counters["overload.signatures"] == MANY - 1


async def test_all_messages_of_a_verified_peer_are_accepted_during_a_flood(tmp_path: Path) -> None:
    budget = VerificationBudget(TokenBuckets(10, 0), TokenBuckets(20, 0))
    async with bench(tmp_path, replaced=Replacements(failed_signatures=budget)) as b:
        await b.offer(b.signed(FRIEND))
        unknown = FRIEND.handle.replace("friend", "unknown")
        for _ in range(100):
            b.take(b.forged(unknown), b.signed(FRIEND))
        await b.commit()
        assert await b.senders() == [FRIEND.handle] * 101


async def test_a_defect_of_the_verifier_affects_its_message_alone(
    tmp_path: Path, caplog: pytest.LogCaptureFixture
) -> None:
    def check(envelope: Envelope) -> None:
        if envelope.body.text == "5":  # type: ignore[union-attr] # all are says
            raise RuntimeError("a defect")
        verify_envelope(envelope)

    async with bench(tmp_path, replaced=Replacements(verifier=check)) as b:
        ext = {"traceparent": "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"}
        sent = [b.signed(FRIEND, body={"text": str(number)}, ext=ext) for number in range(MANY)]
        b.take(*sent)
        await b.commit()
        assert await texts(b) == [str(number) for number in range(MANY) if number != 5]
        assert b.counters["internal_errors"] == 1
        (line,) = (JsonFormatter().format(one) for one in caplog.records if "not be processed" in one.getMessage())
        assert json.loads(line)["trace_id"] == "0af7651916cd43dd8448eb211c80319c"


@pytest.mark.parametrize("others", [0, MANY])
async def test_message_that_triggers_a_bug_is_quarantined_and_acked(tmp_path: Path, others: int) -> None:
    def check(_envelope: Envelope) -> None:
        raise RuntimeError("a defect")

    async with bench(tmp_path, replaced=Replacements(verifier=check)) as b:
        settled = Settled()
        b.take(*(b.say("plain") for _ in range(others)))
        b.take(b.signed(FRIEND), settlement=settled)
        await b.commit()
        assert settled.said == "ack"
        assert await b.count("SELECT count(*) FROM quarantine WHERE reason = 'internal'") == 1
        assert await b.senders() == ["plain"] * others


async def test_a_daemon_that_stops_while_its_threads_work_loses_nothing(tmp_path: Path) -> None:
    """Messages that are not committed are not settled: the stream delivers them again after the restart."""
    document, settled = {}, Settled()
    entered, go_on = threading.Event(), threading.Event()

    def check(envelope: Envelope) -> None:
        entered.set()
        assert go_on.wait(30)
        verify_envelope(envelope)

    async with bench(tmp_path, replaced=Replacements(verifier=check)) as b:
        sent = [b.signed(FRIEND, body={"text": str(number)}) for number in range(MANY)]
        document = sent[0]
        b.take(*sent, settlement=settled)
        running = asyncio.create_task(b.committer.run())
        await asyncio.to_thread(entered.wait, 30)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        go_on.set()
        b.parts.signatures.close()
        assert settled.said == ""
        assert await texts(b) == []
    async with bench(tmp_path) as b:
        b.take(document, *sent, settlement=settled)
        await b.commit()
        assert settled.said == "ack"
        assert await texts(b) == [str(number) for number in range(MANY)]


async def test_a_draining_daemon_commits_messages_that_its_threads_still_verify(tmp_path: Path) -> None:
    async with bench(tmp_path) as b:
        b.take(*(b.signed(FRIEND, body={"text": str(number)}) for number in range(600)))
        running = asyncio.create_task(b.committer.run())
        assert await b.committer.drained(30)
        running.cancel()
        await asyncio.gather(running, return_exceptions=True)
        b.parts.signatures.close()
        assert len(await texts(b)) == 600


async def test_a_closed_pool_verifies_on_the_event_loop(tmp_path: Path) -> None:
    pool = SignaturePool(verify_envelope)
    pool.close()
    async with bench(tmp_path) as b:
        good, bad = (
            parse(json.dumps(one).encode(), b.parts.clock.seconds())
            for one in (b.signed(FRIEND), b.forged(FRIEND.handle))
        )
    pool.verify(good)
    with pytest.raises(VerificationFailed, match=r"proof\.sig"):
        pool.verify(bad)
