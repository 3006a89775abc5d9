"""Rows of the message log: the time between a question and its answer, and the timeout of a question."""

from typing import Any

from aghbus.daemon.bridge.format_log import FORMAT_WITH_TIMEOUTS, expire, keep_record
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.engine.database import Store
from aghbus.store.tables.bridge import log as bridge_log
from tests.support.bridge_log import ASKED_MS, record


async def asked(store: Store) -> None:
    await store.write(
        lambda tx: keep_record(tx, FORMAT_WITH_TIMEOUTS, "out", record("q", "sent", waits=2), at_ms=ASKED_MS, seq=1)
    )


async def answered(store: Store, at_ms: int, **more: Any) -> None:
    given = record("a", "received", answers="q")
    await store.write(lambda tx: keep_record(tx, FORMAT_WITH_TIMEOUTS, "in", given, at_ms=at_ms, seq=2, **more))


async def rows(store: Store) -> dict[str, tuple[str, int]]:
    kept = await bridge_log.page(store.reader, FORMAT_WITH_TIMEOUTS, 10)
    return {row["messageId"]: (row["status"], row["latencyMs"]) for row in kept}


async def ran_out(store: Store, now_ms: int) -> int:
    def job(tx: Transaction) -> int:
        due = bridge_log.due(tx, now_ms, 10)
        for entry in due:
            expire(tx, entry)
        return len(due)

    return await store.write(job)


async def test_latency_is_the_time_between_both_rows_in_milliseconds(store: Store) -> None:
    await asked(store)
    await answered(store, ASKED_MS + 1_234)
    assert await rows(store) == {"q": ("success", 0), "a": ("success", 1_234)}
    assert await ran_out(store, ASKED_MS + 60_000) == 0


async def test_a_question_runs_out_its_whole_life_after_it_was_sent(store: Store) -> None:
    await asked(store)
    assert await ran_out(store, ASKED_MS + 1_999) == 0
    assert await ran_out(store, ASKED_MS + 2_000) == 1
    assert await rows(store) == {"q": ("timeout", 2_000)}


async def test_an_end_by_our_own_daemon_does_not_answer_the_question(store: Store) -> None:
    await asked(store)
    await answered(store, ASKED_MS + 500, settles=False)
    assert await ran_out(store, ASKED_MS + 2_000) == 1
    assert await rows(store) == {"q": ("timeout", 2_000), "a": ("success", 500)}


async def test_answer_received_in_time_settles_despite_late_processing(store: Store) -> None:
    await asked(store)
    assert await ran_out(store, ASKED_MS + 2_000) == 1
    await answered(store, ASKED_MS + 1_999)
    assert await rows(store) == {"q": ("success", 0), "a": ("success", 1_999)}


async def test_an_answer_that_came_too_late_changes_nothing_of_its_question(store: Store) -> None:
    await asked(store)
    assert await ran_out(store, ASKED_MS + 2_000) == 1
    await answered(store, ASKED_MS + 2_000)
    assert await rows(store) == {"q": ("timeout", 2_000), "a": ("success", 2_000)}
