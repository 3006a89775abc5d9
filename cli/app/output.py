"""The three forms of output (docs/cli.md, "Output"): `human`, `json` (one document), `jsonl` (one object a line).

JSON is written in ASCII, so that no character of a stranger acts on a terminal and no lone surrogate stops the output.
"""

from __future__ import annotations

import sys

from aghbus.client.errors import Unexpected

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from aghbus.client.errors import ClientError


class Output:
    """Where a command's answer goes. Answers to standard output, notes and errors to standard error."""

    __slots__ = ("form",)

    def __init__(self, form: str = "human") -> None:
        self.form = form

    @property
    def human(self) -> bool:
        """Whether a person reads."""
        return self.form == "human"

    def answer(self, data: Any, human: Callable[[Any], str]) -> None:
        """One answer. `human` renders it, with every string of the API escaped."""
        if self.human:
            self.text(human(data))
        else:
            self.text(dumps(data, pretty=self.form == "json"))

    def rows(self, data: dict[str, Any], key: str, human: Callable[[Any], str]) -> None:
        """A list below `key`: in jsonl each of its entries is a line, in json the answer is one document."""
        if self.form != "jsonl":
            self.answer(data, human)
            return
        for row in data[key]:
            self.text(dumps(row))

    def event(self, item: Any, human: Callable[[Any], str]) -> None:
        """One entry of a stream: a line at once, in json too, since a stream has no end to wait for."""
        self.text(human(item) if self.human else dumps(item))
        flush()

    def line(self, item: Any) -> None:
        """One JSON line whatever the form: the offline commands with a fixed form."""
        self.text(dumps(item))

    def text(self, text: str) -> None:
        """`text`, already escaped, as whole lines; nothing at all when it is empty."""
        if text:
            write(text + "\n")

    def note(self, text: str) -> None:
        """A remark for a person on standard error; machines are spared it."""
        if self.human:
            complain(text + "\n")

    def error(self, error: ClientError) -> None:
        """An error on standard error: `aghctl: …` and its hint, or `{code, message, hint}`."""
        if not self.human:
            complain(dumps({"code": error.code, "message": error.message, "hint": error.hint}) + "\n")
            return
        from aghbus.cli.app.text import safe

        hint = f"hint: {safe(error.hint)}\n" if error.hint else ""
        complain(f"aghctl: {safe(error.message)}\n{hint}")


def write(text: str) -> None:
    """Write to standard output. Raises BrokenPipeError when its reader is gone, Unexpected when it takes no more."""
    try:
        sys.stdout.write(text)
    except OSError as error:
        raise unwritable(error) from None


def flush() -> None:
    """Have all that was written so far where it goes. Raises as `write` does."""
    try:
        sys.stdout.flush()
    except OSError as error:
        raise unwritable(error) from None


def unwritable(error: OSError) -> Exception:
    """What to raise when standard output gave `error`; what it still holds is given up."""
    from aghbus.store.host.stdio import discard

    discard(1)
    if isinstance(error, BrokenPipeError):
        return error
    return Unexpected(f"standard output cannot be written: {error.strerror}", code="output")


def complain(text: str) -> None:
    """Write to standard error, behind what was written to standard output before. Nothing happens when nobody listens."""
    try:  # noqa: SIM105 - contextlib is slow to load
        sys.stdout.flush()
    except OSError:
        pass  # still there for the next flush, which tells
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        from aghbus.store.host.stdio import discard

        discard(2)


def dumps(data: Any, *, pretty: bool = False) -> str:
    """JSON in ASCII, in one line unless `pretty`."""
    import json

    if pretty:
        return json.dumps(data, indent=2)
    return json.dumps(data, separators=(",", ":"))
