"""One exception class for each error code of the API (docs/api.md, Errors)."""

from __future__ import annotations

from typing import Any, Final

from aghbus.client.api import error_of
from aghbus.client.errors import ClientError, RefusedByDaemon, Unexpected


class InvalidRequest(RefusedByDaemon):
    """A field or parameter is missing, unknown or breaks a rule."""


class SecretLike(RefusedByDaemon):
    """The content seems to contain a credential; `allow_secrets=True` sends it anyway."""


class BadRequest(RefusedByDaemon):
    """Not an HTTP/1.1 request."""


class Unauthorized(RefusedByDaemon):
    """TCP only: the token or its proof is missing or wrong."""


class Forbidden(RefusedByDaemon):
    """TCP only: the daemon has another address."""


class NotFound(RefusedByDaemon):
    """No such work, message, capability or artifact."""


class UnknownPath(RefusedByDaemon):
    """No such path in the daemon's version of the API."""


class MethodNotAllowed(RefusedByDaemon):
    """The path has other methods."""


class RequestTimeout(RefusedByDaemon):
    """The request did not arrive in time."""

    default_code = "timeout"


class Refused(RefusedByDaemon):
    """The protocol forbids it."""


class Conflict(RefusedByDaemon):
    """The id or name was used for other content, the inbox message is acked or dead, or the id is ambiguous."""


class LeaseLost(RefusedByDaemon):
    """Another lease of the inbox message is the current one, or none is."""


class WorkClosed(RefusedByDaemon):
    """The work has ended."""


class WorkContainerMismatch(RefusedByDaemon):
    """The work lives in another thread or direct room."""


class ActorNotAllowed(RefusedByDaemon):
    """The role of the daemon in this work does not allow it."""


class InvalidTransition(RefusedByDaemon):
    """The state of the work does not allow it."""


class TooLarge(RefusedByDaemon):
    """The body or the artifact is too long."""


class TargetTooLong(RefusedByDaemon):
    """The URL is longer than 8 KiB."""


class UnsupportedMediaType(RefusedByDaemon):
    """The content type is not JSON."""


class MessageRefused(RefusedByDaemon):
    """A foreign message breaks rules of its format; `answer["findings"]` lists every violation."""


class HeadTooLarge(RefusedByDaemon):
    """The headers are too long."""


class Unavailable(RefusedByDaemon):
    """A later attempt may succeed: broker unreachable, store full, daemon draining, or too many connections."""


class Internal(Unexpected):
    """A bug in the daemon: the message names the incident, and the daemon's log has the traceback."""

    default_code = "internal"


CLASS_OF_CODE: Final = {form.default_code: form for form in RefusedByDaemon.__subclasses__()}
"""The class of each code. A code that is not here has RefusedByDaemon itself."""


def refusal(status: int, document: dict[str, Any]) -> ClientError:
    """The error of an error response `{code, message, hint}`."""
    error, code = error_of(status, document), str(document.get("code") or "")
    if isinstance(error, Unexpected):
        return Internal(error.message, error.hint, code)
    return CLASS_OF_CODE.get(code, RefusedByDaemon)(error.message, error.hint, code, document)
