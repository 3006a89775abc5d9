"""Killing daemons and brokers while traffic flows, and raising them again."""

import random
import signal
import threading
import time
from collections.abc import Callable, Iterable, Sequence
from typing import Protocol

from aghbus.daemon.base.failpoints import VARIABLE
from tests.support.daemons import ADMIT_ALL, Daemon, Home
from tests.support.ledger import balance
from tests.support.traffic import Traffic

FIRES_WITHIN = 90.0  # seconds of traffic in which an armed point must have been passed often enough


class Killer(Protocol):
    """Something that kills while traffic flows, in a thread or task of its own."""

    failure: BaseException | None

    @property
    def done(self) -> bool:
        """Whether it has killed all that it was to kill, or failed."""

    def start(self) -> None:
        """Begin."""


class Keeper:
    """Keeps one daemon running through a list of deaths: armed with each point in turn, raised again when it has fired.

    With `rest` it runs unarmed for a moment in between (until it is ready). After the last death it runs unarmed.
    """

    def __init__(self, daemon: Daemon, deaths: Sequence[str], *, rest: bool = False) -> None:
        """`deaths` are values of AGHD_FAILPOINT."""
        self.daemon = daemon
        self.fired: list[str] = []
        self.failure: BaseException | None = None
        self._deaths = deaths
        self._rest = rest
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            for death in self._deaths:
                self._die(death)
            self.daemon.env.pop(VARIABLE, None)
            self.daemon.start()
        except BaseException as error:
            self.failure = error

    def _die(self, death: str) -> None:
        if self._rest:
            self.daemon.env.pop(VARIABLE, None)
            self.daemon.start().kill()
        self.daemon.env[VARIABLE] = death
        self.daemon.start(wait=False)
        assert self.daemon.process is not None
        code = self.daemon.process.wait(FIRES_WITHIN)
        assert code == -signal.SIGKILL, (
            f"{self.daemon.name} ended with {code} at {death}:\n{self.daemon.log.read_text()}"
        )
        self.fired.append(death)


class Hitman:
    """Kills something `times` times, at moments that a seed chooses on the clock of the traffic."""

    def __init__(self, traffic: Traffic, kill: Callable[[], None], times: int, rng: random.Random) -> None:
        self.kills = 0
        self.failure: BaseException | None = None
        self._traffic = traffic
        self._kill = kill
        self._gaps = [rng.randint(1, 8) for _ in range(times)]
        self._thread = threading.Thread(target=self._run, daemon=True)

    @property
    def done(self) -> bool:
        return not self._thread.is_alive()

    def start(self) -> None:
        self._thread.start()

    def _run(self) -> None:
        try:
            for gap in self._gaps:
                self._wait(self._traffic.handled + gap)
                self._kill()
                self.kills += 1
        except BaseException as error:
            self.failure = error

    def _wait(self, handled: int) -> None:
        deadline = time.monotonic() + FIRES_WITHIN
        while self._traffic.handled < handled:
            self._traffic.check()
            assert time.monotonic() < deadline, f"the traffic stands still at {self._traffic.handled} works"
            time.sleep(0.005)


def run_until_done(traffic: Traffic, killers: Sequence[Killer], *, at_least: int, timeout: float) -> None:
    """Let the traffic flow until all killing is done and `at_least` works are opened, and come to rest."""
    deadline = time.monotonic() + timeout
    try:
        for killer in killers:
            killer.start()
        traffic.start()
        while not all(killer.done for killer in killers):
            traffic.check()
            assert time.monotonic() < deadline, f"still killing after {timeout} s"
            time.sleep(0.02)
        for killer in killers:
            if killer.failure is not None:
                raise killer.failure
        traffic.finish(at_least, max(1.0, deadline - time.monotonic()))
    finally:
        traffic.stop()


QUICK = (*ADMIT_ALL, "--retry-first", "100ms", "--retry-ceiling", "500ms")


def pair_of(home: Home, *args: str) -> tuple[Daemon, Daemon]:
    """The asker's daemon and the worker's."""
    return Daemon(home, "ops", *QUICK, *args), Daemon(home, "worker", *QUICK, *args)


def seed_of(*parts: object) -> int:
    """A new seed, printed with what it is for."""
    seed = random.randrange(1_000_000)
    print("\nseed", seed, *parts, end=" ")
    return seed


def stop(daemons: Iterable[Daemon]) -> None:
    for daemon in daemons:
        if daemon.process is not None:
            daemon.stop()


def die_at_every_point(
    pair: tuple[Daemon, Daemon], points: Sequence[str], seed: int, *, latest: int, at_least: int, timeout: float
) -> dict[str, int]:
    """Both daemons die at every point, each time when it is passed for the n-th time, n up to `latest`; the balance."""
    rng = random.Random(seed)
    traffic = Traffic(*pair, seed)
    keepers = []
    for daemon in pair:
        deaths = [f"{point}:{rng.randint(1, latest)}" for point in points]
        rng.shuffle(deaths)
        keepers.append(Keeper(daemon, deaths))
    try:
        run_until_done(traffic, keepers, at_least=at_least, timeout=timeout)
        assert [len(keeper.fired) for keeper in keepers] == [len(points)] * 2
        return balance(traffic.ledger, *pair)
    finally:
        stop(pair)
