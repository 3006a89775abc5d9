"""A JetStream object store (ADR-20 of NATS' architecture), as far as artifacts need it; the `nats object` tool reads it too.

An object is a run of chunks under a subject of its own, and one message that describes it. Both are plain messages of one
stream, so that plain requests do: each chunk is confirmed when put, and asked for by name when got.
"""

import asyncio
import base64
import hashlib
import secrets
from collections.abc import AsyncIterator, Mapping
from typing import Any, Final

import msgspec

from aghbus.daemon.jetstream.api import (
    MESSAGE_NOT_FOUND,
    PREFIX,
    STREAM_EXISTS,
    STREAM_NOT_FOUND,
    JetStreamApi,
    JetStreamError,
    NoJetStream,
    read_answer,
    read_error,
)
from aghbus.daemon.nats.link import InboundMessage
from aghbus.protocol.nats.jetstream import bucket_config

_CHUNK_BYTES: Final = 262_144  # twice the tools' default: half the round trips; any size can be read
_CHUNK_MARGIN: Final = 4096  # of the server's largest payload, for what it wraps around a chunk
_WAIT: Final = 30.0  # seconds for one chunk
_PURGE_WHEN_CANCELLED: Final = 0.5  # seconds: a daemon that stops is waited for
_AT_ONCE: Final = 32  # descriptions that are asked for at a time
_DIGEST: Final = "SHA-256="
_WRONG_SEQUENCE: Final = frozenset({10071, 10164})  # somebody else has described an object of that name meanwhile
_MAX_NUID: Final = 64  # characters; those of the tools have 22


class Damaged(Exception):
    """What is stored does not agree with its description; says how."""


class Taken(Exception):
    """There is an object of that name already."""


class Stored(msgspec.Struct, frozen=True):
    """One object: `digest` is `sha256:` and hex, `chunks` the subject token of its chunks, `put_by` as its writer says."""

    name: str
    size: int
    digest: str
    chunks: str
    put_by: str | None


class _Description(msgspec.Struct):
    name: str
    nuid: str = ""
    size: int = 0
    chunks: int = 0
    digest: str = ""
    deleted: bool = False
    options: dict[str, Any] = {}
    metadata: dict[str, str] | None = None


_describe: Final = msgspec.json.Decoder(_Description).decode


class Bucket:
    """One object store by name. All methods raise JetStreamError and LinkError."""

    def __init__(self, api: JetStreamApi, name: str) -> None:
        self._api = api
        self._name = name
        self._stream = f"OBJ_{name}"

    async def ensure(self, *, max_age: int, max_bytes: int, replicas: int) -> None:
        """Create the bucket if there is none; seconds and bytes."""
        try:
            await self._api.call(f"STREAM.INFO.{self._stream}")
            return
        except JetStreamError as error:
            if error.code != STREAM_NOT_FOUND:
                raise
        config = bucket_config(self._name, max_age=max_age, max_bytes=max_bytes, replicas=replicas)
        try:
            await self._api.call(f"STREAM.CREATE.{self._stream}", config)
        except JetStreamError as error:
            if error.code != STREAM_EXISTS:
                raise

    # describing

    async def find(self, name: str) -> Stored | None:
        """The description of an object; None when there is none. Raises Damaged."""
        found = await self._last(name)
        return None if found is None else _stored(name, found[0])

    async def names(self) -> list[str]:
        """Names of all objects, deleted ones included, sorted."""
        names: list[str] = []
        offset = 0
        while True:
            page = {"subjects_filter": f"$O.{self._name}.M.>", "offset": offset}
            try:
                info = await self._api.call(f"STREAM.INFO.{self._stream}", page)
            except JetStreamError as error:
                if error.code == STREAM_NOT_FOUND:
                    return []
                raise
            subjects = info["state"].get("subjects") or {}
            names += [name for subject in subjects if (name := _name_of(subject)) is not None]
            offset += len(subjects)
            if not subjects or offset >= int(info.get("total", 0)):
                return sorted(names)

    async def describe(self, names: list[str]) -> list[Stored]:
        """Descriptions of those of `names` that are there and whole, in order."""
        gate = asyncio.Semaphore(_AT_ONCE)

        async def one(name: str) -> Stored | None:
            async with gate:
                try:
                    return await self.find(name)
                except Damaged:
                    return None

        return [found for found in await asyncio.gather(*map(one, names)) if found is not None]

    async def _last(self, name: str) -> tuple[bytes, int] | None:
        """The last description of `name` and its stream sequence."""
        message = await self._get({"last_by_subj": self._meta(name)})
        return None if message is None else (message.data, int((message.headers or {}).get("Nats-Sequence", 0)))

    async def _get(self, ask: Mapping[str, Any]) -> InboundMessage | None:
        subject = f"{PREFIX}.DIRECT.GET.{self._stream}"
        try:
            message = await self._api.request(subject, msgspec.json.encode(ask), timeout=_WAIT)
        except NoJetStream:
            await self._explain()
            return None
        status = (message.headers or {}).get("Status")
        if status is None:
            return message
        if status == "404":
            return None
        raise JetStreamError(0, f"the bucket {self._name} answers with status {status}")

    async def _explain(self) -> None:
        """Nobody answers a direct get: no JetStream, no bucket (return), or one without direct gets."""
        try:
            await self._api.call(f"STREAM.INFO.{self._stream}")
        except JetStreamError as error:
            if error.code in (STREAM_NOT_FOUND, MESSAGE_NOT_FOUND):
                return
            raise
        raise JetStreamError(
            0, f"the bucket {self._name} has no direct gets: `nats stream edit {self._stream} --allow-direct`"
        )

    # content

    async def put(self, name: str, content: AsyncIterator[bytes], *, max_payload: int, put_by: str) -> Stored:
        """Store `content` under a name that must be free. Raises Taken, and whatever `content` raises; then nothing stays."""
        last = await self._last(name)
        if last is not None and _stored(name, last[0]) is not None:
            raise Taken
        chunks = secrets.token_hex(11)
        subject = f"$O.{self._name}.C.{chunks}"
        limit = min(_CHUNK_BYTES, max_payload - _CHUNK_MARGIN)
        digest = hashlib.sha256()
        size = count = 0
        try:
            async for piece in _regular(content, limit):
                await self._publish(subject, piece)
                digest.update(piece)
                size, count = size + len(piece), count + 1
            stored = Stored(name, size, f"sha256:{digest.hexdigest()}", chunks, put_by)
            await self._announce(stored, count, limit, 0 if last is None else last[1])
        except asyncio.CancelledError:
            await self._purge(subject, _PURGE_WHEN_CANCELLED)
            raise
        except BaseException:
            await self._purge(subject, _WAIT)
            raise
        return stored

    async def _announce(self, stored: Stored, count: int, chunk_bytes: int, after: int) -> None:
        description = {
            "name": stored.name,
            "options": {"max_chunk_size": chunk_bytes},
            "bucket": self._name,
            "nuid": stored.chunks,
            "size": stored.size,
            "chunks": count,
            "digest": _DIGEST + base64.urlsafe_b64encode(bytes.fromhex(stored.digest[7:])).decode(),
            "metadata": {"put_by": stored.put_by},
        }
        headers = {"Nats-Rollup": "sub", "Nats-Expected-Last-Subject-Sequence": str(after)}
        try:
            await self._publish(self._meta(stored.name), msgspec.json.encode(description), headers)
        except JetStreamError as error:
            if error.code in _WRONG_SEQUENCE:
                raise Taken from None
            raise

    async def content(self, stored: Stored) -> AsyncIterator[bytes]:
        """The content in pieces. The last piece comes only when size and digest are right; else Damaged is raised."""
        subject = f"$O.{self._name}.C.{stored.chunks}"
        digest = hashlib.sha256()
        size, sequence, held = 0, 1, b""
        while size < stored.size:
            message = await self._get({"seq": sequence, "next_by_subj": subject})
            if message is None or not message.data:
                raise Damaged(f"{stored.size - size} of {stored.size} bytes are missing")
            sequence = int((message.headers or {}).get("Nats-Sequence", 0)) + 1
            size += len(message.data)
            digest.update(message.data)
            if held:
                yield held
            held = message.data
        if size != stored.size or f"sha256:{digest.hexdigest()}" != stored.digest:
            raise Damaged("the content is not that of its digest")
        if held:
            yield held

    async def _publish(self, subject: str, data: bytes, headers: Mapping[str, str] | None = None) -> None:
        answer = read_answer(await self._api.request(subject, data, headers, timeout=_WAIT))
        if answer.get("stream") != self._stream:
            raise read_error({"description": f"another stream keeps the subjects of the bucket {self._name}"})

    async def _purge(self, subject: str, timeout: float) -> None:
        """Drop the chunks of an object that did not come to be; if that fails too the bucket's age removes them."""
        purging = asyncio.ensure_future(self._api.call(f"STREAM.PURGE.{self._stream}", {"filter": subject}))
        await asyncio.wait({purging}, timeout=timeout)
        if purging.done():
            purging.exception()
        else:
            purging.cancel()

    def _meta(self, name: str) -> str:
        return f"$O.{self._name}.M.{base64.urlsafe_b64encode(name.encode()).decode()}"


async def _regular(content: AsyncIterator[bytes], size: int) -> AsyncIterator[bytes]:
    """`content` in pieces of `size` bytes, the last one smaller."""
    held = bytearray()
    async for piece in content:
        held += piece
        while len(held) >= size:
            yield bytes(held[:size])
            del held[:size]
    if held:
        yield bytes(held)


def _name_of(subject: str) -> str | None:
    try:
        return base64.urlsafe_b64decode(subject.rpartition(".")[2]).decode()
    except ValueError:
        return None


def _stored(name: str, raw: bytes) -> Stored | None:
    """A description that a stranger may have written, or None for a deleted object. Raises Damaged."""
    try:
        found = _describe(raw)
        digest = base64.urlsafe_b64decode(found.digest.removeprefix(_DIGEST)).hex()
    except (msgspec.DecodeError, RecursionError, ValueError):
        raise Damaged("its description cannot be read") from None
    if found.deleted:
        return None
    token = found.nuid
    if found.options.get("link") or found.name != name or found.size < 0:
        raise Damaged("its description is that of something else")
    if not found.digest.startswith(_DIGEST) or len(digest) != 64:
        raise Damaged("its description has no SHA-256 digest")
    if not token.isascii() or not token.replace("-", "").replace("_", "").isalnum() or len(token) > _MAX_NUID:
        raise Damaged("its description names no chunks")
    return Stored(name, found.size, f"sha256:{digest}", token, (found.metadata or {}).get("put_by"))
