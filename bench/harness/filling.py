"""Stores that have already seen a lot, written by the daemon's own store code before the daemon starts.

Messages are made from templates that were parsed and decided once; each gets an id of its own, in its bytes too. Everything else
is what the daemon does for a message that was decided, in transactions of thousands of messages, without waiting for the disk.
"""

import asyncio
import itertools
import secrets
import shutil
import tempfile
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Final

import msgspec

from aghbus.protocol.agh.effects import Deliver, Effects, RecordId
from aghbus.protocol.agh.envelope import Envelope, parse
from aghbus.protocol.agh.receive import Receiver, StoredState, decide
from aghbus.store.apply_effects import Application
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from bench.harness.envelopes import CHANNEL, WORKSPACE, EnvelopeMaker

_CHUNK: Final = 8_192  # messages of one transaction
_TEMPLATES: Final = 1_000  # threads
_LEFT_OUT: Final = {
    "dedup": (Deliver,),
    "random": (Deliver,),
    "stored": (Deliver, RecordId),
    "works": (Deliver, RecordId),
    "inbox": (RecordId,),
}
"""By what grows: the effects of a message that are left out. What remains is written for each."""
_ROW_BYTES: Final = 1_200  # of an envelope with its indexes, rounded up
_SPARE: Final = 2 << 30  # bytes that are left to others

Decided = tuple[Envelope, Effects]


def room_for(what: str, count: int) -> str:
    """Why so many rows have no room in the temporary folder; empty when they do."""
    need, free = count * _ROW_BYTES + _SPARE, shutil.disk_usage(tempfile.gettempdir()).free
    if what in _LEFT_OUT and count > _CHUNK and need > free:
        return f"{need >> 30} GiB are needed in {tempfile.gettempdir()}, {free >> 30} are free"
    return ""


def fill(path: Path, what: str, count: int, us: str, step: Callable[[str], bool]) -> bool:
    """A new store at `path` of the peer `us` with `count` messages; True if it was filled.

    By `what` they are: in the dedup window (`dedup`), the same with random ids (`random`), only stored (`stored`), openings
    of works that are open (`works`), or waiting in the inbox (`inbox`). `step` is called with the progress and returns
    whether there is still time. When there is none the store is removed.
    """
    if not asyncio.run(_fill(path, what, count, us, step)):
        shutil.rmtree(path.parent)
        return False
    return True


async def _fill(path: Path, what: str, count: int, us: str, step: Callable[[str], bool]) -> bool:
    messages = _works(us) if what == "works" else _says(us, random_ids=what == "random")
    store = await Store.open(path, synchronous="normal", name="bench")
    try:
        for done in range(0, count, _CHUNK):
            if not step(f"{what}: {done:,} of {count:,} messages"):
                return False
            part = list(itertools.islice(messages, min(_CHUNK, count - done)))
            await store.submit(_job(part, _LEFT_OUT[what], us))
    finally:
        await store.close()
    return True


def _job(part: list[Decided], left_out: tuple[type, ...], us: str) -> Callable[[Transaction], None]:
    kept = {id(effects): tuple(one for one in effects if type(one) not in left_out) for _, effects in part}
    now = int(time.time() * 1000)

    def job(tx: Transaction) -> None:
        for envelope, effects in part:
            Application(tx, us, now).receive(envelope, kept[id(effects)], inbox_capacity=1 << 40)

    return job


def _receiver(us: str) -> Receiver:
    channels = frozenset([(WORKSPACE, CHANNEL)])
    return Receiver(self_id=us, now=int(time.time()), mint=lambda: "msg_never", channels=channels)


def _says(us: str, *, random_ids: bool) -> Iterator[Decided]:
    """Says of 614 bytes, without end."""
    receiver, templates = _receiver(us), []
    for number in range(_TEMPLATES):
        raw = EnvelopeMaker("flooder", us).say(f"thread_{number:06d}")
        templates.append(parse(raw, receiver.now))
    effects = decide(templates[0], StoredState(), receiver)
    origin = time.time_ns()
    for number, template in enumerate(itertools.cycle(templates)):
        message_id = f"msg_{secrets.token_hex(14)}" if random_ids else f"msg_{origin:016x}{number:012x}"
        raw = template.raw.replace(template.id.encode(), message_id.encode(), 1)
        yield msgspec.structs.replace(template, id=message_id, raw=raw), effects


def _works(us: str) -> Iterator[Decided]:
    """Openings of works for `us`, without end."""
    receiver, maker = _receiver(us), EnvelopeMaker("flooder", us)
    for number in itertools.count():
        envelope = parse(maker.opening(f"work_{number:08d}", f"thread_{number:06d}"), receiver.now)
        yield envelope, decide(envelope, StoredState(), receiver)
