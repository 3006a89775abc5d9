"""One prompt of a client of theirs: a work is opened for it, and what happens in the work is what the caller gets."""

from __future__ import annotations

import asyncio
import json
from collections.abc import Coroutine, Iterable
from contextlib import aclosing, suppress
from typing import Any, Final, Literal, NamedTuple, NoReturn, cast

from nats.errors import Error as NatsError
from nats.errors import NoRespondersError
from synadia_ai.agent_service import PromptStream, RequestInterceptorContext, RequestRejectedError
from synadia_ai.agents import (
    Attachment,
    Envelope,
    ProtocolError,
    QueryTimeout,
    ResponseChunk,
    StatusChunk,
    VerifiedSender,
)
from synadia_ai.agents.messages import encode_chunk

from aghbus.client.core.ids import derived_id, new_id
from aghbus.client.core.refusals import WorkClosed
from aghbus.client.errors import ClientError, RefusedByDaemon
from aghbus.client.work.handle import AsyncWorkHandle, Opening
from aghbus.gateways.synadia.process import Bridge
from aghbus.protocol.agh.lifecycle import TERMINAL_STATES
from aghbus.protocol.api.artifact_uri import parse_uri
from aghbus.protocol.api.works import Work
from aghbus.protocol.base.text import escape, is_blank, shorten
from aghbus.protocol.formats.synadia import names
from aghbus.protocol.formats.synadia import reply as replies
from aghbus.protocol.formats.synadia.prompt import clean, content

OPEN_SECONDS: Final = 60.0
"""Within which a work is opened, waiting for the daemon and for a peer with the capability included."""
MISSES: Final = 3
"""How often in a row nobody must listen to a caller's inbox until the caller counts as gone: libraries reconnect within seconds."""
RECHECK: Final = 5.0
"""Seconds between two looks at an inbox that nobody listens to."""
PROBE_SECONDS: Final = 1.0
"""The server tells at once that nobody listens; a caller who does never answers."""
OVERHEAD: Final = 1_024
"""Bytes of a chunk besides text and content."""
_CODES: Final = {"not_found": 404, "conflict": 409, "too_large": 413, "unavailable": 503}


class _Moved(Exception):
    """The work does not wait for the answer any more."""


class Target(NamedTuple):
    """Who gets the works of an agent that is served."""

    kind: Literal["peer", "capability"]
    name: str
    description: str


class ServeOptions(NamedTuple):
    """`answer_within` and `keepalive` in seconds. Without `peers` and `capabilities` all peers that are present are served."""

    peers: tuple[str, ...]
    capabilities: tuple[str, ...]
    owner: str | None
    channel: str | None
    concurrency: int
    cancel_when_gone: bool
    answer_within: float
    keepalive: float
    progress: Literal["response", "status"]
    signed_only: bool


class ServedPrompt:
    """`run` carries it out; what it raises is what the caller gets instead of an end."""

    def __init__(
        self,
        bridge: Bridge,
        target: Target,
        options: ServeOptions,
        stream: PromptStream,
        request: RequestInterceptorContext,
    ) -> None:
        self._bridge = bridge
        self._client = bridge.client
        self._target = target
        self._options = options
        self._stream = stream
        self._envelope: Envelope = request.envelope
        self._user = request.sender.header.user if isinstance(request.sender, VerifiedSender) else None
        self._message_id, self._work_id = self._ids(request)
        self._reply_subject: str = stream._request._msg.reply  # the SDK has no other way to it
        self._reports: asyncio.Queue[str] = asyncio.Queue()
        self._limit = bridge.nats.max_payload - OVERHEAD
        self._attached: set[str] = set()
        """Names of the artifacts of prompt and answers."""
        self._outcome = "refused"

    def _ids(self, request: RequestInterceptorContext) -> tuple[str, str]:
        """Those of the message and the work: the same again for a prompt that is repeated, if its caller marks it."""
        signed = request.sender.header.nonce if isinstance(request.sender, VerifiedSender) else None
        mark = request.headers.get("Nats-Msg-Id") or signed
        if not mark:
            return new_id("msg_"), new_id("work_")
        parts = ("synadia", request.subject, self._user or "", mark)
        return derived_id("msg_", *parts), derived_id("work_", *parts)

    async def run(self) -> None:
        """Raises RequestRejectedError."""
        self._bridge.metrics.count("running")
        try:
            await self._run()
        except RequestRejectedError as error:
            self._emit("ended", outcome=self._outcome, code=error.code, message=error.description)
            raise
        except Exception as error:
            self._bridge.note(f"{type(error).__name__}: {error}", work_id=self._work_id)
            raise
        else:
            self._emit("ended", outcome=self._outcome)
        finally:
            self._bridge.metrics.count("running", by=-1)
            self._bridge.metrics.count("prompts_total", self._outcome)

    async def _run(self) -> None:
        handle = await self._opened()
        self._outcome = "left"
        self._emit("prompted", to=self._target.name, principal=names.principal(self._user)["name"])
        await self._send(StatusChunk(status=f"aghbus.work {self._work_id}"))
        steps: list[Coroutine[Any, Any, Any]] = [
            self._follow(handle),
            self._until_gone(),
            self._bridge.stopping.wait(),
            self._pump(),
        ]
        tasks = [asyncio.create_task(step) for step in steps]
        try:
            await asyncio.wait(tasks, return_when=asyncio.FIRST_COMPLETED)
            if tasks[0].done():
                await self._end(tasks[0].result())
            elif tasks[1].done():
                tasks[1].result()
                await self._on_gone(handle)
            elif tasks[3].done():
                tasks[3].result()
            else:
                raise RequestRejectedError(replies.UNAVAILABLE, f"the bridge stops; the work {self._work_id} goes on")
        finally:
            for task in tasks:
                task.cancel()
            await asyncio.gather(*tasks, return_exceptions=True)

    def _emit(self, event: str, **more: Any) -> None:
        self._bridge.emit(event, work_id=self._work_id, **more)

    # opening

    async def _opened(self) -> AsyncWorkHandle:
        if self._bridge.stopping.is_set():
            raise RequestRejectedError(replies.UNAVAILABLE, "the bridge stops")
        text = clean(self._envelope.prompt)
        if is_blank(text):
            raise RequestRejectedError(400, "prompt: must not be blank")
        ext: dict[str, Any] = {"aghbus.principal": names.principal(self._user)}
        if self._envelope.extras:
            ext["synadia.extras"] = self._envelope.extras
        try:
            async with asyncio.timeout(OPEN_SECONDS):
                artifacts = await self._stored(self._envelope.attachments or [])
                fields = {
                    "id": self._message_id,
                    "work_id": self._work_id,
                    "artifacts": artifacts or None,
                    "channel": self._options.channel,
                    "ext": ext,
                    "replace_secrets": True,
                    "on_question": self._ask,
                    "on_progress": self._reports.put_nowait,
                }
                who = {"to" if self._target.kind == "peer" else "to_capability": self._target.name}
                handle = await self._client.start(text=text, **who, **cast(Opening, fields))
        except RefusedByDaemon as error:
            code = _CODES.get(error.code, 422)
            raise RequestRejectedError(code, f"the work was not opened: {escape(error.message)}") from None
        except ClientError as error:
            raise RequestRejectedError(replies.UNAVAILABLE, f"the work was not opened: {escape(str(error))}") from None
        except TimeoutError:
            why = f"the daemon did not answer in time: it is not known whether the work {self._work_id} was opened"
            raise RequestRejectedError(replies.UNAVAILABLE, why) from None
        self._work_id = handle.id
        return handle

    async def _stored(self, attachments: Iterable[Attachment]) -> list[dict[str, Any]]:
        """References to attachments, which are artifacts of the work now. Raises RequestRejectedError."""
        found: dict[str, dict[str, Any]] = {}
        for attachment in attachments:
            name = names.artifact_name(clean(attachment.filename), self._attached)
            self._attached.add(name)
            if (octets := content(attachment.content)) is None:
                raise RequestRejectedError(400, f"attachments: the content of {escape(name)} must be padded base64")
            made = await self._client.put_artifact(self._work_id, name, octets)
            digest = made.digest.removeprefix("sha256:")
            found[name] = {"type": "file", "name": name, "uri": made.uri, "size": made.size, "sha256": digest}
        self._bridge.metrics.count("attachments_total", by=len(found))
        return list(found.values())

    # while it runs

    async def _follow(self, handle: AsyncWorkHandle) -> Work:
        while True:
            try:
                work = await handle.result()
            except (_Moved, WorkClosed):  # it has gone on, or has ended, while the caller was asked
                continue
            await self._reports.join()
            return work

    async def _pump(self) -> None:
        """Send the reports in order, none twice in a row."""
        last = ""
        while True:
            text = clean(await self._reports.get())
            if text != last and not is_blank(text):
                last = text
                if self._options.progress == "status":
                    await self._send(StatusChunk(status=f"working: {shorten(text, self._limit // 12)}"))
                else:
                    await self._send_text(replies.progress(text))
            self._reports.task_done()

    async def _ask(self, question: str) -> str:
        """Ask the caller. Raises RequestRejectedError when there is no answer in time."""
        await self._reports.join()
        self._bridge.metrics.count("questions_total")
        asked = (await self._client.work(self._work_id, channel=self._options.channel)).history
        question = next(
            (one.message for one in reversed(asked) if one.after == "needs_input" and one.message), question
        )
        self._emit("asked", message=question)
        short = next(replies.pieces(clean(question), self._limit), "?")
        asking = asyncio.ensure_future(self._stream.ask(short, timeout=self._options.answer_within))
        moving = asyncio.create_task(self._until_moved())
        try:
            await asyncio.wait({asking, moving}, return_when=asyncio.FIRST_COMPLETED)
            if not asking.done():
                raise _Moved
            answer = asking.result()
        except QueryTimeout:
            await self._unanswered(question, replies.UNANSWERED, "in time")
        except ProtocolError as error:
            rule = " ".join(str(error).partition(" [type=")[0].split())
            await self._unanswered(question, 400, f"by an envelope: {rule}")
        finally:
            asking.cancel()
            moving.cancel()
        files = {one["name"]: one["uri"] for one in await self._stored(answer.attachments or [])}
        self._emit("answered")
        text = clean(answer.prompt)
        return replies.with_files(text if not is_blank(text) else "(no text)", files)

    async def _until_moved(self) -> None:
        """Until the work waits for no answer any more: it was given one by others, or has ended."""
        work = (await self._client.work(self._work_id, channel=self._options.channel)).work
        events = self._client.events(work_id=work.work_id, channel=work.channel, since=work.last_seq)
        async with aclosing(events) as following:
            while work.state == "needs_input":
                await anext(following)
                work = (await self._client.work(self._work_id, channel=self._options.channel)).work

    async def _unanswered(self, question: str, code: int, how: str) -> NoReturn:
        why = f"the question was not answered {how}"
        if self._options.cancel_when_gone:
            await self._cancel("the question was not answered")
            raise RequestRejectedError(code, escape(why))
        raise RequestRejectedError(code, escape(f"{why}; the work {self._work_id} waits for: {question}"))

    async def _until_gone(self) -> None:
        """Show the caller that the work goes on, until nobody listens to the inbox of the caller any more."""
        ack, missed = encode_chunk(StatusChunk(status="ack")), 0
        while missed < MISSES:
            await asyncio.sleep(min(RECHECK, self._options.keepalive) if missed else self._options.keepalive)
            try:
                await self._bridge.nats.request(self._reply_subject, ack, timeout=PROBE_SECONDS)
            except NoRespondersError:
                missed += 1
            except (NatsError, TimeoutError):  # nobody answers such a chunk
                missed = 0

    async def _on_gone(self, handle: AsyncWorkHandle) -> None:
        self._bridge.metrics.count("callers_gone_total")
        cancel = self._options.cancel_when_gone
        self._emit("caller_gone", message="the work is canceled" if cancel else "the work goes on")
        if cancel:
            await self._cancel("the caller is gone")
        raise RequestRejectedError(replies.UNAVAILABLE, f"the caller was gone [work {self._work_id}]")

    async def _cancel(self, reason: str) -> None:
        with suppress(ClientError):  # it has ended
            await self._client.act_on_work(self._work_id, "cancel", message=reason, channel=self._options.channel)

    # the end

    async def _end(self, work: Work) -> None:
        """Send the end. Raises RequestRejectedError unless the work was completed."""
        history = (await self._client.work(work.work_id, channel=work.channel)).history
        end = next(
            entry for entry in reversed(history) if entry.after in TERMINAL_STATES and entry.before != entry.after
        )
        said, given = (end.reason, end.message) if end.kind == "receipt" else (None, None)
        # the work has the beginning of a long message only
        message = end.message if end.kind == "trace" else None
        made = replies.reply(self._work_id, work.state, message, work.result, said, given)
        await self._send_text(made.text)
        if made.result is not None:
            await self._send_file(names.RESULT_NAME, made.result, "")
        for artifact in work.artifacts or []:
            await self._send_artifact(artifact)
        self._outcome = work.state
        if made.code:
            raise RequestRejectedError(made.code, made.description)

    async def _send_artifact(self, reference: Any) -> None:
        """An artifact as an attachment, or its reference as text if it is elsewhere, is gone, or is too large."""
        found = reference if isinstance(reference, dict) else {}
        uri, size = str(found.get("uri") or ""), found.get("size")
        if (parts := parse_uri(uri)) is not None and isinstance(size, int) and size * 4 // 3 < self._limit:
            octets = b""
            try:
                async with aclosing(self._client.get_artifact(*parts)) as pieces:
                    async for piece in pieces:
                        octets += piece
                        if len(octets) > size:
                            break
            except ClientError as error:
                self._bridge.note(f"{uri}: {error.message}", work_id=self._work_id)
            else:
                await self._send_file(str(found.get("name") or parts[1]), octets, uri)
                return
        await self._send_text(f"[{json.dumps(reference)}]\n")

    async def _send_file(self, name: str, octets: bytes, uri: str) -> None:
        attachment = Attachment.from_bytes(clean(name), octets)
        if len(attachment.content) + len(json.dumps(name)) > self._limit:
            where = uri or f"aghctl work show {self._work_id} -o json"
            await self._send_text(f"[{name}: too large for one message: {where}]\n")
            return
        await self._send(ResponseChunk(text="", attachments=[attachment]))
        self._bridge.metrics.count("attachments_total")

    async def _send_text(self, text: str) -> None:
        for piece in replies.pieces(clean(text), self._limit):
            await self._send(ResponseChunk(text=piece))

    async def _send(self, chunk: ResponseChunk | StatusChunk) -> None:
        with suppress(NatsError):  # the connection is lost: the end of the work is in the store
            await self._stream.send(chunk)
