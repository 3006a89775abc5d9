"""The report of a run: JSON with every sample, a Markdown table, and the plots."""

import importlib.metadata
import importlib.util
import os
import platform
import sqlite3
import statistics
import subprocess
import sys
from collections.abc import Mapping
from pathlib import Path
from typing import Any, Final

import msgspec

from bench.harness.figure import Result, Row
from bench.harness.statistic import percentile, spread
from tests.support.natsutil import NATS_SERVER

_LIBRARIES: Final = ("aghbus", "nats-py", "msgspec", "aiosqlite", "httptools", "a2a-sdk", "faststream", "uvloop")


class Report(msgspec.Struct, frozen=True, kw_only=True):
    """All of a run. `results` by the title of the figure."""

    scale: str
    seconds: float
    machine: dict[str, Any]
    results: dict[str, Result]


def machine() -> dict[str, Any]:
    """The machine and the versions that the figures depend on."""
    cpu = next(
        (line.partition(":")[2].strip() for line in _lines("/proc/cpuinfo") if line.startswith("model name")), "unknown"
    )
    server = subprocess.run([NATS_SERVER, "--version"], capture_output=True, text=True, check=True).stdout.strip()
    versions = {}
    for name in _LIBRARIES:
        try:
            versions[name] = importlib.metadata.version(name)
        except importlib.metadata.PackageNotFoundError:
            continue
    return {
        "cpu": cpu,
        "cores": os.cpu_count(),
        "load_before": round(os.getloadavg()[0], 2),
        "kernel": platform.release(),
        "python": sys.version.split()[0],
        "sqlite": sqlite3.sqlite_version,
        "broker": server,
        "versions": versions,
    }


def _lines(path: str) -> list[str]:
    return Path(path).read_text().splitlines() if Path(path).exists() else []


def number(value: float) -> str:
    """Three digits that mean something."""
    if value >= 1000:
        return f"{value:,.0f}"
    return f"{value:.0f}" if value >= 100 else f"{value:.3g}"


def markdown(report: Report) -> str:
    """The whole report as a page."""
    about = report.machine
    versions = ", ".join(f"{name} {version}" for name, version in about["versions"].items())
    lines = [
        f"{about['cores']} cores ({about['cpu']}), load {about['load_before']} before the run; Python {about['python']}, "
        f"SQLite {about['sqlite']}, {about['broker']}; {versions}. `--{report.scale}`, {report.seconds:.0f} s.",
        "",
        "| what | median | floor of the same rounds | ratio | lowest – highest | target | |",
        "|---|---|---|---|---|---|---|",
    ]
    for title, result in report.results.items():
        lines.append(f"| **{title}** | | | | | | {f'not measured: {result.skipped}' if result.skipped else ''} |")
        lines += [_row(row) for row in result.rows]
    notes = [note for result in report.results.values() for note in result.notes]
    return "\n".join([*lines, *([""] if notes else []), *notes]) + "\n"


def _row(row: Row) -> str:
    value = f"{number(row.value)}{f' ±{spread(row.values):.0%}' if len(row.values) > 1 else ''} {row.unit}"
    target = "" if row.target is None else f"{row.target:g}"
    if row.ratio is None:
        return f"| {row.what} | {value} | | | | {target} | {row.verdict} |"
    floor = f"{row.floor}: {number(statistics.median(row.floors))}"
    span = f"{number(min(row.ratios))} – {number(max(row.ratios))}"
    return f"| {row.what} | {value} | {floor} | **{number(row.ratio)} ×** | {span} | {target} | {row.verdict} |"


def plot(results: Mapping[str, Result], folder: Path) -> list[Path]:
    """Write the plots that the results allow into `folder`."""
    from bench.harness import plots  # takes a second to load

    folder.mkdir(parents=True, exist_ok=True)
    rates: dict[str, tuple[str, float, float, float]] = {}
    for result in results.values():
        for row in result.rows:
            if row.unit in ("msg/s", "works/s"):
                rates.setdefault(row.what, (row.what, row.value, min(row.values), max(row.values)))
                if row.floors:
                    name, middle = f"floor: {row.floor}", statistics.median(row.floors)
                    rates.setdefault(name, (name, middle, min(row.floors), max(row.floors)))
    written = []
    if rates:
        written.append(folder / "throughput.svg")
        ordered = sorted(rates.values(), key=lambda one: -one[1])
        plots.bars(written[-1], "Throughput", [(_cut(one[0]), *one[1:]) for one in ordered], "a second")
    latencies = {name: samples for result in results.values() for name, samples in result.latencies.items() if samples}
    if latencies:
        written.append(folder / "latency.svg")
        named = {f"{name} ({percentile(samples, 0.5):.2g} ms)": samples for name, samples in latencies.items()}
        plots.distributions(written[-1], "Latency", named)
    growth = [curve for result in results.values() for curve in result.curves]
    if growth:
        written.append(folder / "growth.svg")
        plots.curves(written[-1], "Cost of a message as things grow", growth)
    return written


def _cut(name: str, most: int = 60) -> str:
    return name if len(name) <= most else name[: most - 1] + "…"


def write(report: Report, folder: Path, *, plots: Path) -> list[Path]:
    """Write `bench.json` and `bench.md` into `folder`, and the plots into the folder `plots`; returns the files."""
    folder.mkdir(parents=True, exist_ok=True)
    table, samples = folder / "bench.md", folder / "bench.json"
    table.write_text(markdown(report), encoding="utf-8")
    samples.write_bytes(msgspec.json.format(msgspec.json.encode(report), indent=1))
    return [samples, table, *plot(report.results, plots)]
