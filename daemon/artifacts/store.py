"""Artifacts: content that does not fit an envelope, in one object store that all peers of a network share.

An artifact never changes under its URI: putting the same content again succeeds, other content is a conflict. Any peer may have
written to the bucket: names, sizes and digests are checked.
"""

import contextlib
import hashlib
from collections.abc import AsyncIterator, Callable, Collection, Container, Iterator

from aghbus.daemon.artifacts.bucket import Bucket, DamagedObject, NameTaken, StoredObject
from aghbus.daemon.config.settings import ArtifactSettings
from aghbus.daemon.config.value_types import show_size
from aghbus.daemon.jetstream.stream import FULL
from aghbus.daemon.nats.link import JetStreamError, Link, LinkError, NoJetStream
from aghbus.protocol.api.artifact_uri import PART_RULE, artifact_uri, is_part, parse_uri
from aghbus.protocol.api.artifacts import Artifact, ArtifactsResponse
from aghbus.protocol.api.queries import ArtifactsQuery
from aghbus.protocol.base.errors import InvalidRequest, NotFound, Refused, Unavailable


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
        bucket = Bucket(self._link, settings.bucket)
        digest = hashlib.sha256()
        checked = _checked(content, digest, settings.max_bytes)
        with _translated():
            await bucket.ensure(max_age=settings.max_age, max_bytes=settings.bucket_bytes, replicas=settings.replicas)
            stored = await bucket.find(key)
            if stored is None:
                try:
                    max_payload = self._link.max_payload
                    stored = await bucket.put(key, checked, max_payload=max_payload, put_by=self._peer_id)
                except NameTaken:  # by another peer, meanwhile
                    stored = await bucket.find(key)
            async for _ in checked:  # content that was not put is only compared
                pass
        if stored is None:
            raise Unavailable(f"artifact {artifact_uri_of(key)} was deleted meanwhile", hint="try again")
        if stored.digest != f"sha256:{digest.hexdigest()}":
            raise Refused(
                f"artifact {artifact_uri_of(key)} exists with other content ({stored.digest})",
                hint="an artifact never changes: put it under another name",
                code="conflict",
            )
        return _artifact(key, stored)

    async def get(self, work_id: str, name: str) -> tuple[Artifact, AsyncIterator[bytes]]:
        """The artifact and its content in pieces; the last piece comes only when size and digest are right."""
        key = _key(work_id, name)
        settings = self._settings()
        bucket = Bucket(self._link, settings.bucket)
        with _translated():
            stored = await bucket.find(key)
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
        return _artifact(key, stored), _pieces(bucket, stored)

    async def list_artifacts(self, query: ArtifactsQuery) -> ArtifactsResponse:
        """Artifacts of one work, or of all, by URI."""
        work_id, limit = query.work_id, query.limit
        if work_id is not None and not is_part(work_id):
            raise InvalidRequest(f"work: must be {PART_RULE}")
        bucket = Bucket(self._link, self._settings().bucket)
        with _translated():
            names = [
                name
                for name in await bucket.names()
                if parse_uri(artifact_uri_of(name)) and (work_id is None or name.partition("/")[0] == work_id)
            ]
            found = await bucket.describe(names[:limit])
        artifacts = [_artifact(stored.name, stored) for stored in found]
        return ArtifactsResponse(artifacts=artifacts, more=len(names) > limit)

    async def remove(
        self, work_ids: Collection[str], own_ids: Container[str | None], *, dry_run: bool
    ) -> tuple[int, list[str]]:
        """Remove what we, under one of `own_ids`, have put for these works. Returns how many, and the URIs of what others have put,
        or what the server does not permit us to remove.

        Without JetStream there is nothing. Raises Unavailable when the bucket cannot be reached.
        """
        bucket = Bucket(self._link, self._settings().bucket)
        removed, kept = 0, list[str]()
        with _translated(), contextlib.suppress(NoJetStream):
            names = [name for name in await bucket.names() if name.partition("/")[0] in work_ids]
            for stored in await bucket.describe(names):
                if stored.put_by in own_ids and (dry_run or await bucket.erase(stored)):
                    removed += 1
                else:
                    kept.append(artifact_uri_of(stored.name))
        return removed, kept


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


async def _checked(content: AsyncIterator[bytes], digest: "hashlib._Hash", limit: int) -> AsyncIterator[bytes]:
    """`content`, added to `digest`. Raises InvalidRequest above `limit` bytes."""
    size = 0
    async for piece in content:
        size += len(piece)
        if size > limit:
            raise InvalidRequest(
                f"artifact: is longer than {limit} bytes",
                hint="artifacts.max_bytes allows larger ones, on this daemon and on those that get it",
                code="too_large",
            )
        digest.update(piece)
        yield piece


async def _pieces(bucket: Bucket, stored: StoredObject) -> AsyncIterator[bytes]:
    with _translated():
        async for piece in bucket.content(stored):
            yield piece


@contextlib.contextmanager
def _translated() -> Iterator[None]:
    """Errors of the broker become RequestErrors."""
    try:
        yield
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
