"""Exit codes of `aghctl` (docs/cli.md, "Exit codes"), and the error that is a negative answer."""

from __future__ import annotations

import os

from aghbus.client.errors import ClientError, ConfigurationError, RefusedByDaemon, Unreachable, UsageError

YES = 0
NO = 1
USAGE = 2
UNREACHABLE = 3
REFUSED = 4
UNEXPECTED = 5
QUESTION = 6
CANCELED = 7
TIMEOUT = 8
INTERRUPTED = 130
"""128 + SIGINT, as shells report it."""
BROKEN_PIPE = 141
"""128 + SIGPIPE: the reader of standard output closed it."""

EXIT_CODES = (
    (YES, "success, or the answer is yes"),
    (NO, "the answer is no: no peer answered, the inbox is empty, the work failed, a check failed"),
    (USAGE, "the command line is wrong"),
    (UNREACHABLE, "the daemon cannot be reached"),
    (REFUSED, "the daemon refused the request, or there is no such thing; code, message and hint are shown"),
    (UNEXPECTED, "an unexpected error"),
    (QUESTION, "the work or run asks something: it needs an answer"),
    (CANCELED, "the work was canceled or rejected, or the run canceled"),
    (TIMEOUT, "the work has not ended within --wait; it goes on"),
    (INTERRUPTED, "interrupted (Ctrl-C)"),
    (BROKEN_PIPE, "the reader of standard output closed it"),
)
"""Every exit code with its meaning: `aghctl --help` and docs/cli.md print this table."""


class Missing(ClientError):
    """The command names an instance or a file of one that does not exist: what the daemon would refuse as `not_found`."""

    default_code = "not_found"


class AnswerIsNo(ClientError):
    """The request was performed and the answer is no."""

    default_code = "no"


class Interrupted(ClientError):
    """Ctrl-C ended the command, while what it waited for goes on."""

    default_code = "interrupted"


_EXIT_CODES = (
    (Interrupted, INTERRUPTED),
    (AnswerIsNo, NO),
    (ConfigurationError, NO),
    (UsageError, USAGE),
    (Unreachable, UNREACHABLE),
    (RefusedByDaemon, REFUSED),
    (Missing, REFUSED),
)


def exit_code_of_work(state: str, *, rejected: bool = False) -> int:
    """The exit code of a command that waited for a work or a run, by the state that it is in now; a rejected work has failed."""
    if rejected:
        return CANCELED
    codes = {"completed": YES, "failed": NO, "canceled": CANCELED, "needs_input": QUESTION, "waiting": QUESTION}
    return codes.get(state, TIMEOUT)


def exit_code_of(error: ClientError) -> int:
    """The exit code for an error that ends the command."""
    return next((code for kind, code in _EXIT_CODES if isinstance(error, kind)), UNEXPECTED)


def unusable(path: object, message: str, hint: str, code: str) -> ClientError:
    """The error of a file of an instance that cannot be used: Missing if there is none."""
    if not os.path.lexists(str(path)):
        return Missing(message, hint)
    return AnswerIsNo(message, hint, code)
