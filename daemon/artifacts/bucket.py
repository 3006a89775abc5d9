"""A JetStream object store (ADR-20 of NATS' architecture), as far as artifacts need it; the `nats object` tool reads it too.

An object is a run of chunks under its own subject, and one message that describes it: the first of its subject, so that no later
one replaces it. Each chunk is confirmed when it is put, and requested by its sequence when it is read. docs/jetstream.md says why
the client library's object store is not used.
"""

import asyncio
import base64
import hashlib
import secrets
from collections.abc import AsyncIterator, Awaitable, Callable
from functools import partial
from typing import Any, Final, TypeVar

import msgspec

from aghbus.daemon.jetstream.stream import EXISTS, NOT_FOUND
from aghbus.daemon.nats.jetstream import MESSAGE_NOT_FOUND, JetStreamContext, RawStreamMsg, StreamConfig
from aghbus.daemon.nats.link import JetStreamError, Link, LinkTimeout, NoJetStream
from aghbus.protocol.agh.nats.jetstream import bucket_config

T = TypeVar("T")

_CHUNK_BYTES: Final = 262_144  # twice the tools' default: half the round trips; any size can be read
_CHUNK_MARGIN: Final = 4096  # of the server's largest payload, for the protocol overhead of a chunk
_TIMEOUT: Final = 30.0  # seconds for one chunk
_PURGE_TIMEOUT: Final = 0.5  # seconds: a caller is waiting, and a server that does not permit it gives no answer
_ERASE_TIMEOUT: Final = 3.0  # seconds for one message; as above
_CONCURRENT: Final = 32  # descriptions that are requested at a time
_DIGEST: Final = "SHA-256="
_WRONG_SEQUENCE: Final = frozenset({10071, 10164})  # another peer has described an object of that name meanwhile
_MAX_NUID: Final = 64  # characters; those of the tools have 22


class DamagedObject(Exception):
    """The stored content or description is inconsistent; says how."""


class NameTaken(Exception):
    """There is an object of that name already."""


class StoredObject(msgspec.Struct, frozen=True):
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


_parse_description: Final = msgspec.json.Decoder(_Description).decode


class Bucket:
    """One object store by name. All methods raise JetStreamError and LinkError."""

    def __init__(self, link: Link, name: str) -> None:
        self._link = link
        self._name = name
        self._stream = f"OBJ_{name}"

    async def ensure(self, *, max_age: int, max_bytes: int, replicas: int) -> None:
        """Create the bucket if there is none; seconds and bytes."""
        if await self._exists():
            return
        config = StreamConfig.from_response(
            bucket_config(self._name, max_age=max_age, max_bytes=max_bytes, replicas=replicas, append_only=False)
        )
        try:
            await self._call(lambda js: js.add_stream(config))
        except JetStreamError as error:
            if error.code != EXISTS:
                raise

    async def _exists(self) -> bool:
        try:
            await self._call(lambda js: js.stream_info(self._stream))
        except JetStreamError as error:
            if error.code == NOT_FOUND:
                return False
            raise
        return True

    # descriptions

    async def find(self, name: str) -> StoredObject | None:
        """The description of an object; None when there is none. Raises DamagedObject."""
        found = await self._first(name)
        return None if found is None else _stored(name, found.data or b"")

    async def names(self) -> list[str]:
        """Names of all objects, deleted ones included, sorted; at most 100,000, which is the server's limit for one answer."""
        try:
            info = await self._call(lambda js: js.stream_info(self._stream, f"$O.{self._name}.M.>"))
        except JetStreamError as error:
            if error.code == NOT_FOUND:
                return []
            raise
        return sorted(name for subject in info.state.subjects or () if (name := _name_of(subject)) is not None)

    async def describe(self, names: list[str]) -> list[StoredObject]:
        """Descriptions of those of `names` that exist and are consistent, in order."""
        gate = asyncio.Semaphore(_CONCURRENT)

        async def one(name: str) -> StoredObject | None:
            async with gate:
                try:
                    return await self.find(name)
                except DamagedObject:
                    return None

        return [found for found in await asyncio.gather(*map(one, names)) if found is not None]

    async def _first(self, name: str) -> RawStreamMsg | None:
        """The first description of `name`."""
        return await self._get(partial(_next_message, self._stream, self._meta(name), 1))

    async def _get(self, operation: Callable[[JetStreamContext], Awaitable[RawStreamMsg]]) -> RawStreamMsg | None:
        """A message by a direct get; None when there is none."""
        try:
            return await self._call(operation)
        except NoJetStream:  # no responders: no JetStream, no bucket, or one without direct gets
            if not await self._exists():
                return None
            hint = f"`nats stream edit {self._stream} --allow-direct`"
            raise JetStreamError(0, f"the bucket {self._name} has no direct gets: {hint}") from None
        except JetStreamError as error:
            if error.code == MESSAGE_NOT_FOUND:
                return None
            raise

    async def _call(self, operation: Callable[[JetStreamContext], Awaitable[T]]) -> T:
        return await self._link.jetstream(operation, _TIMEOUT)

    # content

    async def put(self, name: str, content: AsyncIterator[bytes], *, max_payload: int, put_by: str) -> StoredObject:
        """Store `content` under a name that must be free. Raises NameTaken, and whatever `content` raises; then nothing stays."""
        deleted = await self._first(name)
        if deleted is not None and _stored(name, deleted.data or b"") is not None:
            raise NameTaken
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
            stored = StoredObject(name, size, f"sha256:{digest.hexdigest()}", chunks, put_by)
            await self._announce(stored, count, limit, 0 if deleted is None else deleted.seq or 0)
        except BaseException:
            await self._purge(subject)
            raise
        return stored

    async def erase(self, stored: StoredObject) -> bool:
        """Remove an object; the server overwrites its messages in its files. The chunks go first: the description names them.

        Returns False where the server does not permit it: it does not answer then.
        """
        try:
            await self._erase(stored)
        except LinkTimeout:
            return False
        return True

    async def _erase(self, stored: StoredObject) -> None:
        subject, sequence = f"$O.{self._name}.C.{stored.chunks}", 1
        while (chunk := await self._get(partial(_next_message, self._stream, subject, sequence))) is not None:
            await self._delete(chunk)
            sequence = (chunk.seq or 0) + 1
        description = await self._first(stored.name)
        if description is not None and _stored(stored.name, description.data or b"") == stored:
            await self._delete(description)

    async def _delete(self, message: RawStreamMsg) -> None:
        await self._link.jetstream(lambda js: js.delete_msg(self._stream, message.seq or 0), _ERASE_TIMEOUT)

    async def _announce(self, stored: StoredObject, count: int, chunk_bytes: int, after: int) -> None:
        """Publish the description: the first one, or in place of the one at sequence `after`, which says that the name is free."""
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
        headers = {"Nats-Expected-Last-Subject-Sequence": str(after)} | ({"Nats-Rollup": "sub"} if after else {})
        try:
            await self._publish(self._meta(stored.name), msgspec.json.encode(description), headers)
        except JetStreamError as error:
            if error.code in _WRONG_SEQUENCE:
                raise NameTaken from None
            raise

    async def content(self, stored: StoredObject) -> AsyncIterator[bytes]:
        """The content in pieces. The last piece comes only when size and digest are right; else DamagedObject is raised."""
        subject = f"$O.{self._name}.C.{stored.chunks}"
        digest = hashlib.sha256()
        size, sequence, held = 0, 1, b""
        while size < stored.size:
            message = await self._get(partial(_next_message, self._stream, subject, sequence))
            if message is None or not message.data:
                raise DamagedObject(f"{stored.size - size} of {stored.size} bytes are missing")
            sequence = (message.seq or 0) + 1
            size += len(message.data)
            digest.update(message.data)
            if held:
                yield held
            held = message.data
        if size != stored.size or f"sha256:{digest.hexdigest()}" != stored.digest:
            raise DamagedObject("the content is not that of its digest")
        if held:
            yield held

    async def _publish(self, subject: str, data: bytes, headers: dict[str, str] | None = None) -> None:
        confirmed = await self._call(lambda js: js.publish(subject, data, timeout=_TIMEOUT, headers=headers))
        if confirmed.stream != self._stream:
            raise JetStreamError(0, f"another stream keeps the subjects of the bucket {self._name}")

    async def _purge(self, subject: str) -> None:
        """Drop the chunks of an object that was not completed; if that fails or is not permitted, the bucket's age removes them."""
        purging = asyncio.ensure_future(self._call(lambda js: js.purge_stream(self._stream, subject=subject)))
        await asyncio.wait({purging}, timeout=_PURGE_TIMEOUT)
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


def _next_message(stream: str, subject: str, sequence: int, js: JetStreamContext) -> Awaitable[RawStreamMsg]:
    """The first message of `subject` at `sequence` or later."""
    return js.get_msg(stream, sequence, subject, direct=True, next=True)


def _name_of(subject: str) -> str | None:
    try:
        return base64.urlsafe_b64decode(subject.rpartition(".")[2]).decode()
    except ValueError:
        return None


def _stored(name: str, raw: bytes) -> StoredObject | None:
    """A description, which anyone may have written, or None for a deleted object. Raises DamagedObject."""
    try:
        found = _parse_description(raw)
        digest = base64.urlsafe_b64decode(found.digest.removeprefix(_DIGEST)).hex()
    except (msgspec.DecodeError, RecursionError, ValueError):
        raise DamagedObject("its description cannot be read") from None
    if found.deleted:
        return None
    token = found.nuid
    if found.options.get("link") or found.name != name or found.size < 0:
        raise DamagedObject("its description is that of something else")
    if not found.digest.startswith(_DIGEST) or len(digest) != 64:
        raise DamagedObject("its description has no SHA-256 digest")
    if not token.isascii() or not token.replace("-", "").replace("_", "").isalnum() or len(token) > _MAX_NUID:
        raise DamagedObject("its description names no chunks")
    return StoredObject(name, found.size, f"sha256:{digest}", token, (found.metadata or {}).get("put_by"))
