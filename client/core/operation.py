"""Operations of the API: a route, the type whose fields are its parameters, and the type of its answer."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any, Concatenate, Final, Generic, NamedTuple, ParamSpec, Protocol, TypeVar, overload

import msgspec

from aghbus.client.core.ids import new_id
from aghbus.client.core.method import Help, Method, Stream
from aghbus.client.core.refusals import InvalidRequest
from aghbus.client.http import quote, target
from aghbus.protocol.api.base import RequestModel

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
F = TypeVar("F")
B = TypeVar("B")

_NAMES: Final = {
    "works": "work_id",
    "messages": "message_id",
    "capabilities": "capability_id",
    "runs": "run_id",
    "sessions": "session_id",
}
JSON: Final = {"Content-Type": "application/json"}
IDS: Final = {"id": "msg_", "run_id": "run_"}
"""Fields whose value makes a request idempotent, and the prefixes of the values that are made for them."""


class Part(Generic[A]):
    """The type of one part of a path."""


class Call(NamedTuple):
    """One request. `wait` is how long, in seconds, the daemon may wait before it answers.

    `idempotent`: the same request a second time has the same effect, so it is repeated when its answer was lost. `statuses` are
    those of an answer that is no error.
    """

    method: str
    target: str
    body: Iterable[bytes] = ()
    headers: dict[str, str] = {}  # noqa: RUF012 - never changed
    wait: float = 0.0
    idempotent: bool = True
    statuses: tuple[int, ...] = (200, 201)


def stream(route: str, form: Callable[P, F], steps: Callable[[Any, F], AsyncGenerator[R, None]], /) -> Stream[P, R]:
    """The method for a stream of events: its parameters are the fields of `form`."""

    def start(core: Any, /, *given: P.args, **named: P.kwargs) -> AsyncGenerator[R, None]:
        return steps(core, form(*given, **named))

    return Stream(
        start,
        route,
        lambda: Help(steps.__doc__ or "", _signature(route, form, inspect.signature(steps).return_annotation)),
    )


class Caller(Protocol):
    """The part of the core that carries a call out."""

    async def fetch(self, call: Call) -> bytes:
        """The body of the answer."""
        ...


@overload
def operation(
    route: str,
    summary: str,
    form: Callable[P, object],
    answer: type[R],
    /,
    *,
    idempotent: bool = True,
    not_ready: bool = False,
) -> Method[P, R]: ...
@overload
def operation(
    route: str, summary: str, form: Callable[P, object], answer: type[R], first: Part[A], /, *, idempotent: bool = True
) -> Method[Concatenate[A, P], R]: ...
@overload
def operation(
    route: str,
    summary: str,
    form: Callable[P, object],
    answer: type[R],
    first: Part[A],
    second: Part[B],
    /,
    *,
    idempotent: bool = True,
) -> Method[Concatenate[A, B, P], R]: ...
def operation(
    route: str,
    summary: str,
    form: Any,
    answer: type[Any],
    /,
    *parts: Part[Any],
    idempotent: bool = True,
    not_ready: bool = False,
) -> Method[..., Any]:
    """The method for `METHOD PATH`: its parameters are the `parts` of the path, then the fields of `form`.

    `idempotent` as in Call; `not_ready`: an answer with status 503 is one, too.
    """
    method, _, path = route.partition(" ")
    names = [segment[1:-1] for segment in path.split("/") if segment.startswith("{")]
    decoder = msgspec.json.Decoder(answer)

    async def step(caller: Caller, /, *given: Any, **named: Any) -> Any:
        where = path.format_map({name: quote(str(value)) for name, value in zip(names, given, strict=False)})
        call = call_of(method, where, form(*given[len(names) :], **named), idempotent=idempotent)
        return decoder.decode(await caller.fetch(call._replace(statuses=(200, 503)) if not_ready else call))

    return Method(
        step, route, lambda: Help(_description(route, summary, form, answer), _signature(route, form, answer))
    )


def call_of(method: str, path: str, form: msgspec.Struct, *, idempotent: bool) -> Call:
    """The request with the fields of `form`, as JSON or in the query string. Missing ids are made here, before the first send.

    Raises InvalidRequest for values that JSON cannot have.
    """
    wait = float(getattr(form, "wait", 0.0))
    if not isinstance(form, RequestModel):
        return Call(method, target(path, query_of(form)), wait=wait, idempotent=idempotent)
    for name, prefix in IDS.items():
        if name in form.__struct_fields__ and getattr(form, name) is None:
            setattr(form, name, new_id(prefix))
    try:
        body = msgspec.json.encode(form)
    except (TypeError, ValueError, RecursionError) as error:
        raise InvalidRequest(f"it cannot be written as JSON: {error}") from None
    return Call(method, path, (body,), {**JSON, "Content-Length": str(len(body))}, wait, idempotent)


def query_of(form: msgspec.Struct) -> list[tuple[str, object]]:
    """The fields of `form` as parameters of a query string."""
    pairs: list[tuple[str, object]] = []
    for field in msgspec.structs.fields(form):
        value = getattr(form, field.name)
        if isinstance(value, frozenset):
            value = sorted(value)
        pairs.append((field.encode_name, str(value) if isinstance(value, int | float) and value is not True else value))
    return [(name, value) for name, value in pairs if value != "False"]


def _description(route: str, summary: str, form: type, answer: type) -> str:
    fields = f"The keywords are the fields of {form.__name__}. " if inspect.signature(form).parameters else ""
    return f"{summary}: `{route}`.\n\n{fields}Returns {answer.__name__} (docs/api-types.md)."


def _signature(route: str, form: Callable[..., object], answer: Any) -> inspect.Signature:
    segments = route.split("/")
    parts = [
        _NAMES.get(before, segment[1:-1]) for before, segment in itertools.pairwise(segments) if segment.startswith("{")
    ]
    place = inspect.Parameter.POSITIONAL_ONLY if parts else inspect.Parameter.POSITIONAL_OR_KEYWORD
    first = [inspect.Parameter(name, place) for name in ("self", *parts)]
    fields = inspect.signature(form).parameters.values()
    shown = [field.replace(annotation=inspect.Parameter.empty) for field in fields]
    return inspect.Signature([*first, *shown], return_annotation=answer)
