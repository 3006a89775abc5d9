"""The real JSON examples of the four seeds, schemas and templates aside: one line each of tests/vectors/seed_examples.jsonl.

A line is `{"format", "source", "value"}`; `source` is the heading above the example. `extract` is what made the file, from the
seeds' text.
"""

import copy
import json
import re
from collections.abc import Iterator
from pathlib import Path
from typing import Any, Final, NamedTuple

VECTORS: Final = Path(__file__).parent.parent / "vectors" / "seed_examples.jsonl"

# A fence may be indented. Inside the protocol template of SACP (a `markdown` fence) the example follows the line `Example:`.
_BLOCK: Final = re.compile(r"^[ ]*```json\n(.*?)^[ ]*```|^Example:\n(\{.*?^\})", re.DOTALL | re.MULTILINE)
_HEADING: Final = re.compile(r"^#+ (.+)$|^\*\*(Agent .+?)\*\*", re.MULTILINE)
# Parse as JSON but describe the form of something: the response schema of SACP, the artifact of ADR-007.
_FORMS: Final = ("2.1 Schema Definition", "Artifact Structure")


class Example(NamedTuple):
    """One example: the format's name, the heading it stands under, its JSON value."""

    format: str
    source: str
    value: Any


def examples(name: str | None = None) -> list[Example]:
    """The committed examples, of one format or of all."""
    lines = [Example(**json.loads(line)) for line in VECTORS.read_text("utf-8").splitlines()]
    return [example for example in lines if name in (None, example.format)]


def extract(name: str, seed: str) -> Iterator[Example]:
    """The examples in the text of a seed: every JSON block that parses and does not describe a form."""
    for block in _BLOCK.finditer(seed):
        headings = [match[1] or match[2] for match in _HEADING.finditer(seed, 0, block.start())]
        if headings[-1] in _FORMS:
            continue
        try:
            value = json.loads(block[1] or block[2])
        except ValueError:  # a template with <placeholders>
            continue
        yield Example(name, headings[-1], value)


def replaced(message: dict[str, Any], changes: dict[str, Any]) -> dict[str, Any]:
    """A copy with members set by `/`-separated path; `...` removes one."""
    made = copy.deepcopy(message)
    for path, value in changes.items():
        *outer, last = path.split("/")
        inner: Any = made
        for key in outer:
            inner = inner[int(key) if isinstance(inner, list) else key]
        if value is ...:
            del inner[last]
        else:
            inner[int(last) if isinstance(inner, list) else last] = value
    return made
