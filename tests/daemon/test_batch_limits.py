"""A batch of messages is limited exactly like its messages one by one."""

import asyncio
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from hypothesis import given, settings
from hypothesis import strategies as st

from aghbus.daemon.config.settings import INBOX_BYTES_MIN, InboxSettings, ReceiveSettings
from tests.support.receiving import bench

Sent = tuple[str, int, int]
"""Sender, characters of the text, seconds until it expires."""

messages = st.lists(
    st.tuples(
        st.sampled_from(["bob", "carol", "dave", "erin", "known"]),
        st.sampled_from([5, 60_000, 250_000]),
        st.sampled_from([600, 6 * 86_400]),
    ),
    min_size=1,
    max_size=40,
)


async def accepted(batches: Sequence[Sequence[Sent]], capacity: int, remembered: int) -> list[tuple[str, int]]:
    """Sender and size, in ten thousands of bytes, of each message that was stored, when these batches were offered."""
    limits: dict[str, Any] = {
        "inbox": InboxSettings(capacity=capacity, max_bytes=INBOX_BYTES_MIN),
        "receive": ReceiveSettings(remembered=remembered, queue=100_000),
    }
    with tempfile.TemporaryDirectory() as folder:
        async with bench(Path(folder), **limits) as desk:
            await desk.admit("known")
            for batch in batches:
                for sender, size, life in batch:
                    desk.take(desk.say(sender, body={"text": "x" * size}, expires_at=int(time.time()) + life))
                await desk.commit()
            rows = await desk.store.reader.execute_fetchall(
                "SELECT sender, length(raw) FROM envelopes WHERE direction = 'in' ORDER BY seq"
            )
            return [(sender, size // 10_000) for sender, size in rows]


@settings(max_examples=60, deadline=None)
@given(messages, st.integers(1, 120), st.integers(1, 120))
def test_a_batch_is_limited_like_its_messages_one_by_one(sent: list[Sent], capacity: int, remembered: int) -> None:
    taken = [sent[0], *sorted(sent[1:], key=lambda one: one[0] != "known")]  # contacts first
    one_by_one = asyncio.run(accepted([[one] for one in taken], capacity, remembered))
    assert asyncio.run(accepted([sent], capacity, remembered)) == one_by_one
