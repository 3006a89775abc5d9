"""Methods that are declared once and appear on both clients: blocking on the one, awaitable on the other.

`Method` and `StreamMethod` are descriptors over a function of the core. The parameters and the result of that function are those
of the method, for the type checker and for `help`.
"""

from __future__ import annotations

import inspect
from collections.abc import AsyncGenerator, Callable, Coroutine, Generator
from functools import partial
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


class Method(Generic[P, R]):
    """A method with one result. `route` is the route of the API that it calls, if it stands for one."""

    def __init__(
        self,
        step: Callable[Concatenate[Any, P], Coroutine[Any, Any, R]],
        route: str = "",
        describe: Callable[[], Help] | None = None,
    ) -> None:
        self._step = step
        self._describe = describe or partial(_help, step)
        self.route = route

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: Blocking, owner: object) -> Callable[P, R]: ...
    @overload
    def __get__(self, instance: Asynchronous, owner: object) -> Callable[P, Coroutine[Any, Any, R]]: ...
    @overload
    def __get__(self, instance: None, owner: object) -> Callable[Concatenate[Any, P], R]: ...
    def __get__(self, instance: Blocking | Asynchronous | None, owner: object) -> Any:
        if instance is None:
            return documented(self._describe(), self._name)
        if isinstance(instance, Blocking):
            return partial(_run, self._step, instance.core)
        return partial(self._step, instance.core)


class StreamMethod(Generic[P, R]):
    """A method that returns an iterator: an asynchronous one on the asynchronous client."""

    def __init__(
        self,
        steps: Callable[Concatenate[Any, P], AsyncGenerator[R, None]],
        route: str = "",
        describe: Callable[[], Help] | None = None,
    ) -> None:
        self._steps = steps
        self._describe = describe or partial(_help, steps)
        self.route = route

    def __set_name__(self, owner: type, name: str) -> None:
        self._name = name

    @overload
    def __get__(self, instance: Blocking, owner: object) -> Callable[P, Generator[R, None, None]]: ...
    @overload
    def __get__(self, instance: Asynchronous, owner: object) -> Callable[P, AsyncGenerator[R, None]]: ...
    @overload
    def __get__(self, instance: None, owner: object) -> Callable[Concatenate[Any, P], Generator[R, None, None]]: ...
    def __get__(self, instance: Blocking | Asynchronous | None, owner: object) -> Any:
        if instance is None:
            return documented(self._describe(), self._name)
        if isinstance(instance, Blocking):
            return partial(_iterate, self._steps, instance.core)
        return partial(self._steps, instance.core)


def _run(step: Callable[..., Coroutine[Any, Any, R]], core: object, *given: Any, **named: Any) -> R:
    return run(step(core, *given, **named))


def _iterate(
    steps: Callable[..., AsyncGenerator[R, None]], core: object, *given: Any, **named: Any
) -> Generator[R, None, None]:
    return iterate(steps(core, *given, **named))


def _help(step: Callable[..., object]) -> Help:
    shown = inspect.signature(step)
    first, *others = shown.parameters.values()
    return Help(step.__doc__ or "", shown.replace(parameters=[first.replace(name="self"), *others]))


def documented(shown: Help, name: str) -> Callable[..., Any]:
    """A function that `help` shows as the method `name`."""

    def method(*given: Any, **named: Any) -> Any:
        raise TypeError(f"{name}() is a method of an object: call it on a client")

    method.__name__ = method.__qualname__ = name
    method.__doc__ = shown.text
    method.__signature__ = shown.signature  # type: ignore[attr-defined]
    return method
