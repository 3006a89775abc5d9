"""Python calls and source files of one message: `python -m bench.micro.hops [-o json] [--files]`.

Four cases, each one message at rest in a real `aghd run` (default settings, uvloop) on a real nats-server, whose peers are
contacts:

- `receive`: a say of 614 bytes arrives from NATS; the daemon commits it and publishes the acknowledgement.
- `send`: `POST /v1/messages` with a say; the daemon commits it, answers, and publishes the envelope.
- `work`: `POST /v1/works`; the daemon commits the work, answers, and publishes the opening message.
- `step`: `POST /v1/works/ID/update` for a work that a peer has opened; the daemon commits the trace, answers, and publishes it.

Each case has two rows. The first ends when the last byte of the result is written: that of the acknowledgement, or of the HTTP
answer and the publication, which a commit precedes. The second, `CASE, after`, is what the daemon does later. The receivers of
`send`, `work` and `step` acknowledge nothing, so it is the broker's PONG, the record of the publication, and its commit.

The daemon runs in its own process by its usual entry point. The process counts the `call` events of `sys.setprofile` in the
thread of the event loop: every start of a Python function, and every resumption of a generator or a coroutine. Calls of C
functions and calls in other threads do not count. Counting starts while the daemon is idle and ends `--settle` seconds
after the last byte of the message reached the client. The second row begins some milliseconds after that byte: by then the
daemon has done what belongs to the answer, and the PING that confirms a publication follows later. A sample that a timer of
the daemon falls into has more calls; the median of `--rounds` samples after `--warm-up` messages leaves it out.

`calls` and `files` count functions and distinct source files of this project; `all_calls` and `all_files` include the
standard library and dependencies. `--files` lists the calls of each file in the median sample.
"""

import argparse
import collections
import contextlib
import json
import os
import signal
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator
from types import CodeType, FrameType
from typing import Any, Final, Self

from aghbus.protocol.agh.nats.names import inbox
from bench.harness.envelopes import EnvelopeMaker
from bench.harness.processes import LOAD_FLAGS, ROOT, broker, home
from bench.harness.wire import RawApi, RawNats, frame
from tests.support.daemons import Daemon, wait_for

Counts = dict[str, int]
"""Calls by source file; files of this project relative to its root."""

_PACKAGES: Final = tuple(f"{name}/" for name in ("host", "protocol", "store", "daemon"))
_ANSWERED: Final = (
    0.004  # seconds from the last byte until nothing of the answer is left to do; the PING comes after 0.02
)
_TEXT: Final = "x" * 320  # gives an envelope of about 614 bytes


class Recorder:
    """In the daemon's process: counts calls in the main thread from SIGRTMIN to SIGUSR2. Each signal prints those since the one
    before as a JSON line."""

    def __init__(self) -> None:
        self._codes: collections.Counter[CodeType] = collections.Counter()
        signal.signal(signal.SIGRTMIN, self._start)
        signal.signal(signal.SIGUSR2, self._stop)

    def _start(self, *_: object) -> None:
        self._stop()
        sys.setprofile(self._event)

    def _event(self, frame: FrameType, kind: str, _: object) -> None:
        if kind == "call":
            self._codes[frame.f_code] += 1

    def _stop(self, *_: object) -> None:
        sys.setprofile(None)
        counts: collections.Counter[str] = collections.Counter()
        for code, number in self._codes.items():
            if code.co_filename != __file__:
                counts[code.co_filename.removeprefix(f"{ROOT}/")] += number
        self._codes.clear()
        os.write(1, json.dumps(counts).encode() + b"\n")  # not print: the next signal may interrupt it


class CountedDaemon(Daemon):
    """A daemon whose calls are counted."""

    def start(self, *, wait: bool = True) -> Self:
        """Start it under a Recorder, which reports on standard output."""
        arguments = ["--daemon", "run", "--name", self.name, "--quiet", *self.args]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "bench.micro.hops", *arguments],
                cwd=ROOT,
                env=self.env,
                stdin=subprocess.DEVNULL,
                stdout=subprocess.PIPE,
                stderr=log,
                start_new_session=True,
            )
        if wait:
            self.wait_ready()
        return self

    def count(self, act: Callable[[], None], settle: float) -> tuple[Counts, Counts]:
        """The calls from the start of `act` until its end, and from then on until `settle` seconds after it."""
        self._signal(signal.SIGRTMIN)
        act()
        time.sleep(_ANSWERED)
        first = self._signal(signal.SIGRTMIN)
        time.sleep(settle)
        return first, self._signal(signal.SIGUSR2)

    def _signal(self, number: signal.Signals) -> Counts:
        assert isinstance(self.process, subprocess.Popen) and self.process.stdout is not None
        os.kill(self.process.pid, number)
        answer: Counts = json.loads(self.process.stdout.readline())
        return answer


@contextlib.contextmanager
def receiving(url: str, daemon: Daemon) -> Iterator[Callable[[], None]]:
    """A say from a peer, until its acknowledgement arrives."""
    maker = EnvelopeMaker("caller", daemon.name)
    reply = f"{inbox(maker.sender, 'ack')}.{time.time_ns()}"
    with RawNats(url) as nats:
        nats.subscribe(reply)

        def act() -> None:
            nats.socket.sendall(frame(maker.subject, maker.say(), reply))
            _one_message(nats)

        yield act


@contextlib.contextmanager
def requesting(
    url: str, daemon: Daemon, path: str, ask: dict[str, Any], to: str = "absent"
) -> Iterator[Callable[[], None]]:
    """A request on the API, until its answer and the envelope published to `to` have arrived."""
    api = RawApi(daemon.socket_path)
    with RawNats(url) as nats:
        nats.subscribe(EnvelopeMaker(daemon.name, to).subject)

        def act() -> None:
            api.call("POST", path, ask)
            _one_message(nats)

        yield act


@contextlib.contextmanager
def stepping(url: str, daemon: Daemon) -> Iterator[Callable[[], None]]:
    """A step of a work that a peer has opened, until its answer and the published trace have arrived."""
    maker, work_id = EnvelopeMaker("caller", daemon.name), f"work_{time.time_ns()}"
    with RawNats(url) as nats:
        nats.socket.sendall(frame(maker.subject, maker.opening(work_id, "thread_hops")))
        wait_for(lambda: daemon.state_of(work_id) == "submitted", 20, "the work")
    with requesting(url, daemon, f"/v1/works/{work_id}/update", {"message": _TEXT}, "caller") as act:
        yield act


def _one_message(nats: RawNats) -> None:
    while not nats.receive():
        pass


CASES: Final[dict[str, Callable[[str, Daemon], contextlib.AbstractContextManager[Callable[[], None]]]]] = {
    "receive": receiving,
    "send": lambda url, daemon: requesting(
        url,
        daemon,
        "/v1/messages",
        {"to": "absent", "kind": "say", "thread_id": "thread_hops", "body": {"text": _TEXT}},
    ),
    "work": lambda url, daemon: requesting(url, daemon, "/v1/works", {"to": "absent", "text": _TEXT}),
    "step": stepping,
}


def measure(case: str, *, warm_up: int, rounds: int, settle: float) -> list[tuple[Counts, Counts]]:
    """The samples of both rows of one case, in a daemon of its own."""
    with (
        broker() as server,
        home() as folder,
        CountedDaemon(folder, "ops", "--nats", server.url, *LOAD_FLAGS, "--trust-admit", "all") as daemon,
        CASES[case](server.url, daemon) as act,
    ):
        for _ in range(warm_up):
            act()
        time.sleep(settle)
        return [daemon.count(act, settle) for _ in range(rounds)]


def summary(samples: list[Counts]) -> dict[str, Any]:
    """Medians of the samples, and the calls of each file in the sample with the median number of calls."""
    ours = [{path: number for path, number in one.items() if path.startswith(_PACKAGES)} for one in samples]
    calls = [sum(one.values()) for one in ours]
    middle = sorted(range(len(samples)), key=calls.__getitem__)[len(samples) // 2]
    return {
        "calls": calls[middle],
        "files": statistics.median_low([len(one) for one in ours]),
        "all_calls": statistics.median_low([sum(one.values()) for one in samples]),
        "all_files": statistics.median_low([len(one) for one in samples]),
        "calls_range": [min(calls), max(calls)],
        "calls_by_file": dict(sorted(samples[middle].items(), key=lambda item: -item[1])),
    }


def main() -> int:
    """Measure the cases and print them."""
    if sys.argv[1:2] == ["--daemon"]:
        from aghbus.daemon.main import entry

        Recorder()
        return entry(sys.argv[2:])
    parser = argparse.ArgumentParser(
        prog="python -m bench.micro.hops", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    parser.add_argument("cases", nargs="*", metavar="CASE", help=f"some of: {', '.join(CASES)} (default: all)")
    parser.add_argument("-o", "--output", choices=("human", "json"), default="human", help="form of the output")
    parser.add_argument("--files", action="store_true", help="list the calls of each file")
    parser.add_argument("--warm-up", type=int, default=200, help="messages before the first sample")
    parser.add_argument("--rounds", type=int, default=41, help="samples")
    parser.add_argument("--settle", type=float, default=0.05, help="seconds of a sample after the last byte")
    options = parser.parse_args()
    if unknown := set(options.cases) - set(CASES):
        parser.error(f"unknown: {', '.join(sorted(unknown))}; choose from {', '.join(CASES)}")
    found: dict[str, dict[str, Any]] = {}
    for case in options.cases or CASES:
        samples = measure(case, warm_up=options.warm_up, rounds=options.rounds, settle=options.settle)
        found[case] = summary([first for first, _ in samples])
        found[f"{case}, after"] = summary([after for _, after in samples])
    if options.output == "json":
        print(json.dumps(found, indent=2))
        return 0
    print(f"{'':16}{'calls':>8}{'files':>8}{'all calls':>12}{'all files':>12}")
    for case, one in found.items():
        print(f"{case:16}{one['calls']:>8}{one['files']:>8}{one['all_calls']:>12}{one['all_files']:>12}")
        for path, number in one["calls_by_file"].items() if options.files else ():
            print(f"{number:>18}  {path}")
    return 0


if __name__ == "__main__":
    sys.exit(main())
