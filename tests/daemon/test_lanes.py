"""The lane of a message: which peers are contacts, and that neither a key nor time makes one."""

import asyncio
from pathlib import Path
from typing import Any

import pytest

from aghbus.daemon.state.lanes import PARTS, Lane, allowance
from aghbus.host.key_files import generate_key
from aghbus.protocol.agh.bodies import PeerCard
from aghbus.protocol.api.inbox import InboxNextRequest
from aghbus.protocol.api.queries import InboxQuery
from aghbus.protocol.api.trust import TrustChangeRequest
from aghbus.store.engine.database import Store
from aghbus.store.engine.memory.trust import MAX_RULES, Origin, Rule
from tests.support.natsutil import wait_until
from tests.support.receiving import FRIEND, OTHER, Stepped, bench
from tests.support.wiring import parts_of

KEY = generate_key()
HANDLE = f"peer@{KEY.fingerprint}"


@pytest.mark.parametrize(("lane", "used"), [("other", 50), ("plain", 75), ("contact", 100)])
def test_a_resource_is_refused_at_the_part_of_the_lane(lane: Lane, used: int) -> None:
    assert allowance(100, lane) == used


def test_parts_decrease_from_contacts_to_plain_contacts_to_others() -> None:
    assert PARTS["contact"] == 1 > PARTS["plain"] > PARTS["other"] > 0


async def test_time_makes_no_contact(store: Store) -> None:
    clock = Stepped()
    parts = parts_of(store, clock)
    for _ in range(2):
        parts.presence.observe("local", "default", PeerCard(peer_id="peer"), "unverified", clock.millis())
        clock.advance(86_400)
    assert parts.lanes.of("peer", "unverified") == "other"


async def test_a_valid_signature_makes_no_contact(store: Store) -> None:
    lanes = parts_of(store).lanes
    assert lanes.of(HANDLE, "verified") == "other"
    await store.write(lambda tx: tx.memory.trust.put_addressed(tx, HANDLE, 1))
    assert lanes.of(HANDLE, "verified") == "contact"
    assert lanes.of(HANDLE, None) == "other"


@pytest.mark.parametrize(
    "trust",
    [
        {"allow": (KEY.key_id,)},
        {"pins": (f"peer={KEY.key_id}",)},
        {"may_open_work": (f"default={HANDLE}",)},
        {"may_talk": (f"default={KEY.key_id}",)},
    ],
)
async def test_a_handle_that_a_rule_names_is_a_contact(store: Store, trust: dict[str, Any]) -> None:
    lanes = parts_of(store, **trust).lanes
    assert lanes.of(HANDLE, "verified") == "contact"
    assert lanes.of(f"peer@{generate_key().fingerprint}", "verified") == "other"


@pytest.mark.parametrize("who", ["*", "*@*"])
async def test_rules_for_everybody_make_no_contact(store: Store, who: str) -> None:
    lanes = parts_of(store, may_talk=(f"default={who}",)).lanes
    assert lanes.of("peer", "unverified") == "other"
    assert lanes.of(HANDLE, "verified") == "other"


@pytest.mark.parametrize(("origin", "lane"), [("operator", "contact"), ("first_use", "other")])
async def test_pins_of_the_user_count_and_those_of_first_use_do_not(store: Store, origin: Origin, lane: Lane) -> None:
    rule = Rule("pin", "peer", KEY.key_id, origin, 1)
    await store.write(lambda tx: tx.memory.trust.put(tx, rule))
    assert parts_of(store).lanes.of(HANDLE, "verified") == lane


@pytest.mark.parametrize("who", [HANDLE, f"other@{KEY.fingerprint}", KEY.key_id], ids=["handle", "other", "key_id"])
async def test_an_admitted_key_is_a_contact_under_every_nickname(store: Store, who: str) -> None:
    parts = parts_of(store)
    await parts.trust_rules.change("admit", TrustChangeRequest(who=who))
    assert parts.lanes.of(HANDLE, "verified") == "contact"
    assert parts.lanes.of(KEY.fingerprint, "unverified") == "other"  # a plain name
    await parts.trust_rules.change("unadmit", TrustChangeRequest(who=KEY.key_id))
    assert parts.lanes.of(HANDLE, "verified") == "other"


async def test_a_denied_peer_is_no_contact_though_our_agent_addressed_it(store: Store) -> None:
    lanes = parts_of(store, deny=("peer",)).lanes
    await store.write(lambda tx: tx.memory.trust.put_addressed(tx, "peer", 1))
    assert lanes.of("peer", "unverified") == "other"


async def test_every_peer_is_a_contact_where_the_operator_says_so(store: Store) -> None:
    lanes = parts_of(store, admit="all").lanes
    assert lanes.of("peer", "unverified") == "plain"
    assert lanes.of(HANDLE, "verified") == "contact"
    assert lanes.of(HANDLE, None) == "other"


async def test_the_oldest_addressed_peers_give_way(store: Store) -> None:
    def address(tx: Any) -> None:
        for number in range(MAX_RULES + 1):
            tx.memory.trust.put_addressed(tx, f"peer{number}", number)

    await store.write(address)
    lanes = parts_of(store).lanes
    assert [lanes.is_contact(f"peer{number}") for number in (0, 1, MAX_RULES)] == [False, True, True]


async def test_the_inbox_names_the_lane_of_each_message(tmp_path: Path) -> None:
    async with bench(tmp_path) as desk:
        await desk.admit("plain", FRIEND.handle)
        for document in (desk.say("peer"), desk.say("plain"), desk.signed(FRIEND), desk.signed(OTHER)):
            await desk.offer(document)
        inbox = desk.parts.inbox
        listed = await inbox.list_items(InboxQuery())
        assert [item.lane for item in listed.items] == ["other", "plain", "contact", "other"]
        assert listed.others == 2
        of_contacts = await inbox.list_items(InboxQuery(contacts=True))
        assert [item.message.sender for item in of_contacts.items] == ["plain", FRIEND.handle]
        found = [(await inbox.next(InboxNextRequest(others=False, ack=True, concurrent=True))).item for _ in range(3)]
        assert [item and item.message.sender for item in found] == ["plain", FRIEND.handle, None]
        await desk.admit("peer")
        taken = (await inbox.next(InboxNextRequest())).item
        assert taken is not None
        assert (taken.message.sender, taken.lane) == ("peer", "plain")
        of_contacts = await inbox.list_items(InboxQuery(contacts=True, limit=1))
        assert [(item.seq, item.state) for item in of_contacts.items] == [(taken.seq, "leased")]


async def test_a_consumer_that_takes_nothing_of_others_leaves_new_ones_to_those_that_do(tmp_path: Path) -> None:
    async with bench(tmp_path) as desk:
        await desk.admit("plain")
        inbox = desk.parts.inbox
        waits = [asyncio.create_task(inbox.next(InboxNextRequest(others=others, wait=30))) for others in (False, True)]
        await wait_until(lambda: len(desk.parts.waiters.waiting) == 2, 10, "both to wait")
        for name in ("peer", "plain"):
            await desk.offer(desk.say(name))
        picky, other = [(await task).item for task in waits]
        assert picky is not None and other is not None
        assert (picky.message.sender, other.message.sender) == ("plain", "peer")
