"""The benchmark runs and prints, whatever the figures are on this machine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

from bench.figures import FIGURES
from bench.harness.scale import SCALES

ROOT = Path(__file__).parent.parent.parent
HANG = 540  # seconds; it takes half a minute on two cores at rest


@pytest.mark.timeout(HANG + 60)
def test_the_smoke_run_prints_a_table_and_writes_samples_and_plots(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "--smoke", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "bench.json").read_text())["results"]
    assert [title.split(".")[0] for title in results] == [str(number) for number in range(1, 12)]
    for title, result in results.items():
        assert not result["failed"], (title, result["skipped"])
        assert f"**{title}**" in done.stdout
        # The other systems of figure 9 are a dependency group of their own.
        assert result["rows"] or title.startswith("7.") or "not installed" in result["skipped"], (title, result)
        for row in result["rows"]:
            assert row["values"] and min(row["values"]) >= 0, row
            assert len(row["floors"]) in (0, len(row["values"])), row
        for name, samples in result["latencies"].items():
            assert samples and min(samples) > 0, (title, name)
    for name in ("throughput.svg", "latency.svg", "growth.svg"):
        assert "<svg " in (tmp_path / name).read_text()


def test_hops_counts_calls_and_files_of_a_message() -> None:
    command = [sys.executable, "-m", "bench.micro.hops", "-o", "json", "--warm-up", "2", "--rounds", "3"]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=HANG, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    rows = json.loads(done.stdout)
    for case in ("receive", "send", "work", "step"):
        counts, after = rows.pop(case), rows.pop(f"{case}, after")
        assert counts["files"] < counts["calls"] < counts["all_calls"], case
        assert any(path.startswith("store/") for path in counts["calls_by_file"]), case
        assert after["calls"] < counts["calls"], case
    assert not rows


def test_shares_of_a_run_name_figures() -> None:
    assert {name for scale in SCALES.values() for name in scale.shares} <= {figure.name for figure in FIGURES}
