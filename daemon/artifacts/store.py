"""Artifacts: content that does not fit an envelope, in one object store that all peers of a network share.

An artifact never changes under its URI: putting the same content again succeeds, other content is a conflict. Any peer may have
written to the bucket: names, sizes and digests are checked.
"""

import hashlib
from collections.abc import AsyncIterator, Awaitable, Callable
from typing import TypeVar

from aghbus.daemon.artifacts.bucket import Bucket, DamagedObject, NameTaken, StoredObject
from aghbus.daemon.config.settings import ArtifactSettings
from aghbus.daemon.config.value_types import show_size
from aghbus.daemon.jetstream.stream import FULL
from aghbus.daemon.nats.link import JetStreamError, Link, LinkError, NoJetStream
from aghbus.protocol.api.artifact_uri import PART_RULE, artifact_uri, is_part, parse_uri
from aghbus.protocol.api.artifacts import Artifact, ArtifactsResponse
from aghbus.protocol.api.queries import ArtifactsQuery
from aghbus.protocol.errors import InvalidRequest, NotFound, Refused, Unavailable

T = TypeVar("T")


class ArtifactsUnreachable(Unavailable):
    """The link to the broker was down, or was lost: the state of the artifact and of the bucket is unknown."""


class Artifacts:
    """The object store for the local API. All methods raise RequestError with a hint."""

    def __init__(self, link: Link, peer_id: str, settings: Callable[[], ArtifactSettings]) -> None:
        """`settings` returns the current ones: the largest size may be reloaded."""
        self._link = link
        self._peer_id = peer_id
        self._settings = settings

    async def put(self, work_id: str, name: str, content: AsyncIterator[bytes]) -> Artifact:
        """Store `content`. Raises Refused (`conflict`) when the name holds something else, InvalidRequest (`too_large`)."""
        key = _key(work_id, name)
        settings = self._settings()
        bucket = self._bucket(settings)
        bounded = _bounded(content, settings.max_bytes)
        stored = await _translated(self._put(bucket, settings, key, bounded))
        return _artifact(key, stored)

    async def _put(
        self, bucket: Bucket, settings: ArtifactSettings, key: str, content: AsyncIterator[bytes]
    ) -> StoredObject:
        await bucket.ensure(max_age=settings.max_age, max_bytes=settings.bucket_bytes, replicas=settings.replicas)
        existing = await bucket.find(key)
        if existing is not None:
            return await _if_same(existing, await _digest(content))
        digest = hashlib.sha256()
        try:
            return await bucket.put(
                key, _hashed(content, digest), max_payload=self._link.max_payload, put_by=self._peer_id
            )
        except NameTaken:  # while we were putting it
            existing = await bucket.find(key)
            if existing is None:
                raise Unavailable(f"artifact {artifact_uri_of(key)} was deleted meanwhile", hint="try again") from None
            return await _if_same(existing, f"sha256:{digest.hexdigest()}")

    async def get(self, work_id: str, name: str) -> tuple[Artifact, AsyncIterator[bytes]]:
        """The artifact and its content in pieces; the last piece comes only when size and digest are right."""
        key = _key(work_id, name)
        settings = self._settings()
        bucket = self._bucket(settings)
        stored = await _translated(bucket.find(key))
        if stored is None:
            raise NotFound(
                f"no artifact {artifact_uri_of(key)} is in the bucket", hint="`aghctl artifact list` shows what is"
            )
        if stored.size > settings.max_bytes:
            raise InvalidRequest(
                f"artifact {artifact_uri_of(key)} has {stored.size} bytes",
                hint=f"artifacts.max_bytes of this daemon is {show_size(settings.max_bytes)}",
                code="too_large",
            )
        return _artifact(key, stored), _translated_stream(bucket.content(stored))

    async def list_artifacts(self, query: ArtifactsQuery) -> ArtifactsResponse:
        """Artifacts of one work, or of all, by URI."""
        work_id, limit = query.work_id, query.limit
        if work_id is not None and not is_part(work_id):
            raise InvalidRequest(f"work: must be {PART_RULE}")
        bucket = self._bucket(self._settings())
        names = [
            name
            for name in await _translated(bucket.names())
            if parse_uri(artifact_uri_of(name)) and (work_id is None or name.partition("/")[0] == work_id)
        ]
        found = await _translated(bucket.describe(names[:limit]))
        return ArtifactsResponse(
            artifacts=[_artifact(stored.name, stored) for stored in found], more=len(names) > limit
        )

    def _bucket(self, settings: ArtifactSettings) -> Bucket:
        return Bucket(self._link, settings.bucket)


def _key(work_id: str, name: str) -> str:
    """The object's name in the bucket."""
    for field, value in (("work_id", work_id), ("name", name)):
        if not is_part(value):
            raise InvalidRequest(f"{field}: must be {PART_RULE}")
    return f"{work_id}/{name}"


def artifact_uri_of(key: str) -> str:
    """The URI of an object's name in the bucket."""
    return artifact_uri(*key.split("/", 1)) if "/" in key else ""


def _artifact(key: str, stored: StoredObject) -> Artifact:
    work_id, _, name = key.partition("/")
    return Artifact(
        uri=artifact_uri_of(key),
        work_id=work_id,
        name=name,
        size=stored.size,
        digest=stored.digest,
        put_by=stored.put_by,
    )


async def _bounded(content: AsyncIterator[bytes], limit: int) -> AsyncIterator[bytes]:
    size = 0
    async for piece in content:
        size += len(piece)
        if size > limit:
            raise InvalidRequest(
                f"artifact: is longer than {limit} bytes",
                hint="artifacts.max_bytes allows larger ones, on this daemon and on those that get it",
                code="too_large",
            )
        yield piece


async def _hashed(content: AsyncIterator[bytes], digest: "hashlib._Hash") -> AsyncIterator[bytes]:
    async for piece in content:
        digest.update(piece)
        yield piece


async def _digest(content: AsyncIterator[bytes]) -> str:
    digest = hashlib.sha256()
    async for piece in content:
        digest.update(piece)
    return f"sha256:{digest.hexdigest()}"


async def _if_same(existing: StoredObject, digest: str) -> StoredObject:
    if existing.digest != digest:
        raise Refused(
            f"artifact {artifact_uri_of(existing.name)} exists with other content ({existing.digest})",
            hint="an artifact never changes: put it under another name",
            code="conflict",
        )
    return existing


async def _translated(work: Awaitable[T]) -> T:
    """The result of `work`; errors of the broker become RequestErrors."""
    try:
        return await work
    except (JetStreamError, LinkError, DamagedObject) as error:
        raise _request_error(error) from None


async def _translated_stream(content: AsyncIterator[bytes]) -> AsyncIterator[bytes]:
    try:
        async for piece in content:
            yield piece
    except (JetStreamError, LinkError, DamagedObject) as error:
        raise _request_error(error) from None


def _request_error(error: JetStreamError | LinkError | DamagedObject) -> Unavailable:
    match error:
        case NoJetStream():
            hint = "artifacts need JetStream: enable it on the NATS server, or use the embedded broker"
            return Unavailable(str(error), hint=hint)
        case JetStreamError(code=code) if code == FULL:
            return Unavailable("the artifact bucket is full", hint="`nats object rm` makes room, or a larger bucket")
        case JetStreamError():
            return Unavailable(f"the artifact bucket: {error}", hint="`aghctl status` shows the broker")
        case LinkError():
            return ArtifactsUnreachable(f"the broker cannot be reached: {error}", hint="`aghctl status` shows the link")
        case _:
            return Unavailable(f"the artifact is damaged: {error}", hint="have it put again under another name")
