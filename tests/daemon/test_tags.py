"""Authentication tags: the lanes of messages in a contact's name before they are verified, and which messages get a tag."""

import json
from collections.abc import AsyncIterator, Mapping
from pathlib import Path
from typing import Any

import pytest

from aghbus.daemon.config.settings import LimitsSettings
from aghbus.daemon.nats.parser import plain_headers
from aghbus.daemon.state.keys import FormerKey
from aghbus.daemon.wiring import Replacements
from aghbus.protocol.agh.trust.keys import PublicKey, SigningKey
from aghbus.protocol.agh.trust.proof import EnvelopeSigner
from aghbus.protocol.agh.trust.tags import TAG, tag_of
from aghbus.protocol.base.rate_limit import TokenBuckets, VerificationBudget
from tests.support.publishing import Up
from tests.support.receiving import FRIEND, OTHER, Bench, Messages, Recorded, Still, bench, spent_by

KEY, FORMER = SigningKey(bytes(range(3, 35))), SigningKey(bytes(range(4, 36)))
OPS, BEFORE = EnvelopeSigner(KEY, "ops"), EnvelopeSigner(FORMER, "ops")
SMALL = LimitsSettings(processor_percent=1)  # a tenth of a second of processing: some hundred messages
EMPTY = VerificationBudget(TokenBuckets(0, 0), TokenBuckets(0, 0))


class Recording(Up):
    """A link that keeps the kinds of what is published, each with whether it has a tag."""

    def __init__(self) -> None:
        super().__init__()
        self.tagged: dict[str, bool] = {}

    def publish_nowait(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None = None, reply: str = "", **_options: Any
    ) -> bool:
        self.tagged[json.loads(data)["kind"]] = TAG in (headers or {})
        return True


def tag(document: dict[str, Any], sender: EnvelopeSigner = FRIEND, key: SigningKey = KEY) -> Mapping[str, str]:
    """The header that `sender` adds, as it comes from the broker."""
    pair = sender.pair_key(PublicKey(key.public), document["to"])
    assert pair is not None
    return headers(tag_of(pair, json.dumps(document).encode()))


def headers(value: str) -> Mapping[str, str]:
    found = plain_headers(f"NATS/1.0\r\n{TAG}: {value}\r\n\r\n".encode())
    assert found is not None
    return found


def signed(b: Bench, **fields: Any) -> dict[str, Any]:
    return b.signed(FRIEND, **{"to": OPS.handle, **fields})


def take_forged(b: Bench, count: int = 1000, name: str = FRIEND.handle, **fields: Any) -> None:
    """In a contact's name, half of them with a tag, too."""
    for number in range(count):
        forged = b.forged(name, **{"to": OPS.handle, **fields})
        b.take(forged, headers=headers("A" * 22) if number % 2 else None)


async def greeted(b: Bench) -> None:
    """FRIEND is a contact that sends tags."""
    await b.admit(FRIEND.handle)
    first = signed(b)
    b.take(first, headers=tag(first))
    await b.commit()


@pytest.fixture
async def b(tmp_path: Path) -> AsyncIterator[Bench]:
    async with bench(tmp_path, Still(), signer=OPS, limits=SMALL) as made:
        yield made


async def test_a_tagged_message_is_taken_after_a_flood_of_forgeries(b: Bench) -> None:
    await greeted(b)
    take_forged(b)
    assert b.counters["overload.processing"] > 0
    message = signed(b)
    b.take(message, headers=tag(message))
    await b.commit()
    assert await b.senders() == [FRIEND.handle] * 2


async def test_forgeries_beyond_their_tokens_are_not_parsed(tmp_path: Path) -> None:
    cost = spent_by(Messages().forged(FRIEND.handle, to=OPS.handle))
    budget = VerificationBudget(
        TokenBuckets(21 * cost, 0), TokenBuckets(99 * cost, 0)
    )  # of all names: not for FRIEND's
    async with bench(tmp_path, Still(), signer=OPS, replaced=Replacements(failed_signatures=budget)) as b:
        await greeted(b)
        copy, message = signed(b), signed(b)
        b.take(copy, headers=tag(copy))
        take_forged(b, 2_000)  # more than the queue takes of a sender
        await b.commit()
        assert b.counters["refused.verification_failed"] == 21
        parsed = b.counters["received.say"]
        take_forged(b, 2_000)
        assert b.counters["received.say"] == parsed
        b.take(copy, message, headers=None)
        b.take(copy, headers=tag(copy))
        b.take(message, headers=tag(message))
        await b.commit()
        assert b.counters["received.say"] == parsed + 2
        assert b.counters["ignored.duplicate"] == 1
        assert await b.senders() == [FRIEND.handle] * 3
        problems = " ".join(b.parts.limited.problems(b.parts.clock.monotonic()))
        assert "too many signatures failed recently" in problems and FRIEND.handle in problems


async def test_forgeries_wait_in_the_queue_as_far_as_their_tokens_go(tmp_path: Path) -> None:
    cost = spent_by(Messages().forged(FRIEND.handle, to=OPS.handle))
    budget = VerificationBudget(TokenBuckets(10 * cost, 0), TokenBuckets(cost, 0))
    async with bench(tmp_path, Still(), signer=OPS, replaced=Replacements(failed_signatures=budget)) as b:
        await greeted(b)
        for sender in (OTHER, FRIEND, OTHER):  # a token of all names, one of FRIEND's, and a rejection
            take_forged(b, 1, name=sender.handle)
            await b.commit()
        assert b.counters["overload.signatures"] == 1
        take_forged(b, 100)
        assert b.parts.queue.depth == 10


async def test_forged_broadcasts_leave_the_last_quarter_to_tagged_messages(b: Bench) -> None:
    await greeted(b)
    take_forged(b, to=None)
    message = signed(b)
    b.take(message, headers=tag(message))
    await b.commit()
    assert await b.senders() == [FRIEND.handle] * 2


async def test_an_untagged_message_of_a_sender_of_tags_is_in_the_lane_of_others(b: Bench) -> None:
    await greeted(b)
    await b.admit(OTHER.handle)
    while not b.counters["overload.processing"]:
        b.take(b.say("unknown"))
    b.take(signed(b), b.signed(OTHER, to=OPS.handle))  # OTHER has never sent a tag
    await b.commit()
    assert [sender for sender in await b.senders() if sender != "unknown"] == [FRIEND.handle, OTHER.handle]


async def test_a_rejected_message_counts_for_the_lane_that_it_was_in(b: Bench) -> None:
    await greeted(b)
    b.change_settings(limits=LimitsSettings(messages_per_minute=1))
    for document in (signed(b), signed(b)):
        b.take(document, headers=tag(document))
        await b.commit()
    b.take(signed(b))
    assert b.counters.rejected == {("sender", "contact"): 1, ("sender", "other"): 1}
    (problem,) = b.parts.limited.problems(b.parts.clock.monotonic())
    assert "1 of contacts, 1 of others" in problem


async def test_broadcasts_of_a_sender_of_tags_are_not_left_to_others(b: Bench) -> None:
    await greeted(b)
    while not b.counters["overload.processing"]:
        b.take(b.say("unknown"))
    b.take(signed(b, to=None))
    await b.commit()
    assert (await b.senders()).count(FRIEND.handle) == 2


async def test_a_first_tagged_message_needs_no_tokens_for_failures(tmp_path: Path) -> None:
    """As after a restart in a flood: its public key is in its proof."""
    none = Replacements(failed_signatures=EMPTY)
    async with bench(tmp_path, Still(), signer=OPS, limits=SMALL, replaced=none) as b:
        await b.admit(FRIEND.handle)
        while not b.counters["overload.processing"]:
            b.take(b.say("unknown"))
        message = signed(b)
        b.take(signed(b))
        take_forged(b, 10)
        b.take(message, headers=tag(message))
        await b.commit()
        assert [sender for sender in await b.senders() if sender != "unknown"] == [FRIEND.handle]


@pytest.mark.parametrize("value", ["", "A" * 22, "no tag at all", "A" * 3000])
async def test_a_wrong_tag_refuses_nothing(b: Bench, value: str) -> None:
    await greeted(b)
    b.take(signed(b), headers=headers(value))
    await b.commit()
    assert await b.senders() == [FRIEND.handle] * 2


async def test_an_unknown_peer_gains_nothing_by_tags(tmp_path: Path) -> None:
    recorded = Recorded()
    async with bench(tmp_path, signer=OPS, replaced=Replacements(verifier=recorded, failed_signatures=EMPTY)) as b:
        message = signed(b)
        b.take(message, headers=tag(message))
        await b.commit()
        assert (recorded.asked, b.counters["overload.signatures"]) == ([], 1)


async def test_a_contact_that_signs_wrongly_loses_its_tags(tmp_path: Path) -> None:
    recorded = Recorded()
    async with bench(tmp_path, signer=OPS, replaced=Replacements(verifier=recorded, failed_signatures=EMPTY)) as b:
        await b.admit(FRIEND.handle)
        for _ in range(5):
            wrong = b.forged(FRIEND.handle, to=OPS.handle)
            b.take(wrong, headers=tag(wrong))
            await b.commit()
        assert len(recorded.asked) == 1
        assert b.counters["overload.signatures"] == 4


async def test_a_copy_with_its_tag_is_in_the_lane_of_others(b: Bench) -> None:
    await b.admit(FRIEND.handle)
    message, later = signed(b), signed(b)
    for _ in range(1000):
        b.take(message, headers=tag(message))
        await b.commit()
    b.take(later, headers=tag(later))
    await b.commit()
    assert await b.senders() == [FRIEND.handle] * 2


async def test_a_former_identity_has_a_key_of_its_own(tmp_path: Path) -> None:
    former = [FormerKey(peer_id=BEFORE.handle, signer=BEFORE)]
    budget = Replacements(failed_signatures=EMPTY)
    async with bench(tmp_path, signer=OPS, former=former, replaced=budget) as b:
        await b.admit(FRIEND.handle)
        for own, key in ((OPS, KEY), (BEFORE, FORMER)):
            message = b.signed(FRIEND, to=own.handle)
            b.take(message, headers=tag(message, key=key))
        await b.commit()
        assert await b.senders() == [FRIEND.handle] * 2


async def test_only_peers_of_this_project_with_a_known_key_get_tags(b: Bench) -> None:
    make = b.parts.tags.make
    assert make(OPS.handle, FRIEND.handle, b"raw") == ""
    b.parts.presence.note_acknowledging(FRIEND.handle, True)
    assert make(OPS.handle, FRIEND.handle, b"raw") == ""  # its key was not seen yet
    await b.offer(signed(b))
    key = OPS.pair_key(PublicKey(SigningKey(bytes(range(32))).public), FRIEND.handle)
    assert key is not None
    assert make(OPS.handle, FRIEND.handle, b"raw") == tag_of(key, b"raw")
    assert make(OPS.handle, None, b"raw") == make("ops", FRIEND.handle, b"raw") == ""
    b.parts.presence.note_acknowledging(FRIEND.handle, False)
    assert make(OPS.handle, FRIEND.handle, b"raw") == ""


async def test_a_directed_answer_to_a_whois_has_a_tag_and_a_greet_has_none(tmp_path: Path) -> None:
    link = Recording()
    async with bench(tmp_path, signer=OPS, link=link) as b:
        b.parts.presence.note_acknowledging(FRIEND.handle, True)
        await b.offer(signed(b))
        question = b.discovery(FRIEND.handle, "whois", {"type": "request", "query": ""}, to=OPS.handle)
        await b.offer(FRIEND(question))
        await b.parts.greeter.greet()
        assert link.tagged == {"whois": True, "greet": False}
