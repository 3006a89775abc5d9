"""The type of an entry of the table of operations: a route of the local API and what it takes and returns."""

from collections.abc import Callable
from typing import Any, Concatenate, Generic, Literal, ParamSpec, TypeVar, overload

import msgspec

from aghbus.protocol.api.base import RequestModel
from aghbus.protocol.api.queries import NoParameters, Query

P = ParamSpec("P")
R = TypeVar("R")
A = TypeVar("A")
B = TypeVar("B")


class Parameters(msgspec.Struct, Generic[P], frozen=True):
    """What an operation takes: the parameters of its path, then those of its query string or the fields of its body.

    For a type checker, `P` are the parameters of a method that calls the operation.
    """

    path: type[Query]
    query: type[Query]
    request: type[RequestModel] | None


@overload
def takes(form: Callable[P, object], /) -> Parameters[P]: ...
@overload
def takes(form: Callable[P, object], path: Callable[[A], Query], /) -> Parameters[Concatenate[A, P]]: ...
@overload
def takes(form: Callable[P, object], path: Callable[[A, B], Query], /) -> Parameters[Concatenate[A, B, P]]: ...
def takes(form: Any, path: Any = NoParameters, /) -> Parameters[...]:
    """Parameters with the fields of `form`, a query string or a body, and of `path`, one or two parts of the path."""
    if issubclass(form, RequestModel):
        return Parameters(path, NoParameters, form)
    return Parameters(path, form, None)


class Operation(msgspec.Struct, Generic[P, R], frozen=True, eq=False):
    """One method of one path: `route` is `METHOD PATH`.

    `status` is that of success. `errors` are the codes of this operation in addition to those of every one. `waits`: it may wait
    long for something, and is cancelled when its client disconnects or the daemon drains. `may_be_unready`: the status is 503
    when the field `ready` of the response is false. `idempotent`: the same request a second time has the same effect.

    `transfer` is what goes over the connection: `json`; `events`, a stream of server-sent events with one `response` each;
    `upload`, where the body is any bytes; `download`, where those are the response.
    """

    route: str
    summary: str
    takes: Parameters[P]
    response: type[R]
    status: int = 200
    errors: tuple[str, ...] = ()
    transfer: Literal["json", "events", "upload", "download"] = "json"
    waits: bool = False
    may_be_unready: bool = False
    idempotent: bool = True

    @property
    def method(self) -> str:
        """The HTTP method."""
        return self.route.partition(" ")[0]

    @property
    def path(self) -> str:
        """The path, its parameters in braces."""
        return self.route.partition(" ")[2]


AnyOperation = Operation[..., Any]
