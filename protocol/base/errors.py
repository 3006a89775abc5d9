"""The root of all errors, and RequestError: the fault of our own caller or of the daemon."""

from typing import ClassVar


class AghbusError(Exception):
    """Root of every error this project raises on purpose."""


class RequestError(AghbusError):
    """A request of our own agent or operator that the daemon cannot perform.

    `code` is stable and machine-readable, `hint` says what to do next (may be empty).
    """

    code: ClassVar[str] = "invalid_request"

    def __init__(self, message: str, *, hint: str = "", code: str | None = None) -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.error_code = code or self.code


class InvalidRequest(RequestError):
    """A field of the request is missing or breaks a rule; the message names field and rule."""


class NotFound(RequestError):
    """No such work, message, thread or capability in this store."""

    code = "not_found"


class Refused(RequestError):
    """Our own copy of the work forbids this send (spec section 5, Sending): closed work, wrong container or wrong sender."""

    code = "refused"


class Unavailable(RequestError):
    """A temporary failure: the broker is down, the store cannot write, or the daemon is shutting down."""

    code = "unavailable"
