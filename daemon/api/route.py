"""The type of an entry of the table of routes, and the look-up of its operation in a running daemon."""

from collections.abc import Callable, Iterable
from dataclasses import dataclass
from typing import Any, Literal

from aghbus.protocol.api.base import RequestModel, ResponseModel
from aghbus.protocol.api.queries import NoParameters, Query

Operation = Callable[..., Any]


@dataclass(frozen=True, slots=True, eq=False)
class Route:
    """One method of one path.

    `operation` is a method of the class that carries it out. It takes the parameters of `path` in their order (their types are
    the fields of `parameters`), then the `query` and the `request` where the route has them, and returns the `response` or raises
    RequestError. None stands for the OpenAPI document.

    `transfer` is what goes over the connection: `json`; `events`, where the operation returns an asynchronous iterator of pages of
    `response`; `upload`, where it takes an asynchronous iterator of the body's bytes last; `download`, where it returns an
    Artifact and an iterator of its bytes.

    `errors` are the codes of this route in addition to those of every route. `waits`: the operation may wait long for
    something, and is cancelled when its client disconnects or the daemon drains. `max_body` allows a larger body (bytes) than the
    API's usual one. `unavailable` says of which responses the status is 503.
    """

    method: str
    path: str
    summary: str
    operation: Operation | None
    response: type[ResponseModel] | None = None
    parameters: type[Query] = NoParameters
    query: type[Query] = NoParameters
    request: type[RequestModel] | None = None
    status: int = 200
    errors: tuple[str, ...] = ()
    transfer: Literal["json", "events", "upload", "download"] = "json"
    waits: bool = False
    max_body: int = 0
    unavailable: Callable[[Any], bool] | None = None


def bind(routes: Iterable[Route], parts: Iterable[object]) -> dict[Route, Operation]:
    """The operation of each route as a bound method of the part whose class, or a base of it, has it. LookupError when none has."""
    parts = tuple(parts)
    return {route: _bound(route.operation, parts) for route in routes if route.operation is not None}


def _bound(operation: Operation, parts: tuple[object, ...]) -> Operation:
    name = operation.__name__
    for part in parts:
        if any(vars(each).get(name) is operation for each in type(part).__mro__):
            bound: Operation = getattr(part, name)
            return bound
    raise LookupError(f"no part of the daemon has the operation {operation.__qualname__}")
