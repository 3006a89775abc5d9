"""Errors of the daemon as errors of A2A. Their hints, which name commands of this machine, stay here."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Iterator
from contextlib import contextmanager

from a2a.utils.errors import (
    A2AError,
    InternalError,
    InvalidParamsError,
    InvalidRequestError,
    TaskNotFoundError,
    UnsupportedOperationError,
)

from aghbus.client import (
    ClientError,
    Conflict,
    InvalidRequest,
    NotFound,
    RefusedByDaemon,
    SecretLike,
    TooLarge,
    Unavailable,
    WorkClosed,
)
from aghbus.protocol.base.text import escape

LOGGED = 4000
"""Characters of a traceback in the log: the end of it."""
TRY_AGAIN = "the agent cannot be reached now; send the same message again, it is carried out once"


def fault(field: str, rule: str) -> InvalidParamsError:
    """The error for a wrong field of a request."""
    return InvalidParamsError(f"{field}: {rule}", {"errors": [{"field": field, "message": rule}]})


def error_of(error: ClientError) -> A2AError:
    """What a caller gets to see of an error of the daemon."""
    match error:
        case NotFound():
            return TaskNotFoundError()
        case WorkClosed():
            return UnsupportedOperationError("the task has ended")
        case Conflict():
            return fault("message.messageId", "was used for another message")
        case SecretLike():
            return fault("message", "seems to contain a credential, which agents are not sent")
        case TooLarge():
            return fault("message", "is too large: send large content as files (raw parts)")
        case InvalidRequest():
            return fault("message", f"cannot be sent: {error.message}")
        case Unavailable():
            return InternalError(TRY_AGAIN)
        case RefusedByDaemon():
            return InvalidRequestError(error.message)
    return InternalError(TRY_AGAIN)


@contextmanager
def translated() -> Iterator[None]:
    """Raise the errors of the daemon, and of the disk, as those of A2A. Of a bug the caller learns nothing, the log all."""
    try:
        yield
    except ClientError as error:
        raise error_of(error) from None
    except A2AError:
        raise
    except OSError as error:
        logging.getLogger("aghbus.a2a").error("the folder of the gateway: %s", error.strerror)
        raise InternalError("the config cannot be stored now: try again later") from None
    except Exception as error:
        shown = "".join(traceback.format_exception(error, chain=False))[-LOGGED:]
        logging.getLogger("aghbus.a2a").error("a bug in the gateway: %s", escape(shown))
        raise InternalError("internal error") from None
