"""The daemon's local API: JSON objects in, JSON objects out, errors as `ClientError`s."""

from __future__ import annotations

import json
import time

from aghbus.client.errors import ClientError, RefusedByDaemon, Unexpected
from aghbus.client.http import Endpoint, Incoming, Query, request, run, target
from aghbus.protocol.base.annotations import Any
from aghbus.protocol.base.backoff import Backoff

FIRST_PAUSE, LAST_PAUSE = 0.05, 1.0
"""Seconds between two attempts to reach the daemon: the first, and the longest that doubling leads to."""


class Api:
    """The API at one endpoint. `timeout` in seconds bounds every step of a request."""

    def __init__(self, endpoint: Endpoint, timeout: float) -> None:
        self.endpoint = endpoint
        self.timeout = timeout

    def get(self, path: str, query: Query = ()) -> dict[str, Any]:
        """The response to a GET. Raises Unreachable, RefusedByDaemon or Unexpected."""
        return self._request("GET", target(path, query), b"", 0.0)

    def post(self, path: str, body: dict[str, Any], *, wait: float = 0.0) -> dict[str, Any]:
        """The response to a POST of `body` without its None members; the daemon may take `wait` seconds beyond `timeout`."""
        given = {name: value for name, value in body.items() if value is not None}
        return self._request("POST", path, json.dumps(given).encode(), wait)

    def put(self, path: str, body: dict[str, Any]) -> dict[str, Any]:
        """The response to a PUT of `body`."""
        return self._request("PUT", path, json.dumps(body).encode(), 0.0)

    def _request(self, method: str, where: str, body: bytes, wait: float) -> dict[str, Any]:
        headers = {"Content-Type": "application/json", "Content-Length": str(len(body))} if body else {}
        return read_object(request(self.endpoint, method, where, [body], headers, self.timeout + wait))


class Retry:
    """The attempts of one request, for `timeout` seconds after the first one failed."""

    def __init__(self, timeout: float) -> None:
        self.timeout = timeout
        self._backoff = Backoff(FIRST_PAUSE, LAST_PAUSE)
        self._deadline = 0.0

    @property
    def has_failed(self) -> bool:
        """Whether an attempt has failed."""
        return bool(self._deadline)

    def pause(self, error: ClientError) -> None:
        """Wait before the next attempt. Raises `error` if a retry cannot help, or the time is over."""
        now = time.monotonic()
        self._deadline = self._deadline or now + self.timeout
        if not error.is_transient or now >= self._deadline:
            raise error from None
        time.sleep(self._backoff.next())


def read_object(response: Incoming) -> dict[str, Any]:
    """The JSON object of a whole response, which is closed; an error response is raised."""
    try:
        document = decode_object(response.status, run(response.body()))
    finally:
        response.close()
    if response.status >= 400:
        raise error_of(response.status, document)
    return document


def decode_object(status: int, body: bytes) -> dict[str, Any]:
    """The JSON object in the body of a response. Raises Unexpected."""
    try:
        document = json.loads(body)
    except ValueError:
        document = None
    if not isinstance(document, dict):
        raise Unexpected(f"HTTP {status} without a JSON object", "is this socket that of aghd?")
    return document


def error_of(status: int, document: dict[str, Any]) -> RefusedByDaemon | Unexpected:
    """The error of an error response `{code, message, hint}`; HTTP 500 is a bug in the daemon."""
    message = str(document.get("message") or f"HTTP {status}")
    hint, code = str(document.get("hint") or ""), str(document.get("code") or "")
    return Unexpected(message, hint, code) if status == 500 else RefusedByDaemon(message, hint, code, document)
