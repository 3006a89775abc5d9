"""A client of a daemon's health listener."""

import http.client
import json
import re
from typing import Any, Final, NamedTuple

from tests.support.daemons import Daemon, wait_for

LISTEN: Final = ("--health-listen", "127.0.0.1:0", "--log-level", "info")
"""Arguments of a daemon whose listener has a port that the system chooses."""


class Answer(NamedTuple):
    """One answer of the listener."""

    status: int
    headers: http.client.HTTPMessage
    body: bytes

    def json(self) -> Any:
        """The body."""
        return json.loads(self.body)


def port_of(daemon: Daemon) -> int:
    """The port of the health listener of a daemon that was started with LISTEN, as its log says."""

    def found() -> list[str]:
        log = daemon.log.read_text() if daemon.log.exists() else ""
        return re.findall(r"health listener.*\bport=(\d+)", log)

    wait_for(found, 30, "the listener")
    return int(found()[-1])


def ask(port: int, path: str, method: str = "GET", body: bytes | None = None) -> Answer:
    """One request."""
    client = http.client.HTTPConnection("127.0.0.1", port, timeout=30)
    try:
        client.request(method, path, body)
        response = client.getresponse()
        return Answer(response.status, response.headers, response.read())
    finally:
        client.close()
