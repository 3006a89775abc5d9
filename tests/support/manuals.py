"""Transcripts in pages of the documentation: what is given, and what is shown then."""

import re
from pathlib import Path
from typing import NamedTuple

_BLOCK = re.compile(r"^```(console|claude|codex)\n(.*?)^```$", re.DOTALL | re.MULTILINE)


class Step(NamedTuple):
    """A command (`$ `), something typed into a host (`> `), or nothing; and the lines that follow."""

    where: str
    given: str
    shown: list[str]


def steps_of(page: Path, section: str | None = None) -> list[Step]:
    """The steps of one section, or of the page, in their order."""
    text = page.read_text("utf-8")
    if section is not None:
        text = text.partition(f"\n## {section}\n")[2].partition("\n## ")[0]
    steps: list[Step] = []
    for where, block in _BLOCK.findall(text):
        for number, line in enumerate(block.splitlines()):
            if line.startswith(("$ ", "> ")):
                steps.append(Step(where, line, []))
            elif number == 0:
                steps.append(Step(where, "", [line]))
            else:
                steps[-1].shown.append(line)
    return steps


def fits(shown: list[str], found: list[str]) -> bool:
    """Whether the lines are those of the transcript, in which `…` stands for anything in a line, and a line of `…` for any lines.
    Spaces count as one."""
    if not shown:
        return True
    pattern = "\n".join(map(_pattern, map(_spaced, shown)))
    return re.search(rf"^{pattern}$", "\n".join(map(_spaced, found)), re.MULTILINE) is not None


def _pattern(line: str) -> str:
    return r"(?:.*\n)*?.*" if line == "…" else ".*".join(map(re.escape, re.split(r" ?… ?", line)))


def _spaced(line: str) -> str:
    return " ".join(line.split())
