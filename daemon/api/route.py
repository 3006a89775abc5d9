"""One route of the local API: what it takes, what it gives, and who answers."""

from collections.abc import AsyncIterator, Awaitable, Callable, Sequence
from dataclasses import dataclass
from typing import Any

from aghbus.daemon.api import handlers as h
from aghbus.daemon.api import queries as q
from aghbus.daemon.api.service import Service
from aghbus.protocol.api.artifacts import Artifact
from aghbus.protocol.api.base import RequestModel, ResponseModel
from aghbus.protocol.api.bridge import BridgeMessage
from aghbus.protocol.api.messages import Event

Handler = Callable[[Service, h.Call[Any, Any, Any]], Awaitable[ResponseModel]]
Uploader = Callable[[Service, h.Call[Any, Any, Any], AsyncIterator[bytes]], Awaitable[Artifact]]
Downloader = Callable[[Service, h.Call[Any, Any, Any]], Awaitable[tuple[Artifact, AsyncIterator[bytes]]]]
Streamer = Callable[[Service, h.Call[Any, Any, Any]], AsyncIterator[Sequence[Event | BridgeMessage]]]


@dataclass(frozen=True, slots=True)
class Route:
    """One method of one path.

    `path` has its parameters in braces, of the form `parameters`. `ask` is the body's type (None: the method takes no
    body), `answer` that of the reply. Exactly one of `handler`, `stream`, `upload` (its body is content, not JSON) and
    `download` (its reply is content) is set, but for the OpenAPI document, which has none. `waits` marks a handler that may
    wait long for something to happen: it is cancelled when its client goes away or the daemon drains, so that nothing is
    handed to nobody. `max_body` allows a larger body (bytes) than the API's usual one.
    """

    method: str
    path: str
    summary: str
    answer: type[ResponseModel] | None = None
    handler: Handler | None = None
    stream: Streamer | None = None
    upload: Uploader | None = None
    download: Downloader | None = None
    parameters: type[q.Query] = q.Nothing
    query: type[q.Query] = q.Nothing
    ask: type[RequestModel] | None = None
    status: int = 200
    errors: tuple[str, ...] = ()
    waits: bool = False
    max_body: int | None = None
