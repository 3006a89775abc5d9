"""The application of the health listener: three probes and the metrics."""

from collections.abc import Awaitable, Callable, Coroutine
from typing import Any, Final

import msgspec

from aghbus.daemon.api.http.errors import error_body, incident
from aghbus.daemon.api.http.exchange import JSON, Exchange
from aghbus.daemon.health.exporter import MEDIA_TYPE, Exporter
from aghbus.daemon.services.status import StatusService

Response = tuple[int, bytes, bytes]
"""Status, body, and the body's media type."""

_encode: Final = msgspec.json.Encoder().encode


class HealthApp:
    """Serves GET and HEAD of four paths. Each connection serves one request, without a body."""

    def __init__(self, status: StatusService, exporter: Exporter) -> None:
        self._status = status
        self._exporter = exporter
        self.started = False
        self._paths: dict[str, Callable[[], Awaitable[Response]]] = {
            "/livez": self._live,
            "/readyz": self._ready,
            "/startupz": self._started,
            "/metrics": self._metrics,
        }

    def __call__(self, exchange: Exchange) -> Coroutine[Any, Any, None] | None:
        """Serve one request."""
        exchange.keep_alive = False
        if exchange.has_body:
            exchange.respond(413, error_body("too_large", "body: requests of this listener have none"))
        elif exchange.path not in self._paths:
            exchange.respond(404, error_body("not_found", "no such path", f"there are {', '.join(self._paths)}"))
        elif exchange.method not in ("GET", "HEAD"):
            body = error_body("method_not_allowed", "method: only GET and HEAD are possible")
            exchange.respond(405, body, [(b"allow", b"GET, HEAD")])
        else:
            return self._serve(exchange)
        return None

    async def _serve(self, exchange: Exchange) -> None:
        try:
            status, body, content_type = await self._paths[exchange.path]()
            exchange.respond(status, body, content_type=content_type)
        except Exception as error:
            exchange.respond(500, incident(error, exchange.method, exchange.path))

    async def _live(self) -> Response:
        """The event loop runs."""
        return 200, _encode(await self._status.health()), JSON

    async def _ready(self) -> Response:
        """Broker, subscriptions and store are usable."""
        answer = await self._status.readiness()
        return 200 if answer.ready else 503, _encode(answer), JSON

    async def _started(self) -> Response:
        """The local API listens and all tasks run; the broker may be down."""
        return 200 if self.started else 503, _encode({"started": self.started}), JSON

    async def _metrics(self) -> Response:
        """Prometheus' text format."""
        return 200, await self._exporter.text(), MEDIA_TYPE
