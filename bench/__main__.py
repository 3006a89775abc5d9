"""`python -m bench --quick|--full|--smoke [--only NAME…] [--out DIR]`: measure, print the table, write table, samples and plots.

The plots of a whole `--full` run are those of docs/performance.md: they are written into docs/img.
"""

import argparse
import signal
import sys
import time
from collections.abc import Sequence
from pathlib import Path

from bench.figures import FIGURES
from bench.harness import report
from bench.harness.figure import Figure, Result, Run
from bench.harness.processes import ROOT
from bench.harness.progress import Progress
from bench.harness.scale import SCALES, Scale


def measured(figure: Figure, run: Run) -> Result:
    """The result of the figure, or the reason why it is not measured."""
    run.progress.begin(figure.title)
    if run.progress.over:
        return Result(skipped="no time was left")
    try:
        return figure.measure(run)
    except Exception as error:  # the others are still worth having; the exit code says that this one failed
        why = f"{type(error).__name__}: {error}".replace("\n", " ").replace("|", "/")
        return Result(skipped=why, failed=True)


def measure(scale: Scale, figures: Sequence[Figure]) -> report.Report:
    """All figures, one after the other."""
    about = report.machine()
    progress = Progress([scale.shares.get(figure.name, figure.weight) for figure in figures], scale.budget)
    started = time.monotonic()
    results = {figure.title: measured(figure, Run(scale, progress)) for figure in figures}
    progress.end()
    return report.Report(scale=scale.name, seconds=time.monotonic() - started, machine=about, results=results)


def main(argv: Sequence[str] | None = None) -> int:
    """Exit code 0 when every figure was measured or had a reason not to be, 1 when one failed."""
    parser = argparse.ArgumentParser(
        prog="python -m bench", description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter
    )
    how = parser.add_mutually_exclusive_group()
    for name, text in (
        ("quick", "under three minutes (default)"),
        ("full", "under half an hour"),
        ("smoke", "seconds"),
    ):
        how.add_argument(f"--{name}", dest="scale", action="store_const", const=name, help=text)
    names = [figure.name for figure in FIGURES]
    parser.add_argument("--only", nargs="+", choices=names, metavar="NAME", help=f"some of: {', '.join(names)}")
    parser.add_argument(
        "--out", type=Path, default=ROOT / "bench" / "results", metavar="DIR", help="default: bench/results"
    )
    options = parser.parse_args(argv)
    signal.signal(signal.SIGTERM, lambda *_: sys.exit(143))  # unwinds, so that brokers and daemons end too
    chosen = [figure for figure in FIGURES if not options.only or figure.name in options.only]
    try:
        found = measure(SCALES[options.scale or "quick"], chosen)
    except KeyboardInterrupt:
        print("\ninterrupted: nothing was written", file=sys.stderr)
        return 130
    print(report.markdown(found))
    whole = options.scale == "full" and not options.only
    for path in report.write(found, options.out, plots=ROOT / "docs" / "img" if whole else options.out):
        print(path)
    failed = [title for title, result in found.results.items() if result.failed]
    if failed:
        print(f"not measured: {', '.join(failed)}", file=sys.stderr)
    return 1 if failed else 0


if __name__ == "__main__":
    sys.exit(main())
