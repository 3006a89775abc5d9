"""Real daemons on their own broker under steady load, and whether anything grows: `python -m bench.soak --minutes 10`.

Two daemons, the embedded broker, works opened at a bounded rate by one and carried out by several competing consumers of the
other, leases, deadlines, two streams attached; retention bound to its smallest size, so that the stores have to follow it. Every
ten seconds memory, file handles and file sizes are read. Printed are the first and the last third and their ratio, which is what
carries over to another machine; bench/results/ gets all samples as JSON and a table by the minute.

With `--balance` retention removes nothing, and at the end the books of both daemons are compared with each other and with
what the daemons said to the load: nothing lost, nothing doubled, nothing left over, the same works on both sides.
"""

import argparse
import json
import statistics
import tempfile
import time
from pathlib import Path
from typing import Any

from bench.soak.load import Load
from tests.support.daemons import Daemon, Home, wait_for
from tests.support.ledger import balance, unrest

RESULTS = Path(__file__).parents[1] / "results"
INTERVAL = 10.0  # seconds between two samples
WARM_UP = 30.0  # seconds that are not counted: caches, the first growth of the heap
RETENTION = "16MiB"  # the smallest that can be configured
UNBOUNDED = "2000GiB"
MIB = 1 << 20


def rss(pid: int) -> float:
    """MiB of memory that a process holds."""
    for line in Path(f"/proc/{pid}/status").read_text().splitlines():
        if line.startswith("VmRSS:"):
            return int(line.split()[1]) / 1024
    raise RuntimeError(f"process {pid} has no VmRSS")


def size(path: Path) -> float:
    """MiB of a file; 0 when there is none."""
    return path.stat().st_size / MIB if path.exists() else 0.0


def of_process(pid: int, name: str) -> dict[str, float]:
    """Memory and file handles."""
    return {f"{name}_rss": rss(pid), f"{name}_fds": sum(1 for _ in Path(f"/proc/{pid}/fd").iterdir())}


def sample(load: Load, broker: int) -> dict[str, float]:
    """Everything that could grow, now."""
    taken: dict[str, float] = {"in_flight": load.in_flight, **of_process(broker, "broker")}
    for daemon in (load.ops, load.worker):
        assert daemon.process is not None
        taken |= of_process(daemon.process.pid, daemon.name)
        taken[f"{daemon.name}_store"] = size(daemon.store_path)
        taken[f"{daemon.name}_wal"] = size(daemon.store_path.with_name("store.db-wal"))
    return taken


def latencies(load: Load, since: float, until: float) -> dict[str, float]:
    """Works ended in a span of monotonic time: how many, and milliseconds from opening to end."""
    found = sorted(1000 * seconds for at, seconds in tuple(load.taken) if since <= at < until)
    if len(found) < 2:
        return {"ended": len(found)}
    cuts = statistics.quantiles(found, n=100)
    return {"ended": len(found), "p50_ms": cuts[49], "p99_ms": cuts[98]}


def observe(load: Load, broker: int, seconds: float) -> list[dict[str, float]]:
    """A sample every INTERVAL for so long."""
    samples: list[dict[str, float]] = []
    start = before = time.monotonic()
    while before - start < seconds and not load.errors:
        time.sleep(max(0.0, before + INTERVAL - time.monotonic()))
        now = time.monotonic()
        samples.append({"at": now - start, **latencies(load, before, now), **sample(load, broker)})
        before = now
    return samples


def thirds(samples: list[dict[str, float]]) -> dict[str, dict[str, float]]:
    """Medians of the first and the last third by name, and the ratio of last to first."""
    count = max(1, len(samples) // 3)
    found = {}
    for name in sorted({key for one in samples for key in one} - {"at"}):
        first, last = (
            statistics.median([one[name] for one in part if name in one] or [0.0])
            for part in (samples[:count], samples[-count:])
        )
        found[name] = {
            "first": round(first, 2),
            "last": round(last, 2),
            "ratio": round(last / first, 3) if first else 0.0,
        }
    return found


def table(samples: list[dict[str, float]], names: tuple[str, ...]) -> str:
    """A Markdown table, one row a minute."""
    lines = ["| minute | " + " | ".join(names) + " |", "|---" * (len(names) + 1) + "|"]
    minutes = sorted({int(one["at"] // 60) for one in samples})
    for minute in minutes:
        rows = [one for one in samples if int(one["at"] // 60) == minute]
        cells = [f"{statistics.median([one[name] for one in rows if name in one] or [0.0]):.1f}" for name in names]
        lines.append(f"| {minute} | " + " | ".join(cells) + " |")
    return "\n".join(lines)


def write(samples: list[dict[str, float]], summary: dict[str, Any]) -> None:
    """bench/results/soak.json and soak.md."""
    RESULTS.mkdir(exist_ok=True)
    (RESULTS / "soak.json").write_text(json.dumps({"summary": summary, "samples": samples}, indent=1))
    names = ("ended", "p50_ms", "p99_ms", *sorted(set(samples[0]) - {"at", "ended", "p50_ms", "p99_ms"}))
    lines = [f"| {name} | {row['first']} | {row['last']} | {row['ratio']} |" for name, row in summary["thirds"].items()]
    compared = "\n".join(["| what | first third | last third | ratio |", "|---|---|---|---|", *lines])
    head = f"{summary['opened']} works in {summary['minutes']} min; memory and files in MiB, times in milliseconds."
    (RESULTS / "soak.md").write_text(f"{head}\n\n{compared}\n\n{table(samples, names)}\n")
    print(f"{head}\n\n{compared}")


def balanced(load: Load) -> dict[str, float]:
    """The figures of the ledger, and the seconds that they took. Fails when the books do not balance."""
    wait_for(lambda: not unrest(load.ops, load.worker), 60, "the last messages to be answered")
    began = time.monotonic()
    figures = balance(load.ledger, load.ops, load.worker)
    return {**figures, "seconds": round(time.monotonic() - began, 1)}


def main() -> None:
    """Run, write, and fail when the load met an error or did not come to its end."""
    arguments = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    arguments.add_argument("--minutes", type=float, default=10.0)
    arguments.add_argument("--rate", type=float, default=20.0, help="works opened in a second")
    arguments.add_argument("--consumers", type=int, default=4)
    arguments.add_argument("--balance", action="store_true", help="keep all messages, and balance the books at the end")
    options = arguments.parse_args()
    with tempfile.TemporaryDirectory(prefix="soak-") as folder:
        home = Home(Path(folder))
        bound = ("--store-retention-size", UNBOUNDED if options.balance else RETENTION)
        with Daemon(home, "worker", *bound) as worker, Daemon(home, "ops", *bound) as ops:
            wait_for(lambda: ops.knows("worker") and worker.knows("ops"), 30, "the daemons to meet")
            broker = json.loads((home.root / "state" / "aghbus" / "broker" / "broker.json").read_text())["pid"]
            load = Load(ops, worker, options.rate, options.consumers)
            load.start()
            observe(load, broker, WARM_UP)
            samples = observe(load, broker, 60 * options.minutes)
            load.stop(60)
            books = balanced(load) if options.balance else None
            status = {daemon.name: daemon.get("/v1/status") for daemon in (ops, worker)}
    summary = {
        "minutes": options.minutes,
        "rate": options.rate,
        "opened": load.opened,
        "ended": len(load.taken),
        "errors": load.errors,
        "books": books,
        "problems": {name: answer["problems"] for name, answer in status.items()},
        "outbox": {name: answer["outbox"] for name, answer in status.items()},
        "retried": {name: answer["counters"].get("outbox.retried", 0) for name, answer in status.items()},
        "thirds": thirds(samples),
    }
    write(samples, summary)
    print(json.dumps({key: value for key, value in summary.items() if key != "thirds"}, indent=1))
    if load.errors or len(load.taken) != load.opened:
        raise SystemExit("not every work that was opened came to its end")


if __name__ == "__main__":
    main()
