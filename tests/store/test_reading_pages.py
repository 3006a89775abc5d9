"""Reading messages and events: filters, pages that neither repeat nor skip, bounds, and rooms that stay apart."""

from typing import Any

import pytest

from aghbus.protocol.agh.rooms import Binding
from aghbus.protocol.api.queries import EnvelopeFilter, EventsQuery, MessagesQuery, WorksQuery
from aghbus.protocol.base.errors import Refused
from aghbus.store.engine.database import Store
from aghbus.store.tables import envelopes, events, inbox_list, rooms, search
from aghbus.store.tables.works import open_works, reads
from tests.support.makers import (
    BOB,
    CHANNEL,
    EVE,
    NOW,
    NOW_MS,
    US,
    WORKSPACE,
    receipt,
    receive,
    receiving,
    say,
    sending,
    trace,
)

EVERYTHING = EnvelopeFilter()


async def mixed(store: Store) -> None:
    """Thirty envelopes of two senders in three threads, every third of a work."""
    jobs = []
    for number in range(30):
        sender = (BOB, EVE)[number % 2]
        work = f"work_{number}" if number % 3 == 0 else None
        jobs.append(store.submit(receiving(say(sender, container=f"thread_{number % 3:03d}", work_id=work))))
    for job in jobs:
        await job


@pytest.fixture
def small_windows(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "WINDOW_ROWS", 4)


FILTERS = [
    EVERYTHING,
    EnvelopeFilter(peer=BOB),
    EnvelopeFilter(peer=EVE, kinds=frozenset(["say", "trace"])),
    EnvelopeFilter(kinds=frozenset(["trace"])),
    EnvelopeFilter(thread_id="thread_001"),
    EnvelopeFilter(work_id="work_6"),
    EnvelopeFilter(channel=CHANNEL, directions=frozenset(["in"])),
    EnvelopeFilter(directions=frozenset(["out"])),
    EventsQuery(inbox=True, peer=BOB),
]


def matches(wanted: EnvelopeFilter, number: int) -> bool:
    """Whether envelope `number` of `mixed` should be found, said without SQL."""
    sender = (BOB, EVE)[number % 2]
    return (
        wanted.peer in (None, sender)
        and (not wanted.kinds or "say" in wanted.kinds)
        and wanted.thread_id in (None, f"thread_{number % 3:03d}")
        and (wanted.work_id is None or (number % 3 == 0 and wanted.work_id == f"work_{number}"))
        and (not wanted.directions or "in" in wanted.directions)
    )


@pytest.mark.usefixtures("small_windows")
@pytest.mark.parametrize("wanted", FILTERS, ids=range(len(FILTERS)))
@pytest.mark.parametrize("limit", [1, 3, 100])
async def test_pages_together_are_exactly_the_matches(store: Store, wanted: EnvelopeFilter, limit: int) -> None:
    await mixed(store)
    expected = [number + 1 for number in range(30) if matches(wanted, number)]
    got: list[int] = []
    since = 0
    while True:
        page = await search.messages(store.reader, wanted, since=since, limit=limit)
        assert len(page.messages) <= limit
        got += [message.seq for message in page.messages]
        assert page.next_since >= since
        if page.next_since == since or since >= 30:
            break
        since = page.next_since
    assert got == expected
    newest = await search.messages(store.reader, wanted, limit=limit, last=True)
    assert [message.seq for message in newest.messages] == expected[-limit:]


async def test_a_complete_page_continues_at_the_end_of_the_store(store: Store) -> None:
    await mixed(store)
    page = await search.messages(store.reader, EnvelopeFilter(kinds=frozenset(["trace"])))
    assert page.messages == []
    assert page.next_since == 30


async def test_a_page_is_bounded_by_bytes_and_continues(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(envelopes, "PAGE_BYTES", 5_000)
    for _ in range(4):
        await receive(store, say(text="x" * 3_000))
    seqs = []
    since = 0
    for _ in range(4):
        page = await search.messages(store.reader, EVERYTHING, since=since)
        (message,) = page.messages  # two would be over the bound; one always goes
        seqs.append(message.seq)
        since = page.next_since
    assert seqs == [1, 2, 3, 4]


async def test_a_message_shows_its_outcome_and_delivery(store: Store) -> None:
    incoming = say(work_id="work_a", ext={"k": "v"})
    await receive(store, incoming)
    await store.write(sending(receipt("accepted", incoming.id, sender=US, to=BOB, work_id="work_a")))
    shown = await envelopes.message(store.reader, incoming.id)
    assert shown is not None
    assert bytes(shown.envelope) == incoming.raw
    assert (shown.direction, shown.delivery, shown.outcome, shown.thread_id) == ("in", "ready", "opened", "thread_one")
    (sent,) = (await search.messages(store.reader, EnvelopeFilter(directions=frozenset(["out"])))).messages
    assert (sent.delivery, sent.outcome, sent.received_ms) == ("queued", "advanced", NOW_MS)
    assert await envelopes.message(store.reader, "msg_none") is None


async def test_of_two_messages_under_one_id_ours_is_shown(store: Store) -> None:
    ours = say(sender=US, to=BOB)
    await store.write(sending(ours))
    await receive(store, say(sender=EVE, id=ours.id))
    shown = await envelopes.message(store.reader, ours.id)
    assert shown is not None
    assert shown.sender == US


async def test_an_id_that_two_peers_have_used_is_ambiguous(store: Store) -> None:
    used = say(sender=BOB)
    await receive(store, used)
    assert (await envelopes.message(store.reader, used.id)) is not None
    await receive(store, say(sender=EVE, id=used.id))
    with pytest.raises(Refused, match="bob and eve") as caught:
        await envelopes.message(store.reader, used.id)
    assert caught.value.error_code == "conflict"


async def test_a_room_shows_one_pair_only(store: Store) -> None:
    opaque = "direct_" + "cd" * 16
    await receive(store, say(sender=BOB, direct=True, container=opaque, text="for us, by bob"))
    before = await search.messages(store.reader, EnvelopeFilter(direct_id=opaque))
    assert len(before.messages) == 1
    await store.write(lambda tx: rooms.bind(tx, WORKSPACE, CHANNEL, opaque, Binding((EVE, US), authoritative=True)))
    after = await search.messages(store.reader, EnvelopeFilter(direct_id=opaque))
    assert after.messages == []
    flow = await events.events(store.reader, EnvelopeFilter(direct_id=opaque), since=0)
    assert flow.events == []
    theirs = await search.messages(store.reader, EnvelopeFilter(direct_id=opaque, peer=BOB))
    assert len(theirs.messages) == 1
    none = await search.messages(store.reader, EnvelopeFilter(direct_id=opaque, peer=EVE))
    assert none.messages == []


async def test_an_event_tells_the_change_of_the_work(store: Store) -> None:
    opening = say(sender=US, to=BOB, work_id="work_a")
    await store.write(sending(opening))
    await receive(store, trace("working", work_id="work_a"))
    await receive(store, trace("working", sender=EVE, work_id="work_a"))
    await receive(store, say(container="thread_other"))
    page = await events.events(store.reader, EVERYTHING, since=0)
    changes = [
        None
        if event.work is None
        else (
            event.work.event,
            event.work.outcome,
            event.work.before,
            event.work.after,
            event.work.reason,
            event.work.role,
        )
        for event in page.events
    ]
    assert changes == [
        ("message", "opened", None, "submitted", None, "initiator"),
        ("trace:working", "advanced", "submitted", "working", None, "initiator"),
        ("trace:working", "ignored", "working", "working", "actor_not_allowed", "initiator"),
        None,
    ]
    assert page.next_since == 4
    assert [event.seq for event in (await events.events(store.reader, EVERYTHING, since=2)).events] == [3, 4]


async def test_works_are_listed_by_their_latest_change(store: Store) -> None:
    await receive(store, say(work_id="work_a"))
    await receive(store, say(sender=EVE, work_id="work_b"))
    await receive(store, say(sender=US, to=None))  # our own echo: nothing
    await receive(store, say(work_id="work_a"))
    assert [work.work_id for work in (await reads.works(store.reader, WorksQuery())).works] == ["work_a", "work_b"]
    assert [work.work_id for work in (await reads.works(store.reader, WorksQuery(peer=EVE))).works] == ["work_b"]
    assert (await reads.works(store.reader, WorksQuery(role="initiator"))).works == []
    assert (await reads.works(store.reader, WorksQuery(states=frozenset(["completed"])))).works == []
    assert (
        len(
            (await reads.works(store.reader, WorksQuery(states=frozenset(["submitted"]), role="target", limit=1))).works
        )
        == 1
    )
    assert await open_works.counts(store.reader) == {"submitted": 2, "working": 0, "needs_input": 0}
    assert await reads.work(store.reader, "work_a", "elsewhere") is None
    assert await reads.work(store.reader, "work_zzz") is None


async def test_a_large_result_is_left_out_of_lists_and_shown_alone(store: Store) -> None:
    await receive(store, say(work_id="work_a"))
    result = {"log": "y" * reads.LISTED_RESULT_BYTES}
    await store.write(sending(trace("completed", sender=US, to=BOB, work_id="work_a", result=result)))
    (listed,) = (await reads.works(store.reader, WorksQuery())).works
    assert listed.result is None
    detail = await reads.work(store.reader, "work_a")
    assert detail is not None
    assert detail.work.result == result


async def test_works_have_pages_that_together_are_all_of_them(store: Store) -> None:
    for number in range(7):
        await receive(store, say(work_id=f"work_{number}"))
    await receive(store, say(work_id="work_0"))
    got: list[str] = []
    before: int | None = None
    for _ in range(3):
        page = await reads.works(store.reader, WorksQuery(limit=3, before=before))
        got += [work.work_id for work in page.works]
        before = page.next_before
    assert got == ["work_0", *(f"work_{number}" for number in range(6, 0, -1))]
    assert before is None


async def list_of(store: Store, **query: Any) -> list[str]:
    """The ids of all pages of works, in their order."""
    got: list[str] = []
    before: int | None = None
    while True:
        page = await reads.works(store.reader, WorksQuery(**query, before=before))
        got += [work.work_id for work in page.works]
        if (before := page.next_before) is None:
            return got


async def test_works_are_found_by_text_end_of_id_and_time_and_in_the_order_of_their_opening(store: Store) -> None:
    for number, text in enumerate(("Fix 100% of it", "fix_the login", "Ship it")):
        await receive(store, say(text=text, work_id=f"work_{number}abc"), at=NOW + number)
    await receive(store, say(text="more", work_id="work_0abc"), at=NOW + 9)
    assert await list_of(store) == ["work_0abc", "work_2abc", "work_1abc"]
    assert await list_of(store, order="opened") == ["work_2abc", "work_1abc", "work_0abc"]
    assert await list_of(store, order="opened", limit=1) == ["work_2abc", "work_1abc", "work_0abc"]
    assert await list_of(store, text="FIX") == ["work_0abc", "work_1abc"]
    assert await list_of(store, text="100%") == ["work_0abc"]  # no pattern: % and _ are themselves
    assert await list_of(store, text="x_t") == ["work_1abc"]
    assert await list_of(store, text="more") == []  # the opening's text only
    assert await list_of(store, id_end="1abc") == ["work_1abc"]
    assert await list_of(store, id_end="_abc") == []
    assert await list_of(store, updated_since_ms=NOW_MS + 2_000) == ["work_0abc", "work_2abc"]
    assert await list_of(store, text="it", id_end="2abc", states=frozenset(["submitted"])) == ["work_2abc"]


async def test_a_search_of_works_compares_a_bounded_number_at_a_time(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "SEARCHED_WORKS", 2)
    for number in range(5):
        await receive(store, say(text="old" if number == 0 else "new", work_id=f"work_{number}"))
    first = await reads.works(store.reader, WorksQuery(text="old"))
    assert (first.works, first.next_before is None) == ([], False)
    for order in ("updated", "opened"):
        assert await list_of(store, text="old", order=order) == ["work_0"]
        assert await list_of(store, text="new", order=order) == [f"work_{number}" for number in (4, 3, 2, 1)]


async def test_messages_are_found_by_the_end_of_their_id(store: Store) -> None:
    for number in range(3):
        await receive(store, say(id=f"msg_{number}_end"))
    query = MessagesQuery(id_end="1_end")
    page = await search.messages(store.reader, query, limit=query.limit)
    assert [message.id for message in page.messages] == ["msg_1_end"]


async def test_messages_are_found_by_their_cause(store: Store) -> None:
    cause = await receive(store, say(id="msg_cause", causation_id="msg_before"))
    await receive(store, say(id="msg_other", text='"causation_id": "msg_cause"'))
    await receive(store, say(id="msg_effect", causation_id="msg_cause"))
    query = MessagesQuery(caused_by="msg_cause")
    page = await search.messages(store.reader, query, since=cause.seq or 0)
    assert [message.id for message in page.messages] == ["msg_effect"]


async def test_a_page_of_works_is_bounded_by_the_bytes_of_results(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(envelopes, "PAGE_BYTES", 5_000)
    for number in range(3):
        await receive(store, say(work_id=f"work_{number}"))
        ended = trace("completed", sender=US, to=BOB, work_id=f"work_{number}", result={"log": "y" * 3_000})
        await store.write(sending(ended))
    first = await reads.works(store.reader, WorksQuery())
    assert [work.work_id for work in first.works] == ["work_2"]
    rest = await reads.works(store.reader, WorksQuery(before=first.next_before))
    assert [work.work_id for work in rest.works] == ["work_1"]


async def test_a_page_of_the_inbox_is_bounded_by_bytes_and_continues(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(envelopes, "PAGE_BYTES", 5_000)
    for _ in range(3):
        await receive(store, say(text="x" * 3_000))
    seqs, since = [], 0
    while True:
        page = await inbox_list.items(store.reader, since=since)
        (item,) = page.items
        seqs.append(item.seq)
        if page.next_since is None:
            break
        since = page.next_since
    assert seqs == [1, 2, 3]


async def test_a_long_history_has_the_number_of_missing_steps_and_continues(
    store: Store, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(reads, "HISTORY_ENTRIES", 4)
    for _ in range(10):
        await receive(store, say(work_id="work_a"))
    got: list[int] = []
    before: int | None = None
    for omitted in (6, 2, 0):
        detail = await reads.work(store.reader, "work_a", before=before)
        assert detail is not None
        assert detail.history_omitted == omitted
        got = [step.seq for step in detail.history] + got
        before = detail.next_before
    assert before is None
    assert got == list(range(1, 11))
