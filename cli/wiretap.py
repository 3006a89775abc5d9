"""Publishing one message on a NATS server by hand, for the demo: what a retry or a redelivery looks like on the wire.

The client protocol of NATS is lines of text (docs.nats.io, "NATS Client Protocol"): INFO from the server, then CONNECT,
PUB and PING from us, and PONG when the server has taken all of it.
"""

from __future__ import annotations

import json
import socket

from aghbus.client.errors import Unexpected

TIMEOUT = 10.0
"""Seconds for each step with a server on this machine."""


def publish(port: int, token: str, subject: str, payload: bytes) -> None:
    """Publish `payload` on the loopback server at `port`; returns when the server has it. Raises Unexpected or OSError."""
    options = json.dumps({"verbose": False, "pedantic": False, "auth_token": token, "lang": "python", "version": "0"})
    with socket.create_connection(("127.0.0.1", port), TIMEOUT) as connection, connection.makefile("rwb") as stream:
        stream.readline()  # INFO, whose contents do not matter here
        stream.write(f"CONNECT {options}\r\nPUB {subject} {len(payload)}\r\n".encode() + payload + b"\r\nPING\r\n")
        stream.flush()
        for line in stream:
            if line.startswith(b"PONG"):
                return
            if line.startswith(b"-ERR"):
                raise Unexpected(f"the demo's broker refused: {line.decode('utf-8', 'replace').strip()}")
    raise Unexpected("the demo's broker closed the connection")
