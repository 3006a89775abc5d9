"""The little of ASGI that the API needs: its types, replies, and noticing that the client went away."""

import asyncio
from collections.abc import Awaitable, Callable, Iterable, MutableMapping
from functools import cache
from typing import Any, Final

Scope = MutableMapping[str, Any]
Event = MutableMapping[str, Any]
Receive = Callable[[], Awaitable[Event]]
Send = Callable[[Event], Awaitable[None]]
App = Callable[[Scope, Receive, Send], Awaitable[None]]
Header = tuple[bytes, bytes]

JSON: Final = b"application/json"
EVENT_STREAM: Final = b"text/event-stream"
CLOSE: Final[Header] = (b"connection", b"close")

WHOLE_BODY: Final = "aghbus.body"
"""Key of a scope, ours: the body's bytes, where all of it came together with the head."""


class ClientGone(Exception):
    """The client closed its connection before the answer; nobody is left to answer."""


@cache
def common_headers(content_type: bytes) -> tuple[Header, ...]:
    """What every response carries: answers are never cached, and never guessed to be something else than they say."""
    return (
        (b"content-type", content_type),
        (b"x-content-type-options", b"nosniff"),
        (b"cache-control", b"no-store"),
    )


async def reply(send: Send, status: int, body: bytes, extra: Iterable[Header] = ()) -> None:
    """Send a whole response: `body` is encoded JSON, `extra` are headers beside the common ones."""
    headers = (*common_headers(JSON), (b"content-length", b"%d" % len(body)), *extra)
    await send({"type": "http.response.start", "status": status, "headers": headers})
    await send({"type": "http.response.body", "body": body, "more_body": False})


def header(scope: Scope, name: bytes) -> list[bytes]:
    """Every value of the header `name` (lower case), in order; empty when the request has none."""
    headers: list[Header] = scope["headers"]
    return [value for key, value in headers if key == name]


async def until_gone(receive: Receive) -> None:
    """Return when the client is gone. Call it only after the body has been read."""
    while (await receive())["type"] != "http.disconnect":
        pass


async def end(*tasks: "asyncio.Task[Any]") -> None:
    """Cancel `tasks` and wait until they are over, whatever they end with."""
    for task in tasks:
        task.cancel()
    await asyncio.gather(*tasks, return_exceptions=True)
