"""Error responses: an HTTP status and `{code, message, hint}`.

Two families: `HttpRefusal` concerns the HTTP request itself, RequestError the operation that it asks for. Any other
exception is a bug in the daemon: it is logged with its traceback under an incident id, and the client gets only the id.
"""

import logging
import secrets
from collections.abc import Sequence
from typing import Final

import msgspec

from aghbus.daemon.api.http.exchange import Header
from aghbus.daemon.base.logs import exception
from aghbus.protocol.api.base import ErrorResponse
from aghbus.protocol.api.bridge import MessageRefused, MessageRefusedResponse
from aghbus.protocol.base.errors import NotFound, Refused, RequestError, Unavailable
from aghbus.protocol.base.text import escape, shorten

logger = logging.getLogger("aghbus.daemon.api")

MAX_MESSAGE_CHARACTERS: Final = 1000
"""A message may quote the request, which may have a megabyte."""

STATUS_OF_CODE: Final = {
    "invalid_request": 400,
    "not_found": 404,
    "refused": 409,
    "conflict": 409,
    "lease_lost": 409,
    "work_closed": 409,
    "work_container_mismatch": 409,
    "actor_not_allowed": 409,
    "invalid_transition": 409,
    "too_large": 413,
    "message_refused": 422,
    "unavailable": 503,
}
"""Status of a RequestError by its code; a code that is not here has the status of its class."""

ANSWER_OF_CODE: Final[dict[str, type[ErrorResponse]]] = {"message_refused": MessageRefusedResponse}
"""The type of the response, for codes whose response is more than an ErrorResponse."""


class HttpRefusal(Exception):
    """A request that is refused before an operation sees it. `headers` are added to the common ones."""

    def __init__(self, status: int, code: str, message: str, hint: str = "", headers: Sequence[Header] = ()) -> None:
        super().__init__(message)
        self.status = status
        self.code = code
        self.message = message
        self.hint = hint
        self.headers = tuple(headers)


def too_large(limit: int) -> HttpRefusal:
    """413 for a body of more than `limit` bytes."""
    hint = "send large content as an artifact reference"
    return HttpRefusal(413, "too_large", f"body: is longer than {limit} bytes", hint)


def status_of(error: RequestError) -> int:
    """The HTTP status of `error`: by its code, else by its class."""
    by_class = 404 if isinstance(error, NotFound) else 409 if isinstance(error, Refused) else 400
    if isinstance(error, Unavailable):
        by_class = 503
    return STATUS_OF_CODE.get(error.error_code, by_class)


def error_body(code: str, message: str, hint: str = "") -> bytes:
    """An ErrorResponse as JSON; control characters are escaped, because tools print it unchanged."""
    text = shorten(escape(message), MAX_MESSAGE_CHARACTERS)
    return msgspec.json.encode(
        ErrorResponse(code=code, message=text, hint=shorten(escape(hint), MAX_MESSAGE_CHARACTERS))
    )


def request_error_body(error: RequestError) -> bytes:
    """`error` as JSON; of a refused foreign message with all its findings."""
    if isinstance(error, MessageRefused):
        text = shorten(escape(error.message), MAX_MESSAGE_CHARACTERS)
        answer = MessageRefusedResponse(
            code=error.error_code, message=text, hint=error.hint, findings=list(error.findings)
        )
        return msgspec.json.encode(answer)
    return error_body(error.error_code, error.message, error.hint)


def incident(error: BaseException, method: str, path: str) -> bytes:
    """Log `error` with its traceback, and return the body that names only the incident."""
    number = secrets.token_hex(6)
    exception(logger, "request failed", error, incident=number, method=method, path=path)
    return error_body(
        "internal", f"internal error, incident {number}", f"look for incident {number} in the log of aghd"
    )
