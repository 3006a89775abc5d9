"""Three plots as SVG: throughput as bars, latencies as distributions, growth as curves. Both axes are logarithmic where values are.

Written by hand because a plotting library would be the largest dependency of the whole project.
"""

import math
from collections.abc import Callable, Sequence
from typing import Final
from xml.sax.saxutils import escape

from bench.harness.figure import Curve

_WIDTH: Final = 860
_LEFT: Final = 330  # room for the names of bars
_COLOURS: Final = ("#2563a8", "#c2571a", "#2c8a4b", "#8a3ea6", "#b3262e", "#5c6770", "#8c6d1f", "#1b8a91")
_STYLE: Final = (
    "text{font:13px system-ui,sans-serif;fill:#222}.t{font-size:16px;font-weight:600}.s{font-size:11px;fill:#666}"
    ".g{stroke:#ddd}.a{stroke:#888}"
)

Scale = Callable[[float], float]


def _document(height: float, title: str, parts: Sequence[str]) -> str:
    return (
        f'<svg xmlns="http://www.w3.org/2000/svg" width="{_WIDTH}" height="{height:.0f}" '
        f'viewBox="0 0 {_WIDTH} {height:.0f}" role="img" aria-label="{escape(title)}"><style>{_STYLE}</style>'
        f'<rect width="100%" height="100%" fill="#fff"/>{_text(20, 28, title, "t")}{"".join(parts)}</svg>\n'
    )


def _text(x: float, y: float, text: str, kind: str = "", anchor: str = "start") -> str:
    return f'<text x="{x:.1f}" y="{y:.1f}" class="{kind}" text-anchor="{anchor}">{escape(text)}</text>'


def _line(x1: float, y1: float, x2: float, y2: float, kind: str) -> str:
    return f'<line x1="{x1:.1f}" y1="{y1:.1f}" x2="{x2:.1f}" y2="{y2:.1f}" class="{kind}"/>'


def _logarithmic(low: float, high: float, start: float, end: float) -> Scale:
    """A scale that puts `low` at `start` and `high` at `end`."""
    span = math.log10(high / low) or 1.0
    return lambda value: start + (end - start) * math.log10(max(value, low) / low) / span


def _decades(low: float, high: float) -> list[float]:
    return [10.0**power for power in range(math.floor(math.log10(low)), math.ceil(math.log10(high)) + 1)]


def short(value: float) -> str:
    """A number as people say it: `1.2 k`, `0.25`, `34`."""
    for limit, unit in ((1e6, " M"), (1e3, " k")):
        if value >= limit:
            return f"{value / limit:.3g}{unit}"
    return f"{value:.3g}"


def bars(title: str, values: Sequence[tuple[str, float, float, float]], unit: str) -> str:
    """Horizontal bars of (name, median, lowest, highest) on a logarithmic axis, with a whisker from lowest to highest."""
    ticks = _decades(min(low for *_, low, _ in values), max(high for *_, high in values))
    x = _logarithmic(ticks[0], ticks[-1], _LEFT, _WIDTH - 80)
    bottom = 60 + 30 * len(values)
    parts = [
        _line(x(tick), 46, x(tick), bottom, "g") + _text(x(tick), bottom + 16, short(tick), "s", "middle")
        for tick in ticks
    ]
    for place, (name, median, low, high) in enumerate(values):
        y = 52 + 30 * place
        colour = _COLOURS[0] if not name.startswith("floor") else _COLOURS[5]
        parts.append(
            f'<rect x="{_LEFT}" y="{y}" width="{max(1.0, x(median) - _LEFT):.1f}" height="20" fill="{colour}"/>'
        )
        parts.append(_line(x(low), y + 10, x(high), y + 10, "a"))
        parts.append(_text(_LEFT - 8, y + 15, name, anchor="end"))
        parts.append(_text(x(high) + 6, y + 15, short(median)))
    parts.append(_text(_LEFT, bottom + 34, f"{unit}, median of the rounds; the line spans them; logarithmic", "s"))
    return _document(bottom + 46, title, parts)


def distributions(title: str, samples: dict[str, list[float]]) -> str:
    """The share of requests (up) that took at most so many milliseconds (across)."""
    everything = [value for values in samples.values() for value in values]
    ticks = _decades(min(everything), max(everything))
    height, left, right = 380.0, 60.0, _WIDTH - 250.0
    x = _logarithmic(ticks[0], ticks[-1], left, right)

    def y(share: float) -> float:
        return height - 46 - share * (height - 100)

    parts = [
        _line(x(tick), y(0), x(tick), y(1), "g") + _text(x(tick), height - 30, short(tick), "s", "middle")
        for tick in ticks
    ]
    for share in (0.0, 0.25, 0.5, 0.75, 0.99):
        parts.append(
            _line(left, y(share), right, y(share), "g") + _text(left - 6, y(share) + 4, f"{share:.0%}", "s", "end")
        )
    for place, (name, values) in enumerate(samples.items()):
        colour, ordered = _COLOURS[place % len(_COLOURS)], sorted(values)
        step = max(1, len(ordered) // 400)
        ranks = [*range(0, len(ordered), step), len(ordered) - 1]
        points = " ".join(f"{x(ordered[rank]):.1f},{y((rank + 1) / len(ordered)):.1f}" for rank in ranks)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts.append(_legend(right + 20, 62 + 22 * place, colour, name))
    parts.append(_text(left, height - 12, "milliseconds, logarithmic", "s"))
    return _document(height, title, parts)


def curves(title: str, found: Sequence[Curve]) -> str:
    """Cost relative to that at the smallest size (up) over the size (across, logarithmic)."""
    ticks = _decades(min(min(one.sizes) for one in found), max(max(one.sizes) for one in found))
    highest = max(1.5, *(cost / one.costs[0] for one in found for cost in one.costs)) * 1.05
    height, left, right = 360.0, 60.0, _WIDTH - 250.0
    x = _logarithmic(ticks[0], ticks[-1], left, right)

    def y(cost: float) -> float:
        return height - 46 - cost / highest * (height - 100)

    parts = [
        _line(x(tick), y(0), x(tick), y(highest), "g") + _text(x(tick), height - 30, short(tick), "s", "middle")
        for tick in ticks
    ]
    for cost in (0.0, 0.5, 1.0, 1.3):
        parts.append(
            _line(left, y(cost), right, y(cost), "g") + _text(left - 6, y(cost) + 4, f"{cost:.1f}", "s", "end")
        )
    for place, one in enumerate(found):
        colour = _COLOURS[place % len(_COLOURS)]
        places = [(x(size), y(cost / one.costs[0])) for size, cost in zip(one.sizes, one.costs, strict=True)]
        points = " ".join(f"{across:.1f},{up:.1f}" for across, up in places)
        parts.append(f'<polyline points="{points}" fill="none" stroke="{colour}" stroke-width="2"/>')
        parts += [f'<circle cx="{across:.1f}" cy="{up:.1f}" r="3.5" fill="{colour}"/>' for across, up in places]
        parts.append(_legend(right + 20, 62 + 22 * place, colour, one.name))
    parts.append(_text(left, height - 12, "size, logarithmic; cost of a message, the smallest size is 1", "s"))
    return _document(height, title, parts)


def _legend(x: float, y: float, colour: str, name: str) -> str:
    return f'<rect x="{x:.0f}" y="{y - 10:.0f}" width="12" height="12" fill="{colour}"/>' + _text(x + 18, y + 1, name)
