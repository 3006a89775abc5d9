"""Three plots as SVG: throughput as bars, latencies as distributions, cost over size as curves.

Needs matplotlib, of the dependency group `plots`. Text stays text, which keeps the files small.
"""

from collections.abc import Sequence
from pathlib import Path

from matplotlib import rcParams
from matplotlib.axes import Axes
from matplotlib.figure import Figure

from bench.harness.figure import Curve

rcParams["svg.fonttype"] = "none"


def bars(path: Path, title: str, values: Sequence[tuple[str, float, float, float]], unit: str) -> None:
    """Horizontal bars of (name, median, lowest, highest) on a logarithmic axis, with a line from lowest to highest."""
    figure, axes = _figure(title, height=1.2 + 0.32 * len(values))
    names, medians, lowest, highest = zip(*values, strict=True)
    colors = ["tab:gray" if name.startswith("floor") else "tab:blue" for name in names]
    errors = [
        [median - low for median, low in zip(medians, lowest, strict=True)],
        [high - median for median, high in zip(medians, highest, strict=True)],
    ]
    shown = axes.barh(names, medians, xerr=errors, color=colors, ecolor="black")
    axes.bar_label(shown, [f"{median:,.0f}" for median in medians], padding=4)
    axes.set_xscale("log")
    axes.invert_yaxis()
    axes.margins(x=0.15)
    axes.set_xlabel(f"{unit}, median of the rounds; the line spans them")
    figure.savefig(path)


def distributions(path: Path, title: str, samples: dict[str, list[float]]) -> None:
    """The share of requests (up) that took at most so many milliseconds (across)."""
    figure, axes = _figure(title)
    for name, values in samples.items():
        axes.ecdf(values, label=name)
    axes.set_xscale("log")
    axes.set_xlabel("milliseconds")
    axes.set_ylabel("share of requests")
    axes.legend()
    figure.savefig(path)


def curves(path: Path, title: str, found: Sequence[Curve]) -> None:
    """Cost relative to that at the smallest size (up) over the size (across)."""
    figure, axes = _figure(title)
    for one in found:
        axes.plot(one.sizes, [cost / one.costs[0] for cost in one.costs], marker="o", label=one.name)
    axes.set_xscale("log")
    axes.set_ylim(bottom=0)
    axes.set_xlabel("size")
    axes.set_ylabel("cost of a message, 1 at the smallest size")
    axes.legend()
    figure.savefig(path)


def _figure(title: str, height: float = 4.5) -> tuple[Figure, Axes]:
    figure = Figure(figsize=(10, height), layout="constrained")
    axes = figure.add_subplot(title=title)
    axes.grid(alpha=0.3)
    return figure, axes
