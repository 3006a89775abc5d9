"""The three standard streams of a process when nothing is behind them: both command lines use this, and only then."""

import os
import sys
from typing import Final

_NAMES: Final = ("stdin", "stdout", "stderr")  # by descriptor


def reopen_closed() -> None:
    """Put /dev/null behind every standard stream that was closed before the start.

    Else the next file or socket would take its number, and a child process would write into that.
    """
    for number, name in enumerate(_NAMES):
        if getattr(sys, name) is None:
            discard(number)
            mode = "w" if number else "r"
            setattr(sys, name, open(number, mode, encoding="utf-8", errors="backslashreplace", closefd=False))  # noqa: SIM115 - a descriptor, for as long as the process lives


def discard(number: int) -> None:
    """Point the standard stream `number` at /dev/null, so that what it still holds has nobody to complain to."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere != number:
        os.dup2(nowhere, number)
        os.close(nowhere)
    os.set_inheritable(number, True)
