"""SQLite has no booleans: fields of rows that are annotated as bool are converted where the rows are read."""

import importlib
import inspect
import pkgutil
from collections.abc import Iterable, Iterator
from typing import Any, get_args, get_type_hints

import msgspec

from aghbus.protocol.agh.bodies import PeerCard
from aghbus.protocol.agh.presence import PeerSeen
from aghbus.protocol.api.queries import EnvelopeFilter, WorksQuery
from aghbus.store import tables
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.tables import clock_record, envelopes, inbox_list, peers, retry, rooms, search
from aghbus.store.tables.bridge import messages as bridge_messages
from aghbus.store.tables.clock_record import ClockChange, ClockRecord
from aghbus.store.tables.works import lifecycle, reads
from tests.support.makers import BOB, CHANNEL, NOW_MS, US, WORKSPACE, receive, say, sending

WORK = "work_one"


def flags_of(kind: type) -> set[str]:
    """The fields of a row type that are annotated as bool, or as bool or None."""
    if not (issubclass(kind, msgspec.Struct) or hasattr(kind, "_fields")):
        return set()
    return {name for name, hint in get_type_hints(kind).items() if hint is bool or bool in get_args(hint)}


def kinds_with_flags() -> set[type]:
    """The public row types of the tables that have such fields."""
    modules = [
        importlib.import_module(f"{tables.__name__}.{one.name}") for one in pkgutil.iter_modules(tables.__path__)
    ]
    found = {kind for module in modules for _, kind in inspect.getmembers(module, inspect.isclass)}
    return {
        kind
        for kind in found
        if kind.__module__.startswith(tables.__name__) and kind.__name__[0] != "_" and flags_of(kind)
    }


def rows_in(value: object) -> Iterator[Any]:
    """The structs and named tuples in a result."""
    if isinstance(value, msgspec.Struct):
        yield value
        value = [getattr(value, name) for name in value.__struct_fields__]
    elif hasattr(value, "_fields"):
        yield value
    if isinstance(value, Iterable) and not isinstance(value, str | bytes | dict):
        for one in value:
            yield from rows_in(one)


async def test_flags_are_bools(store: Store) -> None:
    await store.write(sending(say(US, BOB, work_id=WORK)))
    directed = await receive(store, say(BOB, US, direct=True))
    assert directed.seq is not None
    seen = PeerSeen(
        workspace_id=WORKSPACE,
        channel=CHANNEL,
        card=PeerCard(peer_id=BOB),
        trust="unverified",
        first_seen_ms=NOW_MS,
        last_seen_ms=NOW_MS,
        acknowledges=True,
    )

    def job(tx: Transaction) -> list[object]:
        peers.seen(tx, seen)
        clock_record.put(tx, ClockRecord(0, 0, "", [ClockChange(0, 0, certain=True)]))
        retry.published(tx, [retry.RetrySchedule(1, NOW_MS)], NOW_MS)
        return [
            retry.due(tx, NOW_MS, 10),
            lifecycle.load(tx, WORKSPACE, CHANNEL, WORK),
            bridge_messages.load_envelope(tx, 1),
        ]

    reader = store.reader
    found = [
        await store.write(job),
        await clock_record.get(reader),
        await peers.load(reader),
        await rooms.directs(reader, self_id=US),
        await reads.works(reader, WorksQuery()),
        await reads.work(reader, WORK),
        await inbox_list.items(reader, states=frozenset(["ready"]), limit=10),
        await envelopes.fetch_messages(reader, [1, 2]),
        await search.messages(reader, EnvelopeFilter()),
    ]
    seen_kinds: set[type] = set()
    for row in rows_in(found):
        seen_kinds.add(type(row))
        for name in flags_of(type(row)):
            assert isinstance(getattr(row, name), bool | None), (row, name)
    assert kinds_with_flags() | {PeerSeen} <= seen_kinds
