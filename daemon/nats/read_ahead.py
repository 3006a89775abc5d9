"""Between the socket and nats-py's read loop: what is read while that loop waits is parsed at once, not at its next turn.

Only as far as it is messages for our own receivers, and little of it: a flood goes to the loop as ever, which reads it in pieces
between which others have their turn, and stops the socket while too much waits.
"""

from __future__ import annotations

import asyncio
from typing import TYPE_CHECKING, Final, cast

if TYPE_CHECKING:
    from collections.abc import Callable

AT_ONCE: Final = 4_096
"""Ours: bytes of one read that are parsed at once; some questions and answers."""


class Wire(asyncio.Protocol):
    """A connection's protocol towards the socket, and its reader towards the read loop; both go on to the library's own."""

    def __init__(
        self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter, take: Callable[[bytes], int]
    ) -> None:
        """`take` gets bytes that follow all that was read so far, and says how many of them need nothing more."""
        self._reader = reader
        self._own = cast(asyncio.StreamReaderProtocol, writer.transport.get_protocol())
        self._take = take
        self._empty = False  # the library's reader, as far as is known
        self._awaited = False  # the read loop waits, and has parsed whatever came before
        writer.transport.set_protocol(self)

    # towards the socket

    def data_received(self, data: bytes) -> None:
        """The next bytes, cut anywhere."""
        if self._awaited and len(data) <= AT_ONCE:
            data = data[self._take(data) :]
            if not data:
                return
        self._awaited = self._empty = False
        self._own.data_received(data)

    def eof_received(self) -> bool | None:
        """The broker says no more."""
        return self._own.eof_received()

    def connection_lost(self, exc: Exception | None) -> None:
        """The end."""
        self._own.connection_lost(exc)

    def pause_writing(self) -> None:
        """The socket is full."""
        self._own.pause_writing()

    def resume_writing(self) -> None:
        """It has room again."""
        self._own.resume_writing()

    # towards the read loop

    async def read(self, size: int) -> bytes:
        """Up to `size` bytes, as soon as there are any; none at the end."""
        self._awaited = self._empty
        data = await self._reader.read(size)
        self._awaited, self._empty = False, len(data) < size
        return data

    def at_eof(self) -> bool:
        """Whether all was read, and no more will come."""
        return self._reader.at_eof()
