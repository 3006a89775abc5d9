"""Standard streams of a command line program. Any of them may be closed, full, or a pipe without a reader."""

import os
import sys

_NAMES = ("stdin", "stdout", "stderr")  # by descriptor


class OutputError(Exception):
    """Standard output cannot be written, for the reason in the text."""


def reopen_closed() -> None:
    """Open /dev/null for every standard stream that was closed before the start.

    Otherwise the next file or socket would get its number, and a child process would write into that.
    """
    for number, name in enumerate(_NAMES):
        if getattr(sys, name) is None:
            discard(number)
            mode = "w" if number else "r"
            setattr(sys, name, open(number, mode, encoding="utf-8", errors="backslashreplace", closefd=False))  # noqa: SIM115 - a descriptor, for as long as the process lives


def write(text: str) -> None:
    """Write to standard output. Raises BrokenPipeError when its reader has gone, else OutputError."""
    try:
        sys.stdout.write(text)
    except OSError as error:
        raise output_error(error) from None


def flush() -> None:
    """Write what standard output has buffered. Raises as `write` does."""
    if sys.stdout.closed:  # as a failed write of the daemon's banner leaves it
        return
    try:
        sys.stdout.flush()
    except OSError as error:
        raise output_error(error) from None


def output_error(error: OSError) -> Exception:
    """What to raise after `error` of standard output: BrokenPipeError or OutputError. Its buffer is given up."""
    discard(1)
    if isinstance(error, BrokenPipeError):
        return error
    return OutputError(f"standard output cannot be written: {error.strerror}")


def write_error(text: str) -> None:
    """Write to standard error, after everything written to standard output. An error of either stream is ignored here."""
    try:  # noqa: SIM105 - contextlib is slow to load
        sys.stdout.flush()
    except (OSError, ValueError):
        pass  # its buffer is kept: the next flush raises
    try:
        sys.stderr.write(text)
        sys.stderr.flush()
    except OSError:
        discard(2)


def discard(number: int) -> None:
    """Point the standard stream `number` at /dev/null: a flush of its buffer then succeeds."""
    nowhere = os.open(os.devnull, os.O_RDWR)
    if nowhere != number:
        os.dup2(nowhere, number)
        os.close(nowhere)
    os.set_inheritable(number, True)
