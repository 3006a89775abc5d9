"""A check of a broker: connect, authenticate, PING, PONG, over asyncio streams.

Only for a port that the locks attribute to our own server: the token is never sent to another program on an old port.
"""

from __future__ import annotations

import asyncio
import contextlib
import json

import msgspec

_ANSWER_WAIT = 2.0  # seconds; a loopback server answers in a millisecond, a stalled machine in a second


class ProbeAnswer(msgspec.Struct, frozen=True):
    """Fields of a broker's INFO line; unknown ones are ignored."""

    server_name: str = ""
    version: str = ""
    max_payload: int = 0
    jetstream: bool = False


class ProbeFailed(Exception):
    """The broker sent no PONG; `refused` is true when it refused the token."""

    def __init__(self, cause: str, *, refused: bool = False) -> None:
        super().__init__(cause)
        self.refused = refused


async def probe(port: int, token: str) -> ProbeAnswer:
    """Returns the INFO of the broker on loopback `port` once it has accepted `token` and answered a PING."""
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(_ANSWER_WAIT):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            return await _handshake(reader, writer, token)
    except (OSError, TimeoutError, ValueError, msgspec.MsgspecError) as error:
        raise ProbeFailed(f"port {port}: {error or type(error).__name__}") from error
    finally:
        if writer is not None:
            writer.close()
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(_ANSWER_WAIT):
                    await writer.wait_closed()


async def _handshake(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str) -> ProbeAnswer:
    """INFO, then CONNECT and PING; NATS client protocol. Raises ValueError when another program listens there."""
    greeting = await reader.readline()
    if not greeting.startswith(b"INFO "):
        raise ValueError("it does not speak NATS")
    info = msgspec.json.decode(greeting[5:], type=ProbeAnswer)
    options = {
        "auth_token": token,
        "verbose": False,
        "pedantic": False,
        "name": "aghbus-probe",
        "lang": "python",
        "version": "0",
    }
    writer.write(b"CONNECT " + json.dumps(options).encode() + b"\r\nPING\r\n")
    await writer.drain()
    while line := await reader.readline():
        if line.startswith(b"PONG"):
            return info
        if line.startswith(b"-ERR") and b"uthorization" in line:
            raise ProbeFailed("the broker refuses our token", refused=True)
    raise ValueError("it closed the connection")
