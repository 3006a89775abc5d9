"""The benchmark runs and prints, whatever the figures are on this machine."""

import json
import subprocess
import sys
from pathlib import Path

import pytest

ROOT = Path(__file__).parent.parent.parent


@pytest.mark.long
@pytest.mark.timeout(180)
def test_the_smoke_run_prints_a_table_and_writes_samples_and_plots(tmp_path: Path) -> None:
    command = [sys.executable, "-m", "bench", "--smoke", "--out", str(tmp_path)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, timeout=170, check=False)
    assert done.returncode == 0, done.stdout + done.stderr
    results = json.loads((tmp_path / "bench.json").read_text())["results"]
    assert [title.split(".")[0] for title in results] == list("123456789")
    for title, result in results.items():
        assert result["rows"] or result["skipped"], title
        assert f"**{title}**" in done.stdout
        for row in result["rows"]:
            assert row["values"] and min(row["values"]) >= 0, row
    for name in ("throughput.svg", "latency.svg", "growth.svg"):
        assert (tmp_path / name).read_text().startswith("<svg ")
