"""Envelopes of made-up peers, and the way of one through the store, as the daemon takes it."""

import contextlib
import itertools
import resource
from collections.abc import Callable, Iterator
from typing import Any

from aghbus.protocol.agh.effects import Effects
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.identifiers import direct_id
from aghbus.protocol.agh.receive import Receiver, decide
from aghbus.protocol.agh.send import Draft, apply_own, build
from aghbus.store.apply_effects import Application, Applied, load_own, load_state
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.tables import inbox_list

WORKSPACE, CHANNEL = "ws_test", "builders"
US, BOB, EVE = "us", "bob", "eve"
NOW = 1_776_366_000  # Unix seconds
NOW_MS = NOW * 1000

_numbers = itertools.count(1)


def mint() -> str:
    """A fresh message id."""
    return f"msg_{next(_numbers):032x}"


def say(sender: str = BOB, to: str | None = US, **fields: Any) -> Envelope:
    """A say; by default directed, in a thread, without work. `direct=True` puts it into the pair's own room."""
    return make("say", {"text": fields.pop("text", "hello")}, sender=sender, to=to, **fields)


def trace(state: str, sender: str = BOB, to: str | None = US, **fields: Any) -> Envelope:
    """A trace of a work's state; `message` and `result` go into its body."""
    body: dict[str, Any] = {"state": state}
    body.update((key, fields.pop(key)) for key in ("message", "result", "artifact_refs") if key in fields)
    return make("trace", body, sender=sender, to=to, **fields)


def receipt(status: str, for_id: str, sender: str = BOB, to: str | None = US, **fields: Any) -> Envelope:
    """A receipt for a message; `reason_code` where the status needs one."""
    body = {"for_id": for_id, "status": status}
    if status != "accepted":
        body["reason_code"] = fields.pop("reason_code", "busy")
    return make("receipt", body, sender=sender, to=to, reply_to=for_id, **fields)


def make(kind: str, body: dict[str, Any], *, sender: str, to: str | None, **fields: Any) -> Envelope:
    """An envelope by its parts, valid at NOW and for an hour unless `ts` or `expires_at` say otherwise."""
    fields.setdefault("workspace_id", WORKSPACE)
    fields.setdefault("channel", CHANNEL)
    if fields.pop("direct", False):
        assert to is not None
        room = direct_id(fields["workspace_id"], fields["channel"], sender, to)
        fields.update(surface="direct", container=fields.get("container", room))
    else:
        fields.setdefault("surface", "thread")
        fields.setdefault("container", "thread_one")
    fields.setdefault("ts", NOW)
    fields.setdefault("expires_at", fields["ts"] + 3600)
    fields.setdefault("id", mint())
    return build(Draft(kind=kind, body=body, sender=sender, to=to, **fields), fields["ts"])


def receiver(now: int = NOW, *, observe: bool = False) -> Receiver:
    """Us, at Unix second `now`."""
    return Receiver(self_id=US, now=now, mint=mint, channels=frozenset([(WORKSPACE, CHANNEL)]), observe=observe)


def receiving(
    envelope: Envelope, *, capacity: int = 1000, at: int = NOW, observe: bool = False
) -> Callable[[Transaction], tuple[Effects, Applied]]:
    """The write job that decides about a received envelope and carries it out."""

    def job(tx: Transaction) -> tuple[Effects, Applied]:
        effects = decide(envelope, load_state(tx, envelope, US), receiver(at, observe=observe))
        return effects, Application(tx, US, at * 1000).receive(envelope, effects, inbox_capacity=capacity)

    return job


def sending(envelope: Envelope, *, at: int = NOW) -> Callable[[Transaction], Applied]:
    """The write job that keeps and queues an own envelope."""

    def job(tx: Transaction) -> Applied:
        return Application(tx, US, at * 1000).send(envelope, apply_own(envelope, *load_own(tx, envelope)))

    return job


async def receive(store: Store, envelope: Envelope, **options: Any) -> Applied:
    """`receiving`, committed."""
    _, applied = await store.write(receiving(envelope, **options))
    return applied


async def inbox_states(store: Store) -> dict[int, str]:
    """The state of each message in the inbox, by sequence, as the list of the inbox shows it."""
    page = await inbox_list.items(store.reader, states=frozenset(["ready", "leased", "acked", "dead"]), limit=10_000)
    return {item.seq: item.state for item in page.items}


async def rows(store: Store, sql: str, *params: Any) -> list[tuple[Any, ...]]:
    """What a query on the committed state gives."""
    return [tuple(row) for row in await store.reader.execute_fetchall(sql, params)]


@contextlib.contextmanager
def files_up_to(size: int) -> Iterator[None]:
    """No file of this process grows beyond `size` bytes meanwhile: how a full disk looks to SQLite's own writes."""
    soft, hard = resource.getrlimit(resource.RLIMIT_FSIZE)
    resource.setrlimit(resource.RLIMIT_FSIZE, (size, hard))
    try:
        yield
    finally:
        resource.setrlimit(resource.RLIMIT_FSIZE, (soft, hard))
