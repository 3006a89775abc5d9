"""Two agents that work over two daemons which may die at any moment: they ask again, with the same id, until they are answered."""

import http.client
import json
import random
import threading
import time
from collections.abc import Callable
from typing import Any

from tests.support.daemons import Daemon, HttpError
from tests.support.ledger import Ledger, unrest

PATIENCE = 60.0  # seconds that an agent goes on asking: more than any restart takes
_PAUSE = 0.02  # seconds between two tries
_LEASE = 4.0  # seconds: a lease whose answer was lost with the daemon is free again after that
_STEPS = ("update", "need-input", "say", "update")
_ENDS = ("complete", "fail", "cancel", "reject")


class Stopped(Exception):
    """The test is over, or failed elsewhere."""


class Caller:
    """One agent's way to its daemon."""

    def __init__(self, daemon: Daemon, ledger: Ledger, stop: threading.Event) -> None:
        self._daemon = daemon
        self._ledger = ledger
        self._stop = stop

    @property
    def name(self) -> str:
        return self._daemon.name

    def post(self, path: str, **body: Any) -> Any:
        """Until the daemon answers. Raises HttpError for a no, Stopped, and AssertionError when it takes too long."""
        deadline = time.monotonic() + PATIENCE
        while True:
            if self._stop.is_set():
                raise Stopped
            try:
                return self._daemon.request("POST", path, body)
            except (OSError, http.client.HTTPException, json.JSONDecodeError) as error:
                cause: Exception = error
            except HttpError as error:
                if error.status != 503:
                    raise
                cause = error
            assert time.monotonic() < deadline, f"{self.name} gave no answer to {path} in {PATIENCE} s: {cause!r}"
            self._ledger.asked_again()
            self._stop.wait(_PAUSE)

    def send(self, path: str, *, opening: bool = False, **body: Any) -> dict[str, Any]:
        """A send with an id of the agent's own, so that asking again is the same request."""
        answer: dict[str, Any] = self.post(path, **body)
        assert answer["id"] == body["id"]
        self._ledger.said_yes(self.name, answer, opening=opening)
        return answer


class Traffic:
    """`asker` opens works for `worker`, in the order of a seed; both sides read their inbox and answer.

    Three threads; what fails in one of them is raised by `check` and by `finish`.
    """

    def __init__(self, asker: Daemon, worker: Daemon, seed: int, *, window: int = 12) -> None:
        self.ledger = Ledger()
        self.asker = asker
        self.worker = worker
        self._rng = random.Random(seed)
        self._seed = seed
        self._window = window
        self._stop = threading.Event()
        self._enough = threading.Event()
        self._handled: set[str] = set()
        self._failure: BaseException | None = None
        self._opened = 0
        self._target = 0
        self._threads = [
            self._thread(self._open_works),
            self._thread(lambda: self._read(worker, self._carry_out)),
            self._thread(lambda: self._read(asker, self._listen)),
        ]

    @property
    def handled(self) -> int:
        """Works that the worker is done with so far, or that were canceled: the clock of a test."""
        return len(self._handled)

    def start(self) -> None:
        for thread in self._threads:
            thread.start()

    def check(self) -> None:
        """Raise what went wrong in a thread."""
        if self._failure is not None:
            raise self._failure

    def finish(self, at_least: int, timeout: float) -> None:
        """Open works until there are `at_least`, wait until everything has come to rest on both sides, and stop."""
        self._target = at_least
        self._enough.set()
        deadline = time.monotonic() + timeout
        try:
            self._threads[0].join(timeout)
            while rest := self._unrest():
                self.check()
                assert time.monotonic() < deadline, f"no rest after {timeout} s: {len(rest)} left, {rest[:5]}"
                self._stop.wait(0.25)
        finally:
            self.stop()
        self.check()

    def stop(self) -> None:
        self._stop.set()
        for thread in self._threads:
            thread.join(PATIENCE)
            assert not thread.is_alive()

    def _unrest(self) -> list[str]:
        try:
            return unrest(self.asker, self.worker)
        except (OSError, http.client.HTTPException, HttpError) as error:
            return [f"a daemon does not answer: {error!r}"]

    def _thread(self, main: Callable[[], None]) -> threading.Thread:
        def guarded() -> None:
            try:
                main()
            except Stopped:
                return
            except BaseException as error:
                self._failure = self._failure or error
                self._stop.set()

        return threading.Thread(target=guarded, daemon=True)

    # the asker

    def _open_works(self) -> None:
        caller = Caller(self.asker, self.ledger, self._stop)
        while not (self._enough.is_set() and self._opened >= self._target):
            if self._opened - self.handled >= self._window:
                self._stop.wait(_PAUSE)
                if self._stop.is_set():
                    raise Stopped
                continue
            self._open_one(caller, self._opened)
            self._opened += 1

    def _open_one(self, caller: Caller, number: int) -> None:
        rng = self._rng
        work_id = f"work_{self._seed}_{number}"
        canceled = rng.random() < 0.2
        steps = ["accept"] * (rng.random() < 0.8) + rng.sample(_STEPS, rng.randint(0, 3))
        plan = {"work": work_id, "steps": steps if canceled else [*steps, rng.choice(_ENDS)]}
        caller.send(
            "/v1/works",
            opening=True,
            to=self.worker.name,
            work_id=work_id,
            id=f"msg_{work_id}",
            text=json.dumps(plan),
            direct=rng.random() < 0.3,
        )
        if rng.random() < 0.4:
            self._step(caller, work_id, "say", "more", message="one thing more")
        if canceled:
            self._step(caller, work_id, "cancel", "end")
            self._handled.add(work_id)  # its opening may have left the inbox unread

    def _step(self, caller: Caller, work_id: str, verb: str, mark: str, **body: Any) -> bool:
        """One verb; False when the work has ended meanwhile."""
        try:
            caller.send(f"/v1/works/{work_id}/{verb}", id=f"msg_{work_id}_{caller.name}_{mark}", **body)
        except HttpError as error:
            assert error.answer["code"] == "work_closed", error
            return False
        return True

    # both

    def _read(self, daemon: Daemon, act: Callable[[Caller, dict[str, Any]], None]) -> None:
        caller = Caller(daemon, self.ledger, self._stop)
        while True:
            item = caller.post("/v1/inbox/next", wait=0.5, visibility=_LEASE)["item"]
            if item is None:
                continue
            act(caller, item["message"])
            try:
                caller.post(f"/v1/inbox/{item['seq']}/ack", lease=item["lease"])
            except HttpError as error:
                assert error.answer["code"] == "lease_lost", error  # it comes again; everything was done under its ids
                continue
            self.ledger.said_acked(daemon.name, item["message"]["id"])

    def _carry_out(self, caller: Caller, message: dict[str, Any]) -> None:
        if _is_notice(message):
            return
        text = message["envelope"]["body"]["text"]
        if not text.startswith("{"):
            return
        plan = json.loads(text)
        for number, verb in enumerate(plan["steps"]):
            body = {"result": {"n": number}} if verb == "complete" else {"message": f"step {number}"}
            if not self._step(caller, plan["work"], verb, str(number), **body):
                break
        self._handled.add(plan["work"])

    def _listen(self, caller: Caller, message: dict[str, Any]) -> None:
        _is_notice(message)


def _is_notice(message: dict[str, Any]) -> bool:
    """Whether the agent is told of a message of its own: one that came after the other side's end, for nothing is given up."""
    if message["direction"] == "in":
        return False
    assert message["delivery"] == "refused", f"a message was given up: {message}"
    return True
