"""Methods that are declared once and appear on both clients: blocking on the one, awaitable on the other.

`Method` and `StreamMethod` are descriptors over a function of the core. The parameters and the result of that function are those
of the method, for the type checker and for `help`.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from functools import partial
from types import FunctionType, MethodType
from typing import Any, Concatenate, Generic, NamedTuple, ParamSpec, TypeVar, overload

from aghbus.client.http import iterate, run

P = ParamSpec("P")
R = TypeVar("R")


class Help(NamedTuple):
    """What `help` shows of a method."""

    text: str
    signature: inspect.Signature


class Blocking:
    """Base of what blocks. `core` has the functions that methods are declared over."""

    core: Any


class Asynchronous:
    """Base of what is awaited."""

    core: Any


class _Declared:
    """A function of the core that becomes a method of both clients: made at its first use, because most are never used."""

    def __init__(self, step: Callable[..., Any], route: str = "", describe: Callable[[], Help] | None = None) -> None:
        self._step = step
        self._describe = describe or partial(_help, step)
        self._functions: dict[bool, FunctionType] = {}
        self.route = route

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    def _get(self, instance: object, owner: type, blocking: Callable[[Any], Any]) -> Any:
        """The method, with signature and text for `help`. `blocking` carries the steps of one call out."""
        blocks = issubclass(owner, Blocking)
        function = self._functions.get(blocks) or self._make(blocks, blocking)
        return function if instance is None else MethodType(function, instance)

    def _make(self, blocks: bool, blocking: Callable[[Any], Any]) -> FunctionType:
        step = self._step

        def blocked(self: Any, /, *given: Any, **named: Any) -> Any:
            return blocking(step(self.core, *given, **named))

        def awaited(self: Any, /, *given: Any, **named: Any) -> Any:
            return step(self.core, *given, **named)

        function, shown = blocked if blocks else awaited, self._describe()
        function.__name__ = function.__qualname__ = self._name
        function.__doc__ = shown.text
        function.__signature__ = shown.signature  # type: ignore[attr-defined]
        assert isinstance(function, FunctionType)
        self._functions[blocks] = function
        return function


class Method(_Declared, Generic[P, R]):
    """A method with one result. `route` is the route of the API that it calls, if it stands for one."""

    def __init__(
        self,
        step: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
        route: str = "",
        describe: Callable[[], Help] | None = None,
    ) -> None:
        super().__init__(step, route, describe)

    @overload
    def __get__(self, instance: Blocking, owner: type) -> Callable[P, R]: ...
    @overload
    def __get__(self, instance: Asynchronous, owner: type) -> Callable[P, Coroutine[Any, Any, R]]: ...
    @overload
    def __get__(self, instance: None, owner: type) -> Callable[Concatenate[Any, P], R]: ...
    def __get__(self, instance: Blocking | Asynchronous | None, owner: type) -> Any:
        return self._get(instance, owner, run)


class StreamMethod(_Declared, Generic[P, R]):
    """A method that returns an iterator: an asynchronous one on the asynchronous client."""

    def __init__(
        self,
        steps: Callable[Concatenate[Any, P], AsyncGenerator[R, None]],
        route: str = "",
        describe: Callable[[], Help] | None = None,
    ) -> None:
        super().__init__(steps, route, describe)

    @overload
    def __get__(self, instance: Blocking, owner: type) -> Callable[P, Generator[R, None, None]]: ...
    @overload
    def __get__(self, instance: Asynchronous, owner: type) -> Callable[P, AsyncGenerator[R, None]]: ...
    @overload
    def __get__(self, instance: None, owner: type) -> Callable[Concatenate[Any, P], Generator[R, None, None]]: ...
    def __get__(self, instance: Blocking | Asynchronous | None, owner: type) -> Any:
        return self._get(instance, owner, iterate)


def _help(step: Callable[..., object]) -> Help:
    shown = inspect.signature(step)
    first, *others = shown.parameters.values()
    return Help(step.__doc__ or "", shown.replace(parameters=[first.replace(name="self"), *others]))
