"""From the bus to standard output: each message for our agent is a line, acknowledged once it is written."""

from __future__ import annotations

import time

from aghbus.cli.bridge.findings import print_findings
from aghbus.client.errors import ClientError, RefusedByDaemon
from aghbus.client.events import FIRST_PAUSE, LAST_PAUSE, follow
from aghbus.protocol.base.backoff import Backoff
from aghbus.store.host.stdio import flush

TYPE_CHECKING = False
if TYPE_CHECKING:
    from collections.abc import Callable
    from typing import Any

    from aghbus.cli.app.output import Output
    from aghbus.cli.bridge.pending import UnansweredWorks
    from aghbus.client.api import Api


def hand_out(
    api: Api, format: str, output: Output, on_lost: Callable[[str], None], printed: UnansweredWorks, *, meta: bool
) -> None:
    """Print what comes, for ever: what nobody has acknowledged first. Raises Unreachable when the daemon stays away.

    What was printed but not yet acknowledged when the process ended is printed again by the next one.
    """
    for item in follow(api, (), None, on_lost, f"/v1/bridge/{format}/stream"):
        if item.get("type") == "gap":
            output.note(f"(gap: everything up to #{item['seq']} was removed by retention)")
            continue
        printed.add(item)  # before: the answer may be here at once
        output.line(item if meta else item["message"])
        flush()
        print_findings(output, "seq", item["seq"], item["findings"])
        post_with_retry(api, f"/v1/bridge/{format}/ack", {"seq": item["seq"]})


def post_with_retry(api: Api, path: str, ask: dict[str, Any]) -> dict[str, Any]:
    """The answer to a POST that may be repeated, while the daemon is away for up to `api.timeout` seconds."""
    deadline, backoff = time.monotonic() + api.timeout, Backoff(FIRST_PAUSE, LAST_PAUSE)
    while True:
        try:
            return api.post(path, ask)
        except ClientError as error:
            passing = not isinstance(error, RefusedByDaemon) or error.code == "unavailable"
            if not passing or time.monotonic() >= deadline:
                raise
        time.sleep(backoff.next())
