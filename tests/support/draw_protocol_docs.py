"""Draws tables and diagram of docs/protocol.md from the code: `python -m tests.support.draw_protocol_docs` rewrites them.

Between `<!-- drawn: NAME -->` and `<!-- end: NAME -->` everything belongs to this file; a test compares.
"""

import re
from pathlib import Path
from typing import Final

from aghbus.protocol.agh import limits
from aghbus.protocol.agh.lifecycle import OPEN_STATES, PROGRESS, TERMINAL_STATES, TRANSITIONS

ROOT: Final = Path(__file__).parent.parent.parent
PAGE: Final = ROOT / "docs" / "protocol.md"
EVENTS: Final = ("message", *dict.fromkeys(event for _, event in TRANSITIONS if event != "message"), "trace:submitted")
_CONSTANT: Final = re.compile(r"^(?P<name>[A-Z_]+): Final = .*?  # (?P<source>.+)$", re.MULTILINE)


def states_diagram() -> str:
    """The changes of state as a Mermaid diagram. An end has the events that lead to it from every open state."""
    events: dict[tuple[str, str], list[str]] = {}
    for (state, event), after in TRANSITIONS.items():
        if after != state:
            events.setdefault((state, after), []).append(_event(event))
    between = [
        f"        {state} --> {after}: {'<br/>'.join(names)}"
        for (state, after), names in events.items()
        if after in OPEN_STATES
    ]
    common = {after: [events[state, after] for state in OPEN_STATES] for after in TERMINAL_STATES}
    if any(names != found[0] for found in common.values() for names in found):
        raise ValueError("an end has not the same events in all open states: draw its transitions one by one")
    ends = [f"    open --> {after}: {'<br/>'.join(found[0])}" for after, found in common.items()]
    head = ["```mermaid", "stateDiagram-v2", "    direction LR", "    [*] --> open: opening", "    state open {"]
    return "\n".join([*head, f"        [*] --> {OPEN_STATES[0]}", *between, "    }", *ends, "```"])


def lifecycle_table() -> str:
    """One row per event, one column per open state, as Markdown."""
    lines = [f"| event | {' | '.join(OPEN_STATES)} |", "|---|" + "---|" * len(OPEN_STATES)]
    lines += [f"| {_event(event)} | {' | '.join(_cell(state, event) for state in OPEN_STATES)} |" for event in EVENTS]
    return "\n".join(lines)


def limits_table() -> str:
    """Every constant of limits.py with its value and the comment that says unit and source, as Markdown."""
    found = _CONSTANT.findall((ROOT / "protocol" / "agh" / "limits.py").read_text("utf-8"))
    rows = [f"| `{name}` | {_value(getattr(limits, name))} | {source} |" for name, source in found]
    return "\n".join(["| constant | value | unit and source |", "|---|---|---|", *rows])


def drawn(page: str) -> str:
    """`page` with diagram and tables drawn anew. ValueError when a marker is missing."""
    for name, table in (("states", states_diagram()), ("lifecycle", lifecycle_table()), ("limits", limits_table())):
        begin, end = f"<!-- drawn: {name} -->", f"<!-- end: {name} -->"
        before, found_begin, rest = page.partition(begin)
        _, found_end, behind = rest.partition(end)
        if not (found_begin and found_end):
            raise ValueError(f"docs/protocol.md has no place for {name}")
        page = f"{before}{begin}\n{table}\n{end}{behind}"
    return page


def _event(event: str) -> str:
    return "say, capability" if event == "message" else event.replace(":", " ")


def _cell(state: str, event: str) -> str:
    after = TRANSITIONS.get((state, event))
    if after is None:
        return "ignored, `invalid_transition`"
    if after != state:
        return f"→ **{after}**"
    return "advanced (progress)" if (state, event) in PROGRESS else "unchanged"


def _value(value: object) -> str:
    return f"{value:,}".replace(",", " ") if isinstance(value, int) else f"`{value}`"


if __name__ == "__main__":
    PAGE.write_text(drawn(PAGE.read_text("utf-8")), "utf-8")
