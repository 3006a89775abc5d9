"""What traces cost a daemon: `python -m bench.micro.tracing [--rounds N]`.

Pairs of daemons without traces, with one of a hundred (`parentbased_traceidratio`) and with all run side by side, each
on a broker of its own, and get the same load in turn: says sent from the API, says received, and whole works between
the two, whose envelopes carry the context. Printed are microseconds of processor time of the daemons for each, medians
over the rounds, and the medians of the rounds' ratios to the daemons without traces. A collector takes the spans; its
time is not counted.
"""

import argparse
import contextlib
import signal
import statistics
import sys
from collections.abc import Callable, Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from threading import Thread
from typing import Any, Final

from bench.harness.load import receive_rate, send_rate, work_times
from bench.harness.processes import LOAD_FLAGS, broker, cpu_seconds, home, pid_of, run_all
from tests.support.daemons import Daemon, wait_for
from tests.support.natsutil import NatsServer

_OFF: Final = "off"
_SAMPLERS: Final = {
    _OFF: None,
    "1 %": {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.01"},
    "all": {"OTEL_TRACES_SAMPLER": "parentbased_always_on"},
}
_MESSAGES: Final = 2_000
_WORKS: Final = 150
_CONNECTIONS: Final = 64
_FLIGHT: Final = 16
Pair = tuple[Daemon, Daemon]


@contextlib.contextmanager
def collector() -> Iterator[str]:
    """The URL of what takes spans, and forgets them."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            self.rfile.read(int(self.headers["content-length"]))
            self.send_response(200)
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    Thread(target=server.serve_forever, daemon=True).start()
    try:
        yield f"http://127.0.0.1:{server.server_address[1]}"
    finally:
        server.shutdown()
        server.server_close()


def spent(pair: Pair, amount: int, load: Callable[[], object]) -> float:
    """Microseconds of processor time of both daemons for each of `amount`."""
    pids = [pid_of(one) for one in pair]
    before = sum(map(cpu_seconds, pids))
    load()
    return (sum(map(cpu_seconds, pids)) - before) / amount * 1e6


def measure(rounds: int) -> dict[str, dict[str, list[float]]]:
    """The values of each load by kind of daemon; a first round warms up."""
    found: dict[str, dict[str, list[float]]] = {}
    with collector() as url, contextlib.ExitStack() as stack:
        pairs: dict[str, tuple[NatsServer, Pair]] = {}
        for kind, sampler in _SAMPLERS.items():
            env = {} if sampler is None else {"OTEL_EXPORTER_OTLP_ENDPOINT": url, **sampler}
            server, folder = stack.enter_context(broker()), stack.enter_context(home())
            flags = ("--nats", server.url, *LOAD_FLAGS)
            ops, worker = Daemon(folder, "ops", *flags, env=env), Daemon(folder, "worker", *flags, env=env)
            run_all(stack, [ops, worker])
            wait_for(lambda: ops.knows("worker") and worker.knows("ops"), 30, "the daemons to meet")  # noqa: B023
            pairs[kind] = (server, (ops, worker))
        for turn in range(rounds + 1):
            for kind, (server, pair) in list(pairs.items())[:: -1 if turn % 2 else 1]:
                ops, worker = pair
                loads: dict[str, tuple[int, Callable[[], object]]] = {
                    "send": (_MESSAGES, lambda: send_rate(server, ops, _MESSAGES, _CONNECTIONS)),  # noqa: B023
                    "receive": (_MESSAGES, lambda: receive_rate(server, worker, _MESSAGES)),  # noqa: B023
                    "work": (_WORKS, lambda: work_times(ops, worker, _WORKS, _FLIGHT)),  # noqa: B023
                }
                for name, (amount, load) in loads.items():
                    value = spent(pair, amount, load)
                    if turn:
                        found.setdefault(name, {}).setdefault(kind, []).append(value)
    return found


def main() -> None:
    """Print the table."""
    parser = argparse.ArgumentParser(prog="python -m bench.micro.tracing", description=__doc__)
    parser.add_argument("--rounds", type=int, default=5)
    rounds = parser.parse_args().rounds
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, so that brokers and daemons end too
    found = measure(rounds)
    print(f"{'µs of processor time':24}" + "".join(f"{kind:>20}" for kind in _SAMPLERS))
    for name, values in found.items():
        cells = [f"{statistics.median(values[_OFF]):20.0f}"]
        for kind in list(_SAMPLERS)[1:]:
            ratio = statistics.median(a / b for a, b in zip(values[kind], values[_OFF], strict=True))
            cells.append(f"{statistics.median(values[kind]):13.0f} × {ratio:4.2f}")
        print(f"{name:24}" + "".join(cells))


if __name__ == "__main__":
    main()
