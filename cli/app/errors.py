"""What can go wrong for a person at the terminal, and the exit code of each (docs/cli.md, "Exit codes").

CliError                an error with an exit code, a stable machine-readable code, a message and a hint
├── UsageError          2: the command line is wrong; nothing was asked of the daemon
├── AnswerIsNo          1: everything worked, and the answer is no
├── Unreachable         3: no daemon answers there
├── RefusedByDaemon     4: the daemon said no; its own code, message and hint
└── Unexpected          5: an answer that no daemon of ours gives, or a defect
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Any

YES = 0
NO = 1
USAGE = 2
UNREACHABLE = 3
REFUSED = 4
UNEXPECTED = 5
INTERRUPTED = 130
"""128 + SIGINT, as shells report it."""
BROKEN_PIPE = 141
"""128 + SIGPIPE: the reader of our output went away."""

EXIT_CODES = (
    (YES, "yes: done, or the answer is yes"),
    (NO, "the answer is no: nobody answered, the inbox is empty, the work failed, a check refused something"),
    (USAGE, "the command line is wrong"),
    (UNREACHABLE, "the daemon cannot be reached"),
    (REFUSED, "the daemon refused the request; its code, message and hint are shown"),
    (UNEXPECTED, "an unexpected error"),
    (INTERRUPTED, "interrupted (Ctrl-C)"),
    (BROKEN_PIPE, "the reader of the output went away"),
)
"""Every exit code with its meaning: `aghctl --help` and docs/cli.md print this table."""


class CliError(Exception):
    """Ends the command with `exit_code`. `code` is for machines, `hint` says what to do next (may be empty)."""

    exit_code = UNEXPECTED
    default_code = "unexpected"

    def __init__(self, message: str, hint: str = "", code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code or self.default_code


class UsageError(CliError):
    """The command line breaks a rule; the message names option and rule."""

    exit_code = USAGE
    default_code = "usage"


class AnswerIsNo(CliError):
    """The request was carried out and the answer is no."""

    exit_code = NO
    default_code = "no"


class Unreachable(CliError):
    """No daemon at that address, or it went away and did not come back in time."""

    exit_code = UNREACHABLE
    default_code = "unreachable"


class RefusedByDaemon(CliError):
    """An error answer of the API. `answer` is the whole of it: some errors say more than code, message and hint."""

    exit_code = REFUSED
    default_code = "refused"

    def __init__(self, message: str, hint: str = "", code: str = "", answer: dict[str, Any] | None = None) -> None:
        super().__init__(message, hint, code)
        self.answer: dict[str, Any] = answer or {}


class Unexpected(CliError):
    """Not an answer of our API, an internal error of the daemon, or a defect in this tool."""
