"""Operations of the API as methods of the clients, and the requests that call them."""

from __future__ import annotations

import inspect
import itertools
from collections.abc import AsyncGenerator, Callable, Iterable
from typing import Any, Final, NamedTuple, ParamSpec, Protocol, TypeVar

import msgspec

from aghbus.client.core.ids import new_id
from aghbus.client.core.method import Help, Method, StreamMethod
from aghbus.client.core.refusals import InvalidRequest
from aghbus.client.http import quote, target
from aghbus.protocol.api.base import RequestModel
from aghbus.protocol.api.operation import AnyOperation, Operation
from aghbus.protocol.api.peers import WHOIS_SECONDS

P = ParamSpec("P")
R = TypeVar("R")

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


class Caller(Protocol):
    """The part of the core that carries a call out."""

    async def call(self, operation: Operation[P, R], /, *given: P.args, **named: P.kwargs) -> R:
        """The response."""
        ...


def method(operation: Operation[P, R], /) -> Method[P, R]:
    """The method for an operation: its parameters are those of the path, then the fields of the query or the body."""

    async def step(caller: Caller, /, *given: P.args, **named: P.kwargs) -> R:
        return await caller.call(operation, *given, **named)

    return Method(step, operation.route, lambda: Help(_description(operation), _signature(operation)))


def stream(operation: Operation[P, R], steps: Callable[[Any, Any], AsyncGenerator[R, None]], /) -> StreamMethod[P, R]:
    """The method for a stream of events: its parameters are the fields of the query."""

    def start(core: Any, /, *given: P.args, **named: P.kwargs) -> AsyncGenerator[R, None]:
        return steps(core, operation.takes.query(*given, **named))

    return StreamMethod(start, operation.route, lambda: Help(steps.__doc__ or "", _signature(operation)))


def call_to(operation: AnyOperation, /, *given: Any, **named: Any) -> Call:
    """The request for an operation with these parameters: those of the path first."""
    takes = operation.takes
    names = takes.path.__struct_fields__
    where = operation.path.format_map({name: quote(str(value)) for name, value in zip(names, given, strict=False)})
    form = (takes.request or takes.query)(*given[len(names) :], **named)
    call = call_of(operation.method, where, form, idempotent=operation.idempotent)
    return call._replace(statuses=(200, 503)) if operation.may_be_unready else call


def call_of(method: str, path: str, form: msgspec.Struct, *, idempotent: bool) -> Call:
    """The request with the fields of `form`, as JSON or in the query string. Missing ids are made here, before the first send.

    Raises InvalidRequest for values that JSON cannot have.
    """
    wait = getattr(form, "wait", 0.0)
    wait = WHOIS_SECONDS if wait is None else float(wait)
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
    for name, parameter in zip(form.__struct_fields__, form.__struct_encode_fields__, strict=True):
        value = getattr(form, name)
        if isinstance(value, frozenset | set | list | tuple):
            value = sorted(value)
        pairs.append((parameter, str(value) if isinstance(value, int | float) and value is not True else value))
    return [(name, value) for name, value in pairs if value != "False"]


def _description(operation: AnyOperation) -> str:
    form = operation.takes.request or operation.takes.query
    fields = f"The keywords are the fields of {form.__name__}. " if form.__struct_fields__ else ""
    answer = operation.response.__name__
    return f"{operation.summary}: `{operation.route}`.\n\n{fields}Returns {answer} (docs/openapi.json)."


def _signature(operation: AnyOperation) -> inspect.Signature:
    segments = operation.path.split("/")
    parts = [
        _NAMES.get(before, segment[1:-1]) for before, segment in itertools.pairwise(segments) if segment.startswith("{")
    ]
    place = inspect.Parameter.POSITIONAL_ONLY if parts else inspect.Parameter.POSITIONAL_OR_KEYWORD
    first = [inspect.Parameter(name, place) for name in ("self", *parts)]
    fields = inspect.signature(operation.takes.request or operation.takes.query).parameters.values()
    shown = [field.replace(annotation=inspect.Parameter.empty) for field in fields]
    return inspect.Signature([*first, *shown], return_annotation=operation.response)
