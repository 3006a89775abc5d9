"""Carrying calls out: repeated while the daemon is away, streams resumed, works opened and awaited."""

from __future__ import annotations

import math
import time
from collections.abc import AsyncGenerator, Awaitable, Callable, Iterable
from contextlib import aclosing
from functools import partial
from typing import Any, ParamSpec, TypeVar

import msgspec
from msgspec import UNSET

from aghbus.client.api import FIRST_PAUSE, LAST_PAUSE, decode_object
from aghbus.client.core.operation import Call, call_of, call_to, query_of
from aghbus.client.core.refusals import Unavailable, refusal
from aghbus.client.core.threads import Threads
from aghbus.client.core.watch import stands_still
from aghbus.client.errors import ClientError, ConnectionLost, Unreachable
from aghbus.client.events import EVENTS, resumed, stream_at
from aghbus.client.http import Endpoint, Incoming, Query, exchange, quote
from aghbus.protocol.agh.envelope import CONVERSATION_KINDS, StoredKind
from aghbus.protocol.agh.lifecycle import STANDSTILL
from aghbus.protocol.api.artifacts import Artifact
from aghbus.protocol.api.bridge import BridgeMessage
from aghbus.protocol.api.messages import Event, Message, SendResponse
from aghbus.protocol.api.operation import Operation
from aghbus.protocol.api.operations import Operations
from aghbus.protocol.api.peers import WhoisMatch
from aghbus.protocol.api.queries import MAX_LIMIT, EventsQuery
from aghbus.protocol.api.works import WaitReason, Work, WorkActionRequest, WorkVerb
from aghbus.protocol.base.backoff import Backoff
from aghbus.protocol.base.formats import Format

P = ParamSpec("P")
R = TypeVar("R")

NO_HISTORY = 1
"""`before` of an empty history."""
POLL_PAUSE = 0.1
"""Seconds between two questions whether a daemon or a peer is there."""


class WorkTimeout(ClientError, TimeoutError):
    """The time to wait for a work is over; `work_id` is its id, and it continues. `why` says why it does not move (docs/why.md),
    None while the daemon is away."""

    default_code = "timeout"

    def __init__(self, work_id: str, seconds: float, why: WaitReason | None) -> None:
        from aghbus.protocol.api.wait_reason import spoken

        reason = "the daemon is away" if why is None else spoken(why)
        super().__init__(f"the work {work_id} has not ended after {seconds:g} s: {reason}", continues(work_id))
        self.work_id = work_id
        self.why = why


class Core:
    """One daemon. `timeout` in seconds bounds every step of a request, `patience` (without it as much) a whole call, restarts
    of the daemon included."""

    def __init__(self, runtime: Threads, timeout: float, patience: float | None = None) -> None:
        self.runtime = runtime
        self.timeout = timeout
        self.patience = timeout if patience is None else patience
        self._is_away = False

    @property
    def endpoint(self) -> Endpoint:
        """The address of the daemon."""
        return self.runtime.endpoint

    # calls

    async def fetch(self, call: Call) -> bytes:
        """The body of the answer to `call`, which is repeated as long as that can help. Raises ClientError."""
        deadline = time.monotonic() + self.patience
        while True:
            response = await self.answer(call)
            try:
                return await response.body()
            except ConnectionLost:  # the daemon has died in the middle of the answer
                if not call.idempotent or time.monotonic() >= deadline:
                    raise
            finally:
                response.close()

    async def answer(self, call: Call) -> Incoming:
        """The answer to `call`, its body unread. Close it.

        What may not be repeated goes over a new connection: on one that was kept, a daemon that has just closed it could not be
        told from one that died with the request.
        """
        backoff, deadline = Backoff(FIRST_PAUSE, LAST_PAUSE), time.monotonic() + self.patience
        while True:
            sent, kept = False, self.runtime.kept() if call.idempotent else None
            try:
                connection = kept or await self.runtime.connect(self.timeout + call.wait)
                connection.limit(self.timeout + call.wait)
                sent = not call.idempotent
                response = await exchange(connection, call.method, call.target, call.body, call.headers)
                self._tell(None)
                if response.status in call.statuses:
                    return response
                raise await _error(response)
            except (Unreachable, Unavailable) as error:
                if kept is not None and isinstance(error, ConnectionLost):
                    continue
                if time.monotonic() >= deadline or (sent and isinstance(error, Unreachable)):
                    raise
                self._tell(error)
            await self.runtime.sleep(backoff.next())

    def _tell(self, error: ClientError | None) -> None:
        """Log that the daemon is away, and that it is back."""
        if self._is_away != (error is not None):
            self._is_away = not self._is_away
            import logging  # slow to load

            logger = logging.getLogger("aghbus.client")
            if error is None:
                logger.info("the daemon is back: %s", self.endpoint)
            else:
                logger.warning("waiting for the daemon: %s; hint: %s", error.message, error.hint)

    async def call(self, operation: Operation[P, R], /, *given: P.args, **named: P.kwargs) -> R:
        """The response to an operation."""
        return msgspec.json.decode(await self.fetch(call_to(operation, *given, **named)), type=operation.response)

    async def ask(self, method: str, path: str, form: msgspec.Struct, answer: type[Any]) -> Any:
        """The answer to one call of the API, with the fields of `form`."""
        return msgspec.json.decode(await self.fetch(call_of(method, path, form, idempotent=True)), type=answer)

    # streams

    async def position(self) -> int:
        """The sequence of the daemon's latest envelope."""
        return (await self.call(Operations.get_status)).store.last_seq

    async def events(self, query: EventsQuery, *, timeout: float | None = None) -> AsyncGenerator[Event, None]:
        """Server-sent events, without end: `GET /v1/events`. Those after `since`, else from now on; a gap has the type `gap`.

        After a restart of the daemon, the stream continues behind the last event that was returned.
        """
        since = await self.position() if query.since is None else query.since
        wanted = [(name, value) for name, value in query_of(query) if name != "since"]
        async with aclosing(self._resumed(EVENTS, wanted, since, timeout)) as events:
            async for _, data in events:
                yield msgspec.json.decode(data, type=Event)

    async def foreign_messages(
        self, name: Format, *, since: int | None = None
    ) -> AsyncGenerator[BridgeMessage | Event, None]:
        """The messages of a foreign format, without end: `GET /v1/bridge/{format}/stream`.

        They begin after `since`, else after the acknowledged position. An Event is a gap.
        """
        async with aclosing(self._resumed(f"/v1/bridge/{name}/stream", [], since)) as events:
            async for kind, data in events:
                form: Any = Event if kind == b"gap" else BridgeMessage
                yield msgspec.json.decode(data, type=form)

    def watch(
        self, work_id: str, since: int | None, deadline: float = math.inf, *, only_standstill: bool = False
    ) -> AsyncGenerator[Event | None, None]:
        """The events of a work from the stream of this client: see Watch."""
        return self.runtime.watch.events(self.opening, work_id, since, deadline, only_standstill=only_standstill)

    async def opening(self, since: int | None, takes: int) -> tuple[Incoming, int]:
        """The `Opening` of a Watch."""
        core = self.within(0.0)
        since = await core.position() if since is None else since
        wanted = query_of(EventsQuery(kinds=CONVERSATION_KINDS, takes=takes, works=True))
        return await core._stream(EVENTS, wanted, since), since

    async def _stream(self, path: str, query: Query, since: int | None) -> Incoming:
        where, headers = stream_at(path, query, since)
        return await self.answer(Call("GET", where, headers=headers))

    def _resumed(
        self, path: str, query: Query, since: int | None, timeout: float | None = None
    ) -> AsyncGenerator[tuple[bytes, bytes], None]:
        deadline = None if timeout is None else time.monotonic() + timeout
        return resumed(partial(self._stream, path, query), since, lambda _: self.runtime.sleep(FIRST_PAUSE), deadline)

    # artifacts

    async def put_artifact(
        self, work_id: str, name: str, content: bytes | Iterable[bytes], *, size: int = -1
    ) -> Artifact:
        """Store an artifact: `PUT /v1/artifacts/{work_id}/{name}`. `content` is bytes, or pieces of `size` bytes together.

        The same content again succeeds, other content raises Conflict. Only bytes are sent again when an answer is lost.
        """
        whole = isinstance(content, bytes)
        length = len(content) if isinstance(content, bytes) else size
        if length < 0:
            raise ValueError("size: is needed for content in pieces")
        headers = {"Content-Type": "application/octet-stream", "Content-Length": str(length)}
        pieces = (content,) if isinstance(content, bytes) else content
        call = Call("PUT", _artifact(work_id, name), pieces, headers, idempotent=whole)
        return msgspec.json.decode(await self.fetch(call), type=Artifact)

    async def get_artifact(self, work_id: str, name: str) -> AsyncGenerator[bytes, None]:
        """The content of an artifact, in pieces: `GET /v1/artifacts/{work_id}/{name}`.

        Raises ConnectionLost when it does not match its digest: use the pieces after the last one only.
        """
        response = await self.answer(Call("GET", _artifact(work_id, name)))
        try:
            async for piece in response.pieces():
                yield piece
        finally:
            response.close()

    # works

    async def act(self, work_id: str, verb: WorkVerb, form: WorkActionRequest) -> SendResponse:
        """One action on a work."""
        return await self.call(Operations.act_on_work, work_id, verb, **msgspec.structs.asdict(form))

    async def work(self, work_id: str, channel: str | None = None) -> Work:
        """A work as it is now, the one that took its place if it was handed over. Raises NotFound."""
        return (await self.call(Operations.get_work, work_id, channel=channel, before=NO_HISTORY)).work

    async def heard(self, work_id: str, channel: str | None, kind: StoredKind, since: int) -> list[Message]:
        """The messages of the other side in a work after `since`."""
        wanted: dict[str, Any] = {"kinds": frozenset({kind}), "directions": frozenset({"in"}), "limit": MAX_LIMIT}
        found, page = list[Message](), None
        while page is None or len(page) == MAX_LIMIT:
            since = found[-1].seq if found else since
            answer = await self.call(Operations.list_messages, work_id=work_id, channel=channel, since=since, **wanted)
            found += (page := answer.messages)
        return found

    async def wait(self, work_id: str, *, channel: str | None = None, timeout: float | None = None) -> Work:
        """Wait until a work has ended, or its target asks something (state `needs_input`; `message` is the question).

        Raises WorkTimeout after `timeout` seconds, and NotFound. `work` has its history.
        """
        return await self.standstill(work_id, channel, timeout=timeout)

    async def standstill(
        self,
        work_id: str,
        channel: str | None,
        said: int | None = None,
        timeout: float | None = None,
        on_event: Callable[[str], Awaitable[None]] | None = None,
    ) -> Work:
        """As `wait`. `said`: our latest message in it, sent just now. `on_event` is awaited when something may have happened, with
        the id of the work that took its place."""
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        try:
            async with aclosing(
                self._looks(work_id, channel, said, deadline, only_standstill=on_event is None)
            ) as looks:
                async for present, work in looks:
                    if on_event is not None:
                        await on_event(present)
                    if work is not None and work.state in STANDSTILL:
                        return work
        except (TimeoutError, Unreachable):
            if time.monotonic() < deadline:
                raise
        try:
            found = await self.within(0.0).call(Operations.get_work, work_id, channel=channel, before=NO_HISTORY)
        except Unreachable:
            raise WorkTimeout(work_id, timeout or 0.0, None) from None
        if on_event is not None:
            await on_event(found.work.work_id)
        if found.work.state not in STANDSTILL:
            raise WorkTimeout(work_id, timeout or 0.0, found.why)
        return found.work

    async def _looks(
        self, work_id: str, channel: str | None, since: int | None, deadline: float, *, only_standstill: bool
    ) -> AsyncGenerator[tuple[str, Work | None], None]:
        """Whenever something happens in a work, or in the one that took its place when it was handed over: the id of that one,
        and if it may have ended or asks something the work. Without `since` at first, too."""
        present = work_id
        if since is None:
            work = await self.within(deadline - time.monotonic()).work(work_id, channel)
            yield (present := work.work_id), work
        while True:
            watched = present
            found = self.watch(watched, since, deadline, only_standstill=only_standstill)
            async with aclosing(found) as events:
                async for event in events:
                    if event is not None and not stands_still(event):
                        yield present, None
                        continue
                    brought = _brought(event)
                    work = brought or await self.within(deadline - time.monotonic()).work(work_id, channel)
                    present, since = work.work_id, work.last_seq
                    yield present, work
                    if present != watched:
                        break

    async def wait_ready(self, timeout: float | None = None) -> None:
        """Wait until the daemon runs and is connected to its broker. Raises TimeoutError after `timeout` seconds."""
        await self._poll(self._is_ready, timeout, "the daemon was not ready in time")

    async def wait_peer(self, peer_id: str, timeout: float | None = None) -> WhoisMatch:
        """Wait until a peer answers. Raises TimeoutError after `timeout` seconds."""
        form = {"to": peer_id, "first": True}
        return await self._poll(lambda: self._answer(form), timeout, f"the peer {peer_id} did not answer in time")

    async def wait_capability(
        self, capability: str, timeout: float | None = None, *, channel: str | None = None
    ) -> WhoisMatch:
        """Wait until a peer with a capability answers. Raises TimeoutError after `timeout` seconds."""
        late = f"no peer with the capability {capability} answered in time"
        form = {"query": capability, "channel": channel}
        return await self._poll(lambda: self._answer(form, capability), timeout, late)

    def within(self, seconds: float) -> Core:
        """The same daemon for calls that take `seconds` at most, as far as they wait for it."""
        return self.variant(patience=min(self.patience, max(0.0, seconds)))

    def variant(self, *, runtime: Threads | None = None, patience: float | None = None) -> Core:
        """The same daemon with another runtime, or another patience."""
        return Core(runtime or self.runtime, self.timeout, self.patience if patience is None else patience)

    async def _is_ready(self) -> bool | None:
        return (await self.within(0.0).call(Operations.get_status)).ready or None

    async def _answer(self, form: dict[str, Any], capability: str | None = None) -> WhoisMatch | None:
        answers = (await self.within(0.0).call(Operations.find_peers, **form, wait=LAST_PAUSE)).peers
        fits = (one for one in answers if capability is None or capability in one.card.get("capabilities", ()))
        return next(fits, None)

    async def _poll(self, look: Callable[[], Awaitable[R | None]], timeout: float | None, late: str) -> R:
        deadline = math.inf if timeout is None else time.monotonic() + timeout
        while True:
            try:
                if (found := await look()) is not None:
                    return found
            except (Unreachable, Unavailable):
                pass
            if time.monotonic() >= deadline:
                raise TimeoutError(late)
            await self.runtime.sleep(POLL_PAUSE)


def continues(work_id: str) -> str:
    """What to do about a work that is not waited for any more."""
    return f'client.wait("{work_id}") waits for it, client.act_on_work("{work_id}", "cancel") cancels it'


async def _error(response: Incoming) -> ClientError:
    """The error of an error response. Raises Unexpected when it is none."""
    try:
        return refusal(response.status, decode_object(response.status, await response.body()))
    finally:
        response.close()


def _brought(event: Event | None) -> Work | None:
    """The work that an event has with it."""
    return None if event is None or event.work is None or event.work.now is UNSET else event.work.now


def _artifact(work_id: str, name: str) -> str:
    return f"/v1/artifacts/{quote(work_id)}/{quote(name)}"
