"""Searching the text of messages: what is a text, pages that neither repeat nor skip, bounds, and what retention removed."""

import random
from typing import Any

import pytest

from aghbus.protocol.api.queries import MessagesQuery
from aghbus.store.engine.database import Store
from aghbus.store.retention import RetentionPolicy, sweep
from aghbus.store.tables import inbox, search
from tests.support.makers import BOB, EVE, NOW_MS, receive, say, trace

DAY_MS = 86_400_000


async def found(store: Store, text: str, **fields: Any) -> list[int]:
    """The sequences of all messages that match, from as many pages as that takes, newest first."""
    seqs: list[int] = []
    before = None
    while True:
        page = await search.by_text(store.reader, MessagesQuery(text=text, before=before, **fields))
        of_page = [message.seq for message in page.messages]
        assert of_page == sorted(of_page)
        seqs += reversed(of_page)
        before = page.next_before
        if before is None:
            return seqs


@pytest.mark.parametrize(
    ("text", "is_there"),
    [
        ("smoke test", True),
        ("SMOKE Test", True),
        ("a\tb", True),  # as it reads, not as JSON writes it
        ('say "hi"\nC:\\temp', True),
        ("Größe 😀", True),
        ("deep inside", True),  # of a result
        ("half done", True),  # of a trace
        ("lines", False),  # the name of a member
        ("bob", False),  # the sender
        ("%", False),
        ("\\n", False),
    ],
)
async def test_a_text_is_found_wherever_a_body_has_it(store: Store, text: str, is_there: bool) -> None:
    await receive(store, say(text="Run the Smoke Test\na\tb", work_id="work_a"))
    await receive(store, say(text='he would say "hi"\nC:\\temp, Größe 😀'))
    await receive(store, trace("working", work_id="work_a", message="half done", result={"lines": [["deep inside"]]}))
    assert bool(await found(store, text)) is is_there


async def test_a_text_that_another_implementation_escaped_is_found(store: Store) -> None:
    await receive(store, say(text="caf\u00e9 <b>"))
    (raw,) = (await search.by_text(store.reader, MessagesQuery(text="caf"))).messages
    escaped = bytes(raw.envelope).replace("é".encode(), b"\\u00e9").replace(b"<", b"\\u003c")
    await store.write(lambda tx: tx.db.execute("UPDATE log SET raw = ?", (escaped,)).rowcount)
    assert await found(store, "café <B>") == [1]


@pytest.mark.parametrize(("seconds", "rows", "size"), [(0, 7, 10**6), (0, 100, 1), (60, 3, 10**6), (60, 5_000, 10**6)])
@pytest.mark.parametrize("limit", [1, 4, 100])
async def test_pages_together_are_exactly_the_matches(
    store: Store, monkeypatch: pytest.MonkeyPatch, seconds: float, rows: int, size: int, limit: int
) -> None:
    monkeypatch.setattr(search, "SEARCH_SECONDS", seconds)
    monkeypatch.setattr(search, "WINDOW_ROWS", rows)
    monkeypatch.setattr(search, "_WINDOW_BYTES", size)
    texts = [random.Random(seq).choice(["a needle", "hay", "hay"]) for seq in range(1, 31)]
    for seq, text in enumerate(texts, 1):
        await receive(store, say((BOB, EVE)[seq % 2], text=text, container=f"thread_{seq % 3:03d}"))
    expected = [seq for seq, text in enumerate(texts, 1) if "needle" in text][::-1]
    assert await found(store, "NEEDLE", limit=limit) == expected
    assert await found(store, "needle", limit=limit, peer=EVE) == [seq for seq in expected if seq % 2]
    assert await found(store, "needle", limit=limit, thread_id="thread_001") == [
        seq for seq in expected if seq % 3 == 1
    ]
    assert await found(store, "needle", limit=limit, since=12) == [seq for seq in expected if seq > 12]
    assert await found(store, "nothing", limit=limit) == []


async def test_a_page_ends_when_its_time_is_over(store: Store, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(search, "SEARCH_SECONDS", 0)
    monkeypatch.setattr(search, "_WINDOW_BYTES", 5_000)
    for text in ("needle", *["x" * 2_000] * 5):
        await receive(store, say(text=text))
    page = await search.by_text(store.reader, MessagesQuery(text="needle"))
    assert (page.messages, page.next_before) == ([], 6 - 1)  # two of them are less than 5,000 bytes
    assert await found(store, "needle") == [1]


async def test_damage_stops_no_search(store: Store) -> None:
    for text in ("needle 1", "needle 2"):
        await receive(store, say(text=text))
    await store.write(lambda tx: tx.db.execute("UPDATE log SET raw = x'00ff' WHERE seq = 1").rowcount)
    assert await found(store, "needle") == [2]


async def test_what_retention_removed_is_not_found(store: Store) -> None:
    for text in ("a secret", "another secret"):
        await receive(store, say(text=text))
    await store.write(lambda tx: [inbox.ack(tx, seq) for seq in (1, 2)] and None)
    assert await found(store, "secret") == [2, 1]
    await sweep(store, RetentionPolicy(max_age=1, max_bytes=None), NOW_MS + 30 * DAY_MS)
    assert await found(store, "secret") == []
