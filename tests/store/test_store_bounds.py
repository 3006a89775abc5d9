"""Tables that untrusted peers can fill are bounded: the quarantine and the peers."""

from hypothesis import given
from hypothesis import strategies as st

from aghbus.protocol.agh.bodies import PeerCard
from aghbus.protocol.agh.presence import PeerSeen
from aghbus.store.engine.database import Store
from aghbus.store.engine.sql import encodable
from aghbus.store.tables import peers, quarantine
from tests.support.makers import CHANNEL, NOW_MS, WORKSPACE, rows


async def refuse(store: Store, raw: bytes, **options: int) -> None:
    await store.write(
        lambda tx: quarantine.add(
            tx,
            raw=raw,
            subject="agh.network.v0.ws.c.broadcast",
            message_id="msg_1",
            sender="bob",
            reason="malformed",
            detail="not JSON",
            received_ms=NOW_MS,
            **options,
        )
    )


async def test_quarantine_drops_the_oldest_beyond_its_rows(store: Store) -> None:
    for number in range(10):
        await refuse(store, b"%d" % number, max_rows=4)
    found = await quarantine.quarantined(store.reader)
    assert [entry.raw for entry in found] == ["9", "8", "7", "6"]
    assert store.memory.quarantine_rows == 4


async def test_quarantine_drops_the_oldest_beyond_its_bytes(store: Store) -> None:
    for _ in range(10):
        await refuse(store, b"x" * 1000, max_bytes=3500)
    assert await rows(store, "SELECT count(*), sum(length(raw)) FROM quarantine") == [(3, 3000)]
    assert store.memory.quarantine_bytes == 3000


async def test_a_large_quarantined_envelope_is_cut_and_its_size_recorded(store: Store) -> None:
    await refuse(store, b"z" * 1_000_000)
    (entry,) = await quarantine.quarantined(store.reader)
    assert entry.size == 1_000_000
    assert entry.raw == "z" * quarantine.SHOWN_BYTES
    assert await rows(store, "SELECT length(raw) FROM quarantine") == [(quarantine.RAW_BYTES,)]


async def test_an_empty_quarantined_envelope_is_listed(store: Store) -> None:
    await refuse(store, b"")
    (entry,) = await quarantine.quarantined(store.reader)
    assert (entry.raw, entry.size) == ("", 0)


async def test_text_from_untrusted_peers_is_escaped(store: Store) -> None:
    await refuse(store, b"\x1b[2J\xff\x00\n{")
    (entry,) = await quarantine.quarantined(store.reader)
    assert entry.raw == "\\x1b[2J\\xff\\x00\\n{"


async def test_quarantine_counts_are_restored_after_reopening(store: Store) -> None:
    for _ in range(3):
        await refuse(store, b"abc")
    await store.close()
    again = await Store.open(store.path)
    try:
        assert (again.memory.quarantine_rows, again.memory.quarantine_bytes) == (3, 9)
    finally:
        await again.close()


@given(st.text(max_size=2000))
def test_any_text_can_be_kept(text: str) -> None:
    kept = encodable(text, 512)
    kept.encode()  # would raise for a lone surrogate
    assert len(kept) <= 512 * 10


def seen(name: str, at_ms: int, **fields: object) -> PeerSeen:
    card = PeerCard(peer_id=name, capabilities=("test.run",), ext={"agh.capabilities_brief": []})
    values = {"trust": "unverified", "first_seen_ms": at_ms, "last_seen_ms": at_ms, **fields}
    return PeerSeen(workspace_id=WORKSPACE, channel=CHANNEL, card=card, **values)  # type: ignore[arg-type]


async def test_a_peer_is_kept_with_its_latest_card_and_first_time(store: Store) -> None:
    await store.write(lambda tx: peers.seen(tx, seen("bob", NOW_MS)))
    latest = {"trust": "verified", "acknowledges": True}
    await store.write(lambda tx: peers.seen(tx, seen("bob", NOW_MS + 5000, **latest)))
    assert await peers.load(store.reader) == [seen("bob", NOW_MS + 5000, first_seen_ms=NOW_MS, **latest)]


async def test_peers_seen_longest_ago_are_dropped_beyond_the_bound(store: Store) -> None:
    for number in range(6):
        await store.write(lambda tx, n=number: peers.seen(tx, seen(f"peer-{n}", NOW_MS + n)))  # type: ignore[misc]
    stale = await peers.stale(store.reader, 0, limit=10, keep=4)
    await store.write(lambda tx: peers.seen(tx, seen("peer-1", NOW_MS + 99)))  # received again before it is forgotten
    await store.write(lambda tx: peers.forget(tx, stale))
    assert sorted(peer.peer_id for peer in await peers.load(store.reader)) == [f"peer-{n}" for n in range(1, 6)]
