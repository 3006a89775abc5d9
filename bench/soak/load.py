"""The load of the soak: works opened, leased, accepted, traced and ended through the APIs of two daemons, at a bounded rate.

Every yes of a daemon is written into a ledger (tests/support/ledger.py), against which the books can be balanced afterwards.
"""

import contextlib
import json
import threading
import time
from collections.abc import Callable, Iterator
from typing import Any, Final

from tests.support.daemons import Daemon, UnixClient
from tests.support.ledger import Ledger, busy

PADDING = (
    "x" * 1500
)  # bytes in an opening and in a result: the size of a modest task, and enough to fill the retention bound
LEASE = 60.0  # seconds
WAIT = 1.0  # seconds that a consumer waits for a message, so that it can end
IDLE = 5.0  # seconds without an event after which a stream is resumed, so that it can end
_STEPS: Final[tuple[tuple[str, dict[str, Any]], ...]] = (
    ("accept", {}),
    ("update", {"message": "half of it"}),
    ("complete", {"result": {"output": PADDING}}),
)


class Caller:
    """One kept-alive connection to a daemon's API."""

    def __init__(self, daemon: Daemon) -> None:
        self._client = UnixClient(daemon.socket_path)

    def __call__(self, method: str, path: str, **body: Any) -> Any:
        payload = json.dumps(body) if method == "POST" else None
        self._client.request(method, path, payload, {"Content-Type": "application/json"})
        response = self._client.getresponse()
        answer = json.loads(response.read() or b"null")
        if response.status >= 400:
            raise RuntimeError(f"{method} {path}: {response.status} {answer}")
        return answer


class Load:
    """Threads around two daemons. `taken` holds (monotonic end, seconds from request to the end seen by the opener)."""

    def __init__(self, ops: Daemon, worker: Daemon, rate: float, consumers: int) -> None:
        self.ops = ops
        self.worker = worker
        self.taken: list[tuple[float, float]] = []
        self.errors: list[str] = []
        self.ledger = Ledger()
        self.events = 0
        self._rate = rate
        self._open: dict[str, float] = {}
        self._end = threading.Event()
        self._drained = threading.Event()
        roles = [self._opener, self._reader, self._watcher, self._clerk, *[self._consumer] * consumers]
        self._threads = [threading.Thread(target=self._guarded, args=(role,), daemon=True) for role in roles]

    @property
    def opened(self) -> int:
        """Works that were opened."""
        return len(self.ledger.opened)

    @property
    def in_flight(self) -> int:
        """Works that were opened and have not ended."""
        return len(self._open)

    def start(self) -> None:
        """Begin."""
        for thread in self._threads:
            thread.start()

    def stop(self, timeout: float) -> None:
        """Open nothing further, wait until what is open has ended and the inboxes are empty, and end the threads."""
        self._end.set()
        deadline = time.monotonic() + timeout
        while (self._open or busy(self.ops, self.worker)) and time.monotonic() < deadline:
            time.sleep(0.1)
        self._drained.set()
        for thread in self._threads:
            thread.join(2 * IDLE)

    def _guarded(self, role: Callable[[], None]) -> None:
        try:
            role()
        except Exception as error:
            if not self._drained.is_set():
                self.errors.append(f"{role.__name__}: {error!r}")

    def _opener(self) -> None:
        call = Caller(self.ops)
        due = time.monotonic()
        number = 0
        while not self._end.is_set():
            number += 1
            work_id = f"work_soak_{number}"
            self._open[work_id] = time.monotonic()
            text = f"{number} {PADDING}"
            bounds = {"accept_within": 60, "progress_within": 60}
            answer = call("POST", "/v1/works", to="worker", text=text, work_id=work_id, **bounds)
            self.ledger.said_yes("ops", answer, opening=True)
            due += 1 / self._rate
            self._end.wait(max(0.0, due - time.monotonic()))

    def _consumer(self) -> None:
        call = Caller(self.worker)
        while not self._drained.is_set():
            item = call("POST", "/v1/inbox/next", wait=WAIT, visibility=LEASE)["item"]
            if item is None:
                continue
            work_id = item["message"]["work_id"]
            if item["message"]["kind"] == "say" and work_id:
                for verb, body in _STEPS:
                    self.ledger.said_yes("worker", call("POST", f"/v1/works/{work_id}/{verb}", **body))
            call("POST", f"/v1/inbox/{item['seq']}/ack", lease=item["lease"])
            self.ledger.said_acked("worker", item["message"]["id"])

    def _clerk(self) -> None:
        """Takes what comes back to the opener's inbox, as an agent would."""
        call = Caller(self.ops)
        while not self._drained.is_set():
            item = call("POST", "/v1/inbox/next", wait=WAIT, ack=True)["item"]
            if item is not None:
                self.ledger.said_acked("ops", item["message"]["id"])

    def _watcher(self) -> None:
        """Sees the ends of works on the opener's stream."""
        for event in self._stream(self.ops):
            change = event.get("work") or {}
            started = self._open.get(change.get("work_id", ""))
            if started is not None and change.get("after") == "completed":
                now = time.monotonic()
                self.taken.append((now, now - started))
                del self._open[change["work_id"]]

    def _reader(self) -> None:
        """Somebody who only looks at the other side's stream."""
        for _ in self._stream(self.worker):
            self.events += 1

    def _stream(self, daemon: Daemon) -> Iterator[dict[str, Any]]:
        """All events, resumed after a while without one."""
        seq = 0
        while not self._drained.is_set():
            with contextlib.closing(daemon.events(f"?since={seq}", timeout=IDLE)) as events:
                try:
                    for event in events:
                        seq = event["seq"]
                        yield event
                        if self._drained.is_set():
                            return
                except TimeoutError:
                    continue
