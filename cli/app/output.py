"""The three forms of output (docs/cli.md, "Output"): `human`, `json` (one document), `jsonl` (one object a line).

JSON is written in ASCII: no character that an untrusted peer chose acts on a terminal, and no lone surrogate stops the output.
"""

from __future__ import annotations

import os
from collections.abc import Callable, Mapping

from aghbus.client.errors import ClientError
from aghbus.host.stdio import flush, write, write_error
from aghbus.protocol.base.annotations import Any

OUTPUT_VERSION = 1
"""The member `v` of the JSON objects: it changes when a field that docs/cli.md names as stable is removed or changes."""


class Output:
    """Writes answers to standard output, notes and errors to standard error."""

    def __init__(self, form: str = "human", color: str = "auto") -> None:
        self.form = form
        self.color = color

    @property
    def human(self) -> bool:
        """Whether a person reads."""
        return self.form == "human"

    def answer(self, data: Any, human: Callable[[Any], str]) -> None:
        """One answer. `human` renders it, with every string of the API escaped."""
        if self.human:
            self.text(human(data))
        else:
            self.text(dumps(_versioned(data), pretty=self.form == "json"))

    def rows(self, data: dict[str, Any], key: str, human: Callable[[Any], str], none: str = "") -> None:
        """A list below `key`: in jsonl each of its entries is a line, in json the answer is one document.

        `none` is the note for people in place of an empty list.
        """
        if none and self.human and not data[key]:
            self.note(none)
        elif self.form == "jsonl":
            for row in data[key]:
                self.text(dumps(_versioned(row)))
        else:
            self.answer(data, human)

    def event(self, item: Any, human: Callable[[Any], str]) -> None:
        """One entry of a stream: one line, flushed immediately, in json too."""
        self.text(human(item) if self.human else dumps(_versioned(item)))
        flush()

    def line(self, item: Any) -> None:
        """One JSON line, whatever the form of output: for the offline commands whose form is fixed."""
        self.text(dumps(item))

    def text(self, text: str) -> None:
        """`text`, already escaped, as whole lines; nothing at all when it is empty."""
        if text:
            write(self.colored(text, 1) + "\n")

    def note(self, text: str) -> None:
        """A remark on standard error, in the human form only."""
        if self.human:
            write_error(self.colored(text, 2) + "\n")

    def colored(self, text: str, descriptor: int) -> str:
        """`text` as it is where the stream of this descriptor shows colours, else without them."""
        if "\x1b" not in text or shows_color(self.color, descriptor, os.environ):
            return text
        from aghbus.cli.app.text import plain

        return plain(text)

    def waiting(self, text: str) -> None:
        """What the command waits for, on standard error, for a person at a terminal."""
        if os.isatty(2):
            self.note(text)

    def error(self, error: ClientError) -> None:
        """An error on standard error: `aghctl: …` and its hint, or `{code, message, hint}`."""
        if not self.human:
            document = {"code": error.code, "message": error.message, "hint": error.hint}
            write_error(dumps(_versioned(document)) + "\n")
            return
        from aghbus.cli.app.text import safe

        hint = f"hint: {safe(error.hint)}\n" if error.hint else ""
        write_error(f"aghctl: {safe(error.message)}\n{hint}")


def shows_color(wanted: str, descriptor: int, env: Mapping[str, str]) -> bool:
    """Whether colours are written to this descriptor: as --color says, else as the environment does, else on a terminal.

    `NO_COLOR` (no-color.org) is stronger than `CLICOLOR_FORCE` and `FORCE_COLOR`; each counts unless it is empty, the latter
    two unless they are 0.
    """
    if wanted != "auto":
        return wanted == "always"
    if env.get("NO_COLOR"):
        return False
    if any(env.get(name, "0") not in ("", "0") for name in ("CLICOLOR_FORCE", "FORCE_COLOR")):
        return True
    return is_terminal(descriptor, env)


def is_terminal(descriptor: int, env: Mapping[str, str]) -> bool:
    """Whether the descriptor is a terminal that understands control sequences."""
    return os.isatty(descriptor) and env.get("TERM", "dumb") != "dumb"


def _versioned(data: Any) -> Any:
    return {"v": OUTPUT_VERSION, **data} if isinstance(data, dict) else data


def dumps(data: Any, *, pretty: bool = False) -> str:
    """JSON in ASCII, in one line unless `pretty`."""
    import json

    if pretty:
        return json.dumps(data, indent=2)
    return json.dumps(data, separators=(",", ":"))
