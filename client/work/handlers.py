"""The handlers of a worker: how each is declared, what it is called with, and how what it returns becomes the report."""

from __future__ import annotations

import inspect
import math
import typing
from collections.abc import Awaitable, Callable, Mapping
from typing import Any, Final, NamedTuple

import msgspec

from aghbus.client.errors import ClientError
from aghbus.client.work.job import AsyncJob

Middleware = Callable[[AsyncJob, Callable[[], Awaitable[Any]]], Awaitable[Any]]

DELAY: Final = 1.0
"""Seconds before the second attempt of a handler with `Retry`."""


class Retry(NamedTuple):
    """When a work is tried again after an exception: up to `attempts` in all, if the exception is one of `on`.

    The second attempt comes after `delay` seconds, each later one after `backoff` times as long. Attempts that ended with the
    death of a worker count, too. After five in all the daemon ends the work as failed.
    """

    attempts: int = 3
    delay: float = DELAY
    on: tuple[type[Exception], ...] = (Exception,)
    backoff: float = 2.0

    def pause(self, error: Exception, attempt: int) -> float | None:
        """Seconds until the attempt after `attempt`, which ended with `error`; None when there is none."""
        if attempt >= self.attempts or not isinstance(error, self.on):
            return None
        return self.delay * self.backoff ** (attempt - 1)


class PayloadError(ClientError):
    """The text of a work is not what its handler takes; the message names the field."""

    default_code = "malformed"


class ResultError(ClientError):
    """What a handler returned cannot be the result of a work."""

    default_code = "result"


class HandlerExit(Exception):
    """In place of what would end the worker: `sys.exit` in a handler, or its own cancellation."""


class Handler:
    """A declared function. `payload` is the type of its second parameter, None without one."""

    def __init__(
        self, function: Callable[..., Any], retry: Retry | None, time_limit: float | None, concurrency: int | None
    ) -> None:
        """Raises TypeError for a function that takes neither a job nor a job and an annotated payload."""
        self.function = function
        self.retry = retry
        self.time_limit = time_limit
        self.concurrency = concurrency
        self.payload: Any = None
        taken = [one for one in inspect.signature(self.function).parameters.values() if one.default is one.empty]
        positional = [one for one in taken if one.kind in (one.POSITIONAL_ONLY, one.POSITIONAL_OR_KEYWORD)]
        name = getattr(self.function, "__name__", "the handler")
        if len(positional) not in (1, 2) or any(one.kind is one.KEYWORD_ONLY for one in taken):
            raise TypeError(f"{name}: a handler takes the job, and the payload if it has a second parameter")
        if len(positional) == 2:
            hints = typing.get_type_hints(self.function, include_extras=True)
            if positional[1].name not in hints:
                raise TypeError(f"{name}: {positional[1].name} needs an annotation, the type of the payload")
            self.payload = hints[positional[1].name]

    @property
    def is_coroutine(self) -> bool:
        """Whether it is awaited; else it gets a thread."""
        return inspect.iscoroutinefunction(self.function)

    def arguments(self, body: Mapping[str, Any]) -> tuple[Any, ...]:
        """What follows the job: the text of the opening as `payload`, or nothing. Raises PayloadError."""
        if self.payload is None:
            return ()
        text = str(body.get("text") or "")
        if self.payload is str:
            return (text,)
        read = getattr(self.payload, "model_validate_json", None)  # pydantic's protocol
        try:
            return (msgspec.json.decode(text, type=self.payload) if read is None else read(text),)
        except Exception as error:  # pydantic's own class, which we do not import
            raise PayloadError(f"the text is not the payload that this capability takes: {error}") from None


def report_of(value: Any) -> tuple[str | None, dict[str, Any] | None]:
    """Message and result of the trace for what a handler returned. Raises ResultError.

    A text is the message. An object is the result: a dict, dataclass, msgspec Struct or pydantic model. Any other value is its
    member `value`.
    """
    if value is None or isinstance(value, str):
        _check(value)
        return value, None
    try:
        plain = msgspec.to_builtins(value, enc_hook=encoded, str_keys=True)
    except (TypeError, ValueError, RecursionError) as error:
        raise ResultError(f"the handler returned a {type(value).__name__} that JSON cannot have: {error}") from None
    result = plain if isinstance(plain, dict) else {"value": plain}
    _check(result)
    return None, result


def encoded(value: Any) -> Any:
    """A value that msgspec does not know: a pydantic model."""
    dump = getattr(value, "model_dump", None)
    if dump is None:
        raise TypeError(f"{type(value).__name__} has no JSON form")
    return dump(mode="json")


def _check(value: Any, path: str = "$") -> None:
    """Raises ResultError for what would be changed in silence, or could not be written."""
    if isinstance(value, float) and not math.isfinite(value):
        raise ResultError(f"the handler returned {value} at `{path}`, which JSON cannot have")
    if isinstance(value, str):
        try:
            value.encode()
        except UnicodeEncodeError:
            raise ResultError(f"the handler returned a lone surrogate at `{path}`, which UTF-8 cannot have") from None
    elif isinstance(value, dict):
        for name, member in value.items():
            _check(name, f"{path} (a name)")
            _check(member, f"{path}.{name}")
    elif isinstance(value, list | tuple):
        for index, entry in enumerate(value):
            _check(entry, f"{path}[{index}]")
