"""A process that publishes messages under fresh names until it is ended: `python -m tests.support.flooder URL`.

With an envelope as JSON behind the URL it publishes that one under fresh ids, RATE times a second.
"""

import itertools
import json
import socket
import sys
import time
from collections.abc import Iterator
from typing import Any
from urllib.parse import urlsplit

from aghbus.protocol.agh.discovery import CATALOG, INCLUDE_KEY
from aghbus.protocol.agh.identifiers import subject_for
from aghbus.protocol.agh.limits import MAX_LIFETIME

WORKSPACE, CHANNEL, TARGET = "ws_local", "default", "worker"
_BATCH = 50
RATE = 4_000


def envelope(number: int, kind: str, body: dict[str, Any], **fields: Any) -> dict[str, Any]:
    """One of a name that is used once; fresh as long as the protocol allows."""
    now = int(time.time())
    return {
        "protocol": "agh-network/v0",
        "id": f"msg_unknown_{number}",
        "workspace_id": WORKSPACE,
        "kind": kind,
        "channel": CHANNEL,
        "from": f"unknown{number}",
        "to": None,
        "ts": now,
        "expires_at": now + MAX_LIFETIME - 60,
        "body": body,
        **fields,
    }


def directed(number: int, body: dict[str, Any], work_id: str) -> dict[str, Any]:
    """An opening, if `body` is valid."""
    place = {"surface": "thread", "thread_id": "thread_unknown", "to": TARGET, "work_id": work_id}
    return envelope(number, "say", body, **place)


def messages(number: int) -> list[dict[str, Any]]:
    """One of each kind: a greet, a question for the catalog, an opening, a copy of another, and an invalid opening."""
    card = {"peer_id": f"unknown{number}", "profiles_supported": [], "capabilities": []}
    card |= {"artifacts_supported": [], "trust_modes_supported": []}
    return [
        envelope(number, "greet", {"peer_card": card}),
        envelope(number + 1, "whois", {"type": "request", "query": ""}, ext={INCLUDE_KEY: [CATALOG]}),
        directed(number + 2, {"text": "please"}, f"work_{number}"),
        directed(0, {"text": "please"}, "work_copy"),
        directed(number + 3, {"text": 1}, f"work_invalid_{number}"),
    ]


def frame(document: dict[str, Any]) -> bytes:
    """As the NATS protocol has it."""
    raw = json.dumps(document).encode()
    subject = subject_for(document["workspace_id"], document["channel"], document["to"])
    return f"PUB {subject} {len(raw)}\r\n".encode() + raw + b"\r\n"


def batches(forged: dict[str, Any] | None) -> Iterator[list[dict[str, Any]]]:
    """The messages of each batch, those with the contents of `forged` at their rate."""
    for number in itertools.count(4, 4 * _BATCH):
        numbers = range(number, number + 4 * _BATCH, 4)
        if forged is None:
            yield [one for each in numbers for one in messages(each)]
        else:
            yield [{**forged, "id": f"msg_forged_{each}"} for each in numbers]
            time.sleep(_BATCH / RATE)


def main(url: str, forged: str = "null") -> None:
    """Publish until the process is ended."""
    server = urlsplit(url)
    with socket.create_connection((server.hostname or "", server.port or 0)) as connection:
        connection.sendall(b'CONNECT {"verbose":false,"pedantic":false}\r\n')
        for batch in batches(json.loads(forged)):
            connection.sendall(b"".join(map(frame, batch)) + b"PONG\r\n")


if __name__ == "__main__":
    main(*sys.argv[1:])
