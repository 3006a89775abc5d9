"""Messages that are too large for an envelope: the artifact store holds them, and the envelope carries a reference."""

import hashlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec

from aghbus.daemon.artifacts.store import Artifacts, ArtifactsUnreachable
from aghbus.protocol.agh.limits import MAX_ENVELOPE_BYTES
from aghbus.protocol.agh.send import Draft, wire_document
from aghbus.protocol.agh.trust.proof import PROOF_BYTES
from aghbus.protocol.api.artifact_uri import is_part, parse_uri
from aghbus.protocol.base.errors import InvalidRequest, RequestError
from aghbus.protocol.formats.attachments import (
    MAX_MESSAGE_BYTES,
    Reference,
    by_reference,
    compact,
    fetched,
    not_fetched,
    reference_in,
)
from aghbus.protocol.formats.model import Finding

_NO_WORK = "bridge"  # in place of a work id, for messages without a work


def is_too_large(name: str, draft: Draft, max_payload: int, *, signed: bool) -> bool:
    """Whether the message in `draft` must be stored as an artifact. `max_payload` is the broker's limit in bytes; `signed`
    says that the envelope will have a proof.

    Raises InvalidRequest (`too_large`) when other parts of the envelope make it too large.
    """
    size = len(msgspec.json.encode(wire_document(draft))) + (PROOF_BYTES if signed else 0)
    if size <= min(MAX_ENVELOPE_BYTES, max_payload):
        return False
    if f"{name}.message" not in (draft.ext or {}):
        raise InvalidRequest(
            f"the envelope would have {size} bytes, even without the message it carries",
            hint="send references to artifacts instead of their content",
            code="too_large",
        )
    return True


def with_reference(name: str, draft: Draft, references: Mapping[str, Reference]) -> Draft:
    """`draft` with a reference instead of its message, if `references` has one under its id."""
    reference = references.get(draft.id)
    if reference is None:
        return draft
    return msgspec.structs.replace(draft, ext=by_reference(name, draft.ext or {}, reference))


async def store_large(artifacts: Artifacts, name: str, draft: Draft) -> Reference:
    """Store the message of `draft` as an artifact.

    Raises InvalidRequest (`too_large`) when there is no artifact store or it refuses the message, or ArtifactsUnreachable.
    """
    content = compact((draft.ext or {})[f"{name}.message"]).encode()
    if len(content) > MAX_MESSAGE_BYTES:
        raise InvalidRequest(
            f"the message has {len(content)} bytes, of at most {MAX_MESSAGE_BYTES}",
            hint="put large content into the artifact store and send a reference to it",
            code="too_large",
        )
    sha256 = hashlib.sha256(content).hexdigest()
    work_id = draft.work_id if draft.work_id is not None and is_part(draft.work_id) else _NO_WORK
    try:
        artifact = await artifacts.put(work_id, f"{name}-{sha256[:32]}.json", _pieces(content))
    except ArtifactsUnreachable:
        raise
    except RequestError as error:
        raise InvalidRequest(
            f"the message has {len(content)} bytes, too many for an envelope, and the artifact store refused it:"
            f" {error.message}",
            hint=error.hint,
            code="too_large",
        ) from None
    return Reference(artifact.uri, sha256, len(content))


async def fetch_large(
    artifacts: Artifacts, name: str, ext: Mapping[str, Any]
) -> tuple[Any | None, tuple[Finding, ...]]:
    """The message that `ext` refers to, or the finding why it could not be fetched; `(None, ())` without a reference.

    Raises ArtifactsUnreachable.
    """
    reference = reference_in(name, ext)
    if reference is None:
        return None, ()
    if isinstance(reference, Finding):
        return None, (reference,)
    where = parse_uri(reference.uri)
    if where is None:
        return None, (not_fetched("names no artifact"),)
    try:
        artifact, content = await artifacts.get(*where)
        if artifact.size != reference.size:
            return None, (not_fetched("the artifact has another size"),)
        return fetched(reference, await _whole(content))
    except ArtifactsUnreachable:
        raise
    except RequestError as error:
        return None, (not_fetched(error.message),)


async def _pieces(content: bytes) -> AsyncIterator[bytes]:
    yield content


async def _whole(content: AsyncIterator[bytes]) -> bytes:
    held = bytearray()
    async for piece in content:
        held += piece
        if len(held) > MAX_MESSAGE_BYTES:
            break  # larger than announced: the digest check will fail
    return bytes(held)
