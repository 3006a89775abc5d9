"""Agents on the client library of their system, each in a process of its own: `python -m bench.peers.agents ROLE ARGUMENTS…`.

Those that ask say "ready", then answer each job on standard input, `{"count", "flight", "rate"}`: so many calls, `flight` at a
time, and `rate` a second if that is not 0. The answer has the milliseconds of each call, when they began, and when they ended.
- `opener SOCKET PEER`: `AsyncClient.run`, a whole work
- `a2a URL`: `send_message` of a2a-sdk's client, answered with a completed task
- `micro URL`: a request of nats-py to bench.peers.micro_service
- `sender SOCKET PEER`, `nats_sender URL SUBJECT`, `faststream_sender URL SUBJECT`: a message of some 600 bytes

Those that receive say "ready"; for each job on standard input, `{"count", "flight"}`, they say "set", and after so many messages
the milliseconds from the sending of each to its end here, and when the last one ended.
- `receiver SOCKET`: leased from the inbox and acked, `flight` at a time
- `nats_receiver URL SUBJECT`, `faststream_receiver URL SUBJECT`: decoded, in a callback

`worker SOCKET` is a Worker of 16 at a time, until standard input ends. Times are of the monotonic clock, which all processes share.
Ours and a2a-sdk's client run on asyncio, what uses nats-py on uvloop, as `faststream run` does.
"""

import asyncio
import json
import sys
import time
import uuid
from collections.abc import Awaitable, Callable, Coroutine
from typing import TYPE_CHECKING, Any, Final

from bench.harness.floors import TIMEOUT, next_line, say

if TYPE_CHECKING:
    from nats.aio.msg import Msg

    from aghbus.client import AsyncJob

FLIGHT: Final = 16
"""Works or messages at a time, where throughput is measured."""
_WAIT: Final = 60.0  # seconds that a receiver waits for a message in one request
_TEXT: Final = "x" * 300  # of a message, behind the time when it was sent: an envelope of about 600 bytes
_TASK: Final = "x" * 200  # of a work


async def _answer_jobs(act: Callable[[], Awaitable[object]]) -> None:
    say("ready")
    while line := await next_line():
        say(await _carry_out(act, **json.loads(line)))


async def _carry_out(act: Callable[[], Awaitable[object]], count: int, flight: int, rate: int) -> dict[str, Any]:
    taken: list[float] = []
    numbers, began = iter(range(count)), time.monotonic()

    async def lane() -> None:
        for number in numbers:
            if rate:
                await asyncio.sleep(began + number / rate - time.monotonic())
            started = time.monotonic()
            await act()
            taken.append(1000 * (time.monotonic() - started))

    async with asyncio.TaskGroup() as lanes:
        for _ in range(flight):
            lanes.create_task(lane())
    return {"taken": taken, "began": began, "ended": time.monotonic()}


async def opener(path: str, peer: str) -> None:
    """Whole works through the client."""
    from aghbus.client import AsyncClient, Endpoint

    async def work() -> None:
        done = await client.run(peer, _TASK)
        if done.state != "completed":
            raise RuntimeError(f"not completed: {done}")

    async with AsyncClient(Endpoint(path=path)) as client:
        await _answer_jobs(work)


async def worker(path: str) -> None:
    """Works that have nothing to do."""
    from aghbus.client import Endpoint, Worker

    serving = Worker(Endpoint(path=path), concurrency=FLIGHT)

    @serving.capability("test.run")
    async def do_nothing(_job: "AsyncJob") -> dict[str, object]:
        return {"passed": True}

    run = asyncio.create_task(serving.serve(on_ready=lambda: say("ready")))
    await next_line()
    serving.stop()
    await run


async def a2a(url: str) -> None:
    """Tasks through the client of the SDK, on its JSON-RPC transport."""
    from a2a.client import ClientConfig, ClientFactory
    from a2a.types import Message, Part, Role, SendMessageRequest, TaskState

    from bench.peers.a2a_server import card_of

    async def task() -> None:
        message = Message(message_id=str(uuid.uuid4()), role=Role.ROLE_USER, parts=[Part(text=_TASK)])
        state = None
        async for answer in client.send_message(SendMessageRequest(message=message)):
            state = answer.task.status.state
        if state != TaskState.TASK_STATE_COMPLETED:
            raise RuntimeError(f"not completed: {state}")

    async with ClientFactory(ClientConfig(streaming=False)).create(card_of(url)) as client:
        await _answer_jobs(task)


async def micro(url: str) -> None:
    """Requests to the micro service."""
    import nats

    async def request() -> None:
        asked = json.dumps({"id": str(uuid.uuid4()), "text": _TASK}).encode()
        answer = json.loads((await client.request("bench.work", asked, timeout=TIMEOUT)).data)
        if answer["state"] != "completed":
            raise RuntimeError(f"not completed: {answer}")

    async with await nats.connect(url) as client:
        await _answer_jobs(request)


async def sender(path: str, peer: str) -> None:
    """Says, each answered after its commit."""
    from aghbus.client import AsyncClient, Endpoint

    async with AsyncClient(Endpoint(path=path)) as client:
        await _answer_jobs(lambda: client.send("say", {"text": _stamped()}, to=peer, thread_id="thread_bench"))


async def nats_sender(url: str, subject: str) -> None:
    """Messages that are published."""
    import nats

    async with await nats.connect(url) as client:
        await _answer_jobs(lambda: client.publish(subject, json.dumps(_envelope()).encode()))


async def faststream_sender(url: str, subject: str) -> None:
    """The same with FastStream."""
    from faststream.nats import NatsBroker

    async with NatsBroker(url, logger=None) as app:
        await _answer_jobs(lambda: app.publish(_envelope(), subject))


class _Receipts:
    """Of the messages that come: how long each was under way."""

    def __init__(self) -> None:
        self._taken: list[float] = []
        self._left = 0
        self._ended = asyncio.Event()

    def add(self, text: str) -> None:
        """A message with this text has come."""
        now = time.monotonic()
        self._taken.append(1000 * (now - float(text.partition(" ")[0])))
        self._left -= 1
        if self._left == 0:
            self._ended.set()

    async def answer(self, read: Callable[[], Coroutine[Any, Any, None]] | None = None) -> None:
        """Until standard input ends. `read` fetches messages without end, where they do not come by themselves."""
        say("ready")
        while line := await next_line():
            job = json.loads(line)
            self._taken, self._left = [], job["count"]
            self._ended.clear()
            async with asyncio.TaskGroup() as group:
                readers = [group.create_task(read()) for _ in range(job["flight"])] if read else []
                say("set")
                await asyncio.wait_for(self._ended.wait(), TIMEOUT)
                ended = time.monotonic()
                for reader in readers:
                    reader.cancel()
            say({"taken": self._taken, "ended": ended})


async def receiver(path: str) -> None:
    """Says from the inbox."""
    from aghbus.client import AsyncClient, Endpoint

    receipts = _Receipts()

    async def read() -> None:
        while True:
            if (item := (await client.next_message(wait=_WAIT, concurrent=True)).item) is not None:
                await client.ack(item.seq, lease=item.lease)
                receipts.add(json.loads(bytes(item.message.envelope))["body"]["text"])

    async with AsyncClient(Endpoint(path=path)) as client:
        await receipts.answer(read)


async def nats_receiver(url: str, subject: str) -> None:
    """Messages of a subscription. Without limits, with which the library drops."""
    import nats

    receipts = _Receipts()

    async def handle(message: "Msg") -> None:
        receipts.add(json.loads(message.data)["body"]["text"])

    async with await nats.connect(url) as client:
        await client.subscribe(subject, cb=handle, pending_msgs_limit=-1, pending_bytes_limit=-1)
        await client.flush()
        await receipts.answer()


async def faststream_receiver(url: str, subject: str) -> None:
    """Messages that a subscriber with a Pydantic model gets, as FastStream's documentation shows it; logging off."""
    from faststream.nats import NatsBroker
    from pydantic import BaseModel, Field

    class Envelope(BaseModel):
        id: str
        kind: str
        sender: str = Field(alias="from")
        body: dict[str, Any]

    receipts, app = _Receipts(), NatsBroker(url, logger=None)

    async def handle(message: Envelope) -> None:
        receipts.add(message.body["text"])

    app.subscriber(subject, pending_msgs_limit=1 << 30, pending_bytes_limit=1 << 40)(handle)
    async with app:
        await app.start()
        await receipts.answer()


def _stamped() -> str:
    return f"{time.monotonic()} {_TEXT}"


def _envelope() -> dict[str, Any]:
    """What the message of a peer without a daemon consists of; as long as an envelope of ours."""
    members = {"id": str(uuid.uuid4()), "kind": "say", "from": "sender", "ts": int(time.time()), "rest": "x" * 150}
    return {**members, "body": {"text": _stamped()}}


ROLES: Final[dict[str, Callable[..., Any]]] = {
    one.__name__: one
    for one in (
        *(opener, worker, a2a, micro, sender, receiver),
        *(nats_sender, nats_receiver, faststream_sender, faststream_receiver),
    )
}


def main() -> None:
    """Be the agent that the command line names."""
    role, *arguments = sys.argv[1:]
    if role in ("opener", "worker", "sender", "receiver", "a2a"):
        asyncio.run(ROLES[role](*arguments))
    else:
        import uvloop

        uvloop.run(ROLES[role](*arguments))


if __name__ == "__main__":
    main()
