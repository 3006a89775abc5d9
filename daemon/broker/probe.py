"""A check of a broker: connect, authenticate, PING, PONG, over asyncio streams.

Only for a port that the locks attribute to our own server: the token is never sent to another program on an old port.
"""

import asyncio
import contextlib
import json

_ANSWER_WAIT = 2.0  # seconds; a loopback server answers in a millisecond, a stalled machine in a second


class ProbeFailed(Exception):
    """The broker sent no PONG; says why."""


async def probe(port: int, token: str) -> None:
    """Returns once the broker on loopback `port` has accepted `token` and answered a PING. Raises ProbeFailed."""
    writer: asyncio.StreamWriter | None = None
    try:
        async with asyncio.timeout(_ANSWER_WAIT):
            reader, writer = await asyncio.open_connection("127.0.0.1", port)
            await _handshake(reader, writer, token)
    except (OSError, TimeoutError, ValueError) as error:
        raise ProbeFailed(f"port {port}: {error or type(error).__name__}") from error
    finally:
        if writer is not None:
            writer.close()
            with contextlib.suppress(OSError, TimeoutError):
                async with asyncio.timeout(_ANSWER_WAIT):
                    await writer.wait_closed()


async def _handshake(reader: asyncio.StreamReader, writer: asyncio.StreamWriter, token: str) -> None:
    """INFO, then CONNECT and PING; NATS client protocol. Raises ValueError when another program listens there."""
    if not (await reader.readline()).startswith(b"INFO "):
        raise ValueError("it is not a NATS server")
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
            return
        if line.startswith(b"-ERR") and b"uthorization" in line:
            raise ProbeFailed("the broker refuses our token")
    raise ValueError("it closed the connection")
