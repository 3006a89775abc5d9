"""No job that is ready stays untaken while a worker for it idles, whatever goes wrong with jobs, workers and the daemon."""

import json
import random
import subprocess
import sys
import time
from collections import defaultdict
from typing import Final

import pytest

from aghbus.client.errors import ClientError
from aghbus.client.work.feed import POLL
from aghbus.protocol.api.inbox import InboxItem
from aghbus.protocol.api.works import Work
from tests.support.client_pair import Pair
from tests.support.crashes import seed_of
from tests.support.daemons import STALL, wait_for

WORKERS: Final = 2
WORKS: Final = 8
LEASE: Final = 2.0
SETTLED: Final = 4.0
"""Seconds that a process has to start, and to find its daemon again."""
WRONG: Final = ("release", "retry", "die", "lose")
GIVEN_UP: Final = "given up after 5 attempts"


class Workers:
    """So many worker processes, each replaced when it has died; `since` is when the set was last changed."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._running: list[subprocess.Popen[bytes]] = []
        self.since = 0.0

    def keep(self) -> None:
        """Replace those that have died."""
        alive = [one for one in self._running if one.poll() is None]
        while len(alive) < WORKERS:
            arguments = [str(self._pair.worker.socket_path), str(LEASE)]
            alive.append(subprocess.Popen([sys.executable, "-m", "tests.support.unsteady_worker", *arguments]))
            self.since = time.monotonic()
        self._running = alive

    def end(self) -> None:
        for one in self._running:
            one.kill()
            one.wait(20)


class Idleness:
    """How long each ready job has waited beside idle workers."""

    def __init__(self, pair: Pair) -> None:
        self._pair = pair
        self._looked = time.monotonic()
        self._waited: dict[tuple[int, int], float] = {}  # by sequence and attempts

    def look(self, since: float) -> None:
        """Workers and daemon are as they are since the monotonic second `since`."""
        before, self._looked = self._looked, time.monotonic()
        try:
            items = self._pair.working.inbox(states=frozenset({"ready", "leased"})).items
        except ClientError:
            items = []
        idle = sum(item.state == "leased" for item in items) < WORKERS and self._looked - since > SETTLED
        passed, ready = min(self._looked - before, STALL), [item for item in items if _is_ready(item)]
        waited = {(item.seq, item.attempts): passed * idle for item in ready}
        self._waited = {key: self._waited.get(key, 0.0) + more for key, more in waited.items()}
        assert max(self._waited.values(), default=0.0) < POLL + 2, self._waited


def _is_ready(item: InboxItem) -> bool:
    return item.state == "ready" and item.available_ms <= time.time() * 1000


def chaos(pair: Pair, workers: Workers, rng: random.Random) -> list[Work]:
    """Open works, kill the daemon in between, and look on until all have ended."""
    idleness, opened, kills, at = Idleness(pair), list[str](), rng.randint(1, 2), time.monotonic()
    while True:
        workers.keep()
        if len(opened) < WORKS:
            text = json.dumps(rng.choices(WRONG, k=rng.randint(0, 3)))
            found = pair.asking.open_work(to="worker", text=text, reactions="none", intent="test.run").work_id
            assert found is not None
            opened.append(found)
        elif kills and time.monotonic() > at + 2:
            pair.worker.kill()
            pair.worker.start()
            kills, at = kills - 1, time.monotonic() + rng.uniform(0, 5)
            workers.since = time.monotonic()
        idleness.look(workers.since)
        works = [pair.asking.work(work_id).work for work_id in opened]
        if not kills and len(opened) == WORKS and all(work.state in ("completed", "failed") for work in works):
            return works
        time.sleep(0.05)


@pytest.mark.parametrize("round_", range(2))
@pytest.mark.timeout(150)
def test_no_ready_job_stays_untaken_while_a_worker_idles(pair: Pair, round_: int) -> None:
    rng, workers = random.Random(seed_of(round_)), Workers(pair)
    try:
        works = chaos(pair, workers, rng)
        ended = defaultdict[str, list[str]](list)
        for work in works:
            ended[work.state].append(work.message or "")
        assert all(message.startswith(GIVEN_UP) for message in ended["failed"]), ended
        assert len(ended["completed"]) >= WORKS / 2
        wait_for(
            lambda: not pair.working.inbox(states=frozenset({"ready", "leased"})).items, 30, "the acknowledgements"
        )
    finally:
        workers.end()
