"""The daemon's local API: JSON objects in, JSON objects out, errors as `ClientError`s."""

from __future__ import annotations

import json

from aghbus.client.errors import RefusedByDaemon, Unexpected
from aghbus.client.http import ConnectionLost, Endpoint, Query, Response, request, target, unreachable
from aghbus.protocol.base.annotations import Any


class Api:
    """The API at one endpoint. `timeout` in seconds bounds every step of a request."""

    __slots__ = ("endpoint", "timeout")

    def __init__(self, endpoint: Endpoint, timeout: float) -> None:
        self.endpoint = endpoint
        self.timeout = timeout

    def get(self, path: str, query: Query = ()) -> dict[str, Any]:
        """The response to a GET. Raises Unreachable, RefusedByDaemon or Unexpected."""
        return self._request("GET", target(path, query), None, 0.0)

    def post(self, path: str, body: dict[str, Any], *, wait: float = 0.0) -> dict[str, Any]:
        """The response to a POST of `body` without its None members; the daemon may take `wait` seconds beyond `timeout`."""
        given = {name: value for name, value in body.items() if value is not None}
        return self._request("POST", path, json.dumps(given).encode(), wait)

    def _request(self, method: str, where: str, body: bytes | None, wait: float) -> dict[str, Any]:
        try:
            response = request(self.endpoint, method, where, body, {}, self.timeout + wait)
            try:
                return read_object(response)
            finally:
                response.close()
        except (OSError, ConnectionLost) as error:
            raise unreachable(self.endpoint, error) from None


def read_object(response: Response) -> dict[str, Any]:
    """The JSON object of a whole response; an error response is raised."""
    try:
        document = json.loads(response.body())
    except ValueError:
        raise Unexpected(f"HTTP {response.status} without JSON", "is this socket that of aghd?") from None
    if not isinstance(document, dict):
        raise Unexpected(f"HTTP {response.status} without a JSON object", "is this socket that of aghd?")
    if response.status >= 400:
        raise error_of(response.status, document)
    return document


def error_of(status: int, document: dict[str, Any]) -> RefusedByDaemon | Unexpected:
    """The error of an error response `{code, message, hint}`; HTTP 500 is a defect of the daemon."""
    message = str(document.get("message") or f"HTTP {status}")
    hint, code = str(document.get("hint") or ""), str(document.get("code") or "")
    return Unexpected(message, hint, code) if status == 500 else RefusedByDaemon(message, hint, code, document)
