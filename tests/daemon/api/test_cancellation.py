"""A request that waits in its own task, until an event cancels the wait."""

import asyncio
import logging
import socket

import pytest

from aghbus.daemon.api.http.cancellation import CancelScope, Draining
from aghbus.daemon.api.http.connection import ListenerState
from aghbus.daemon.api.http.exchange import ClientDisconnected, Exchange
from aghbus.daemon.base.logs import EventLimiter
from aghbus.protocol.base.errors import Unavailable


class Request:
    """A request whose client is connected, in a daemon that does not drain yet."""

    def __init__(self) -> None:
        self.draining = Draining()
        self.answer: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        self.exchange = Exchange(
            asyncio.Transport(),
            asyncio.Event(),
            lambda _: None,
            method=b"GET",
            path=b"/",
            query=b"",
            headers={},
            keep_alive=True,
            session={},
        )

    async def waits(self) -> str:
        """The answer, unless the wait is cancelled."""
        with CancelScope(self.exchange, self.draining):
            return await self.answer

    def end(self, how: str) -> None:
        """The client disconnects, or the daemon drains."""
        if how == "drained":
            self.draining.set()
        else:
            self.exchange.disconnect()


@pytest.mark.parametrize("before", [True, False])
@pytest.mark.parametrize(("how", "error"), [("drained", Unavailable), ("disconnected", ClientDisconnected)])
async def test_an_event_ends_the_wait(how: str, error: type[Exception], before: bool) -> None:
    request = Request()
    if before:
        request.end(how)
    task = asyncio.create_task(request.waits())
    await asyncio.sleep(0)
    request.end(how)
    with pytest.raises(error):
        await task
    assert request.answer.cancelled()
    assert task.cancelling() == 0


async def test_an_event_ends_the_wait_for_a_future() -> None:
    request = Request()
    scope = CancelScope(request.exchange, request.draining)
    scope.begin(request.answer)
    request.end("drained")
    assert request.answer.cancelled()
    assert isinstance(scope.end(), Unavailable)


async def test_a_future_that_is_done_keeps_its_result() -> None:
    request = Request()
    scope = CancelScope(request.exchange, request.draining)
    scope.begin(request.answer)
    request.answer.set_result("here")
    request.end("disconnected")
    assert scope.end() is None
    assert request.answer.result() == "here"


async def test_the_first_event_counts() -> None:
    request = Request()
    task = asyncio.create_task(request.waits())
    await asyncio.sleep(0)
    request.end("disconnected")
    request.end("drained")
    with pytest.raises(ClientDisconnected):
        await task


async def test_a_block_that_does_not_wait_is_not_cancelled() -> None:
    request = Request()
    request.answer.set_result("here")
    request.end("drained")
    assert await asyncio.create_task(request.waits()) == "here"


async def test_a_result_before_the_cancellation_is_kept() -> None:
    """The wait is over, and the task that has the answer must not be cancelled while it goes out."""
    request, out = Request(), asyncio.Event()

    async def answers() -> str:
        said = await request.waits()
        await out.wait()
        return said

    task = asyncio.create_task(answers())
    await asyncio.sleep(0)
    request.answer.set_result("here")
    await asyncio.sleep(0)
    request.end("drained")
    request.end("disconnected")
    out.set()
    assert await task == "here"


async def test_a_cancellation_from_outside_is_passed_on() -> None:
    request = Request()
    task = asyncio.create_task(request.waits())
    await asyncio.sleep(0)
    request.end("drained")
    task.cancel()
    with pytest.raises(asyncio.CancelledError):
        await task


async def test_closed_client_is_disconnected_before_its_transport_ends() -> None:
    """A message that is leased to it in that moment is given back, not written to a closing transport."""
    requests: list[Exchange] = []
    endpoint = ListenerState(requests.append, EventLimiter(logging.getLogger(__name__), 1))
    ours, theirs = socket.socketpair()
    transport, _ = await asyncio.get_running_loop().connect_accepted_socket(endpoint.connection, ours)
    with theirs:
        theirs.sendall(b"GET / HTTP/1.1\r\n\r\n")
        async with asyncio.timeout(20):
            while not requests:  # noqa: ASYNC110 - the loop is looked at in each iteration
                await asyncio.sleep(0)
    async with asyncio.timeout(20):
        while not transport.is_closing():  # noqa: ASYNC110 - as above
            await asyncio.sleep(0)
    assert requests[0].disconnected
