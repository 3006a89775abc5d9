"""Bytes that are parsed at once and bytes for the read loop: all of them, once, in order, however they are cut."""

import asyncio
from typing import Any

from hypothesis import given
from hypothesis import strategies as st

from aghbus.daemon.nats.parser import MAX_EAGER_READ, EagerReader


class Socket(asyncio.Transport):
    """The other end of a protocol."""

    def __init__(self, reader: asyncio.StreamReader) -> None:
        super().__init__()
        self.protocol: Any = asyncio.StreamReaderProtocol(reader)
        self.protocol.connection_made(self)

    def is_closing(self) -> bool:
        return True

    def get_protocol(self) -> Any:
        return self.protocol

    def set_protocol(self, protocol: Any) -> None:
        self.protocol = protocol


class Line:
    """An EagerReader with a read loop like the library's, which may be slow, and the bytes that were parsed."""

    def __init__(self, *, left: bytes = b"", slow: int = 0) -> None:
        self.reader = asyncio.StreamReader(limit=32_768)
        self.socket = Socket(self.reader)
        self.reader.feed_data(left)
        self.parsed = bytearray()
        self.at_once = 0
        self._slow = slow
        self._parsing = False
        loop = asyncio.get_running_loop()
        self.writer = asyncio.StreamWriter(self.socket, self.socket.protocol, self.reader, loop)
        self.wire = EagerReader(self.reader, self.socket, self._dispatch)
        self.loop = asyncio.create_task(self._run())

    def _dispatch(self, data: bytes) -> int:
        """All but what follows the last line end."""
        assert not self._parsing
        taken = data.rfind(b"\n") + 1
        self.parsed += data[:taken]
        self.at_once += taken
        return taken

    async def _run(self) -> None:
        while not self.wire.at_eof():
            data = await self.wire.read(100)
            self._parsing = True
            for _ in range(self._slow):
                await asyncio.sleep(0)
            self.parsed += data
            self._parsing = False


@given(
    st.lists(st.tuples(st.binary(min_size=1, max_size=300), st.booleans()), max_size=30),
    st.binary(max_size=250),
    st.integers(0, 2),
)
def test_everything_is_parsed_once_and_in_order(pieces: list[tuple[bytes, bool]], left: bytes, slow: int) -> None:
    async def run() -> None:
        line = Line(left=left, slow=slow)
        for piece, pause in pieces:
            line.socket.protocol.data_received(piece)
            if pause:
                await asyncio.sleep(0)
        line.socket.protocol.eof_received()
        await line.loop
        assert bytes(line.parsed) == left + b"".join(piece for piece, _ in pieces)

    asyncio.run(run())


async def test_a_small_read_is_parsed_immediately_while_the_read_loop_waits() -> None:
    line = Line(left=b"left\n")
    for _ in range(3):
        await asyncio.sleep(0)
    line.socket.protocol.data_received(b"one\ntwo\n")
    assert line.parsed == b"left\none\ntwo\n"
    assert line.at_once == 8
    line.socket.protocol.data_received(b"three\nrest")
    line.socket.protocol.data_received(b"behind it\n")
    assert line.parsed == b"left\none\ntwo\nthree\n"
    for _ in range(3):
        await asyncio.sleep(0)
    assert line.parsed == b"left\none\ntwo\nthree\nrestbehind it\n"
    line.socket.protocol.data_received(b"x\n" * MAX_EAGER_READ)
    assert line.parsed.endswith(b"behind it\n")  # so much is for the loop
    line.socket.protocol.connection_lost(ConnectionResetError())
    await asyncio.gather(line.loop, return_exceptions=True)


async def test_a_loss_and_a_full_socket_reach_the_library() -> None:
    line = Line()
    line.socket.protocol.pause_writing()
    draining = asyncio.create_task(line.writer.drain())
    for _ in range(3):
        await asyncio.sleep(0)
    assert not draining.done()
    line.socket.protocol.resume_writing()
    await draining
    await asyncio.sleep(0)
    line.socket.protocol.connection_lost(ConnectionResetError("gone"))
    results = await asyncio.gather(line.loop, return_exceptions=True)
    assert isinstance(results[0], ConnectionResetError)
