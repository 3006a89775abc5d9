"""The worker of worker.py and clients of it, on daemons of the test."""

import pytest
from worker import worker

from aghbus.testing import Peer, Sandbox


@pytest.fixture
def ops(aghbus_sandbox: Sandbox) -> Peer:
    capabilities = {"patch-worker": ["test.run", "text.count"]}
    ops, patch_worker = aghbus_sandbox.peers("ops", "patch-worker", capabilities=capabilities)
    patch_worker.serve(worker)
    return ops


def test_counts_words(ops: Peer) -> None:
    work = ops.client().run("patch-worker", "one two three", intent="text.count", timeout=10)
    assert work.result == {"words": 3}


async def test_asks_for_the_branch(ops: Peer) -> None:
    client = ops.async_client()
    work = await client.run(
        to_capability="test.run", text="Run the smoke test", on_question=lambda _: "main", timeout=10
    )
    assert work.result == {"branch": "main", "passed": True, "attempt": 1}
