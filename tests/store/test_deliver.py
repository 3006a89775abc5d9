"""Most messages are stored by `deliver`: it leaves the same store, inbox and events as `apply` of their effects."""

import asyncio
import tempfile
from pathlib import Path
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from aghbus.protocol.agh.effects import Deliver, Effects, RecordId, StoreEnvelope
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.receive import decide
from aghbus.protocol.api.queries import EnvelopeFilter
from aghbus.store.apply_effects import Applied, apply, deliver, load_state
from aghbus.store.engine.database import Store
from aghbus.store.engine.transaction import Transaction
from tests.support.makers import BOB, EVE, NOW, NOW_MS, US, make, receiver

PLAIN = (RecordId, StoreEnvelope, Deliver)
TABLES = ("log", "streams", "verdicts", "rooms", "inbox", "outbox", "works", "remembered_ids")

says = st.builds(
    lambda kind, sender, to, direct, container, life, ext: make(
        kind,
        {"text": "hello"},
        sender=sender,
        to=US if direct else to,
        expires_at=NOW + life,
        **({"direct": True} if direct else {"container": container}),
        **({"ext": {ext: {"id": 1}}} if ext else {}),
    ),
    st.just("say"),
    st.sampled_from([BOB, EVE]),
    st.sampled_from([US, None]),
    st.booleans(),
    st.sampled_from(["thread_one", "thread_two"]),
    st.sampled_from([60, 3600, 6 * 86_400]),
    st.sampled_from(["", "x.custom", "agentos.message"]),
)


def by_apply(tx: Transaction, envelope: Envelope, effects: Effects, key: int) -> Applied:
    return apply(tx, envelope, effects, self_id=US, received_ms=NOW_MS, key=key)


def by_deliver(tx: Transaction, envelope: Envelope, effects: Effects, key: int) -> Applied:
    if tuple(map(type, effects)) != PLAIN:
        return by_apply(tx, envelope, effects, key)
    record, stored, _ = effects
    assert isinstance(record, RecordId)
    assert isinstance(stored, StoreEnvelope)
    return deliver(tx, envelope, record, stored, NOW_MS, key)


async def after(envelopes: list[Envelope], store_one: Any, identity: int) -> list[Any]:
    """What a new store has, remembers and shows to a subscriber after these envelopes."""

    def job(tx: Transaction) -> list[Applied]:
        applied = []
        for envelope in envelopes:
            ids = tx.memory.log.ids
            ids.open(identity)
            key = ids.dedup_key(envelope.workspace_id, envelope.sender, envelope.id)
            effects = decide(envelope, load_state(tx, envelope, US, key), receiver())
            applied.append(store_one(tx, envelope, effects, key))
        return applied

    with tempfile.TemporaryDirectory() as folder:
        store = await Store.open(Path(folder) / "store.db", synchronous="normal")
        try:
            with store.memory.events.subscribed(0):
                applied = await store.write(job)
                page = store.memory.events.read(EnvelopeFilter(), 0, len(envelopes), 1000)
            rows = [await store.reader.execute_fetchall(f"SELECT * FROM {table}") for table in TABLES]
            chain = await store.reader.execute_fetchall("SELECT last_seq, content, entries FROM chain")
            inbox = store.memory.inbox
            return [
                applied,
                None if page is None else page.events,
                [list(map(tuple, each)) for each in rows],
                list(map(tuple, chain)),
                (inbox.untouched(), inbox.waiting, inbox.size, inbox.senders, inbox.works),
                (store.memory.dedup.keys, store.memory.bridged, store.memory.last_seq, store.memory.log.tail.rows),
            ]
        finally:
            await store.close()


@given(st.lists(says, min_size=1, max_size=12))
def test_a_plain_message_is_stored_as_by_its_effects(envelopes: list[Envelope]) -> None:
    assert asyncio.run(after(envelopes, by_deliver, 7)) == asyncio.run(after(envelopes, by_apply, 7))
