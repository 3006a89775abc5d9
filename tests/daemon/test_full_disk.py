"""The daemon's tasks begin while every transaction fails on a full disk: none of them ends, which would end the daemon."""

import asyncio
import contextlib
from collections.abc import Callable, Coroutine, Iterator
from typing import Any

import pytest

from aghbus.daemon.config.settings import Settings
from aghbus.daemon.tasks.retention import Retention
from aghbus.daemon.wiring import DaemonParts
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.errors import StoreUnavailable
from tests.support.makers import US, WORKSPACE
from tests.support.publishing import Hand, Up
from tests.support.wiring import daemon_context, daemon_parts

WITHIN = 20.0
FAILING = 3  # transactions in which each task has its first writes

Main = Callable[[], Coroutine[Any, Any, None]]
CONTEXT = daemon_context(Settings(name=US, peer_id=US, workspace=WORKSPACE), Hand())


def of_bridge(parts: DaemonParts) -> Main:
    return parts.bridge.follower.run


def of_bridge_log(parts: DaemonParts) -> Main:
    return parts.bridge.log.run


def of_chains(parts: DaemonParts) -> Main:
    return parts.chains.run


def of_deadlines(parts: DaemonParts) -> Main:
    return parts.deadlines.run


def of_presence(parts: DaemonParts) -> Main:
    return parts.deadlines.follow_presence


def of_publisher(parts: DaemonParts) -> Main:
    return parts.publisher.run


def of_retries(parts: DaemonParts) -> Main:
    return parts.publisher.retry


def of_retention(parts: DaemonParts) -> Main:
    return Retention(CONTEXT, parts.store, parts.clock_changes, parts.trust, parts.lanes).run


def of_clock_changes(parts: DaemonParts) -> Main:
    return parts.clock_changes.run


def fill(tx: Transaction) -> None:
    tx.db.execute("INSERT INTO quarantine VALUES (NULL, 0, '', '', '', '', '', 0, zeroblob(100000))")


def is_full(tx: Transaction) -> None:
    (pages,) = tx.db.execute("PRAGMA page_count").fetchone()
    tx.db.execute(f"PRAGMA max_page_count = {pages}").fetchone()


@contextlib.contextmanager
def running(main: Main) -> Iterator[asyncio.Task[None]]:
    task = asyncio.ensure_future(main())
    try:
        yield task
    finally:
        task.cancel()


@pytest.mark.parametrize(
    "of",
    [
        of_bridge,
        of_bridge_log,
        of_chains,
        of_clock_changes,
        of_deadlines,
        of_presence,
        of_publisher,
        of_retention,
        of_retries,
    ],
)
async def test_a_task_that_begins_on_a_full_disk_goes_on(store: Store, of: Callable[[DaemonParts], Main]) -> None:
    parts = daemon_parts(CONTEXT, store, Up())
    await store.write(is_full)
    with running(of(parts)) as task:
        for _ in range(FAILING):  # what the task writes shares its transaction with another job, and fails with it
            async with asyncio.timeout(WITHIN):
                with pytest.raises(StoreUnavailable):
                    await store.write(fill)
        assert not task.done(), task.exception()
