"""Delivers messages to standard output: one line each, acknowledged after it is written."""

from __future__ import annotations

from collections.abc import Callable

from aghbus.cli.app.findings import print_findings
from aghbus.cli.app.output import Output
from aghbus.cli.bridge.pending import UnansweredWorks
from aghbus.client.api import Api, Retry
from aghbus.client.errors import ClientError
from aghbus.client.events import follow
from aghbus.host.stdio import flush
from aghbus.protocol.base.annotations import Any


def print_deliveries(
    api: Api, format: str, output: Output, on_lost: Callable[[str], None], printed: UnansweredWorks, *, meta: bool
) -> None:
    """Print messages forever, beginning with the unacknowledged ones. Raises Unreachable when the daemon stays unreachable.

    Messages that were printed but not acknowledged before the process ended are printed again by the next one.
    """
    for item in follow(api, (), None, on_lost, f"/v1/bridge/{format}/stream"):
        if item.get("type") == "gap":
            output.note(f"(gap: retention removed everything up to #{item['seq']})")
            continue
        printed.add(item)  # before printing: the answer may arrive immediately
        output.line(item if meta else item["message"])
        flush()
        print_findings(output, "seq", item["seq"], item["findings"])
        post_with_retry(api, f"/v1/bridge/{format}/ack", {"seq": item["seq"]})


def post_with_retry(api: Api, path: str, body: dict[str, Any]) -> dict[str, Any]:
    """POST an idempotent request, retried for up to `api.timeout` seconds while the daemon is unreachable."""
    retry = Retry(api.timeout)
    while True:
        try:
            return api.post(path, body)
        except ClientError as error:
            retry.pause(error)
