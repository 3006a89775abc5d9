"""Errors of the client, each with a stable code for machines and a hint for people."""

from __future__ import annotations

from aghbus.protocol.base.annotations import Any


class ClientError(Exception):
    """An error with a machine-readable `code`, a `message` and a `hint` (may be empty) that names the next step."""

    default_code = "unexpected"

    def __init__(self, message: str, hint: str = "", code: str = "") -> None:
        super().__init__(message)
        self.message = message
        self.hint = hint
        self.code = code or self.default_code
        if hint:
            self.add_note(f"hint: {hint}")  # a traceback shows it

    @property
    def is_transient(self) -> bool:
        """Whether a retry of the same request may succeed."""
        return isinstance(self, Unreachable | Unexpected) or self.code == "unavailable"


class UsageError(ClientError):
    """An argument breaks a rule; the message names the argument and the rule."""

    default_code = "usage"


class Unreachable(ClientError):
    """No daemon listens at the address, or it stopped and did not come back in time."""

    default_code = "unreachable"


class ConfigurationError(ClientError):
    """A configuration file of the instance cannot be read."""

    default_code = "configuration"


class ConnectionLost(Unreachable):
    """The connection was closed before the end of the response."""


class RefusedByDaemon(ClientError):
    """An error response of the API. `answer` is the whole JSON object, which may have more members than an error needs.

    The code of a subclass is its name in snake case, unless it says another one.
    """

    default_code = "refused"

    def __init_subclass__(cls) -> None:
        words = "".join(f"_{letter.lower()}" if letter.isupper() else letter for letter in cls.__name__)
        cls.default_code = vars(cls).get("default_code", words[1:])

    def __init__(self, message: str, hint: str = "", code: str = "", answer: dict[str, Any] | None = None) -> None:
        super().__init__(message, hint, code)
        self.answer: dict[str, Any] = answer or {}


class Unexpected(ClientError):
    """A response that the API does not define, an internal error of the daemon, or a bug in this client."""
