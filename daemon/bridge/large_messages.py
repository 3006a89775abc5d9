"""Messages too large for an envelope: the content lies in the artifact store, the envelope carries a reference."""

import hashlib
from collections.abc import AsyncIterator, Mapping
from typing import Any

import msgspec

from aghbus.daemon.artifacts.store import Artifacts, Unreachable
from aghbus.protocol.adapters.attachments import (
    MAX_MESSAGE_BYTES,
    Reference,
    by_reference,
    compact,
    fetched,
    not_fetched,
    reference_in,
)
from aghbus.protocol.adapters.model import Finding
from aghbus.protocol.api.artifact_uri import is_part, parse_uri
from aghbus.protocol.errors import InvalidRequest, RequestError
from aghbus.protocol.limits import MAX_ENVELOPE_BYTES
from aghbus.protocol.send import Draft, wire_document
from aghbus.protocol.trust.proof import PROOF_BYTES

_SHELF = "bridge"  # in place of a work id, for messages of no work


def is_too_large(name: str, draft: Draft, max_payload: int, *, signed: bool) -> bool:
    """Whether the message that `draft` carries must go into the artifact store; `max_payload` is the broker's, in bytes, and
    `signed` tells that the envelope will have a proof.

    Raises InvalidRequest (`too_large`) when it is not the message that makes the envelope so large.
    """
    size = len(msgspec.json.encode(wire_document(draft))) + (PROOF_BYTES if signed else 0)
    if size <= min(MAX_ENVELOPE_BYTES, max_payload):
        return False
    if f"{name}.message" not in (draft.ext or {}):
        raise InvalidRequest(
            f"the envelope would have {size} bytes, and it is not the message that makes it so large",
            hint="send references to artifacts instead of their content",
            code="too_large",
        )
    return True


def with_reference(name: str, draft: Draft, references: Mapping[str, Reference]) -> Draft:
    """`draft` with a reference in place of its message, where `references` has one under its id."""
    reference = references.get(draft.id)
    if reference is None:
        return draft
    return msgspec.structs.replace(draft, ext=by_reference(name, draft.ext or {}, reference))


async def store_large(artifacts: Artifacts, name: str, draft: Draft) -> Reference:
    """The message that `draft` carries, put into the artifact store.

    Raises InvalidRequest (`too_large`) where there is none, Unreachable.
    """
    content = compact((draft.ext or {})[f"{name}.message"]).encode()
    if len(content) > MAX_MESSAGE_BYTES:
        raise InvalidRequest(
            f"the message has {len(content)} bytes, of at most {MAX_MESSAGE_BYTES}",
            hint="put large content into the artifact store and send a reference to it",
            code="too_large",
        )
    sha256 = hashlib.sha256(content).hexdigest()
    work_id = draft.work_id if draft.work_id is not None and is_part(draft.work_id) else _SHELF
    try:
        artifact = await artifacts.put(work_id, f"{name}-{sha256[:32]}.json", _pieces(content))
    except Unreachable:
        raise
    except RequestError as error:
        raise InvalidRequest(
            f"the message has {len(content)} bytes, too many for an envelope, and the artifact store did not take it:"
            f" {error.message}",
            hint=error.hint,
            code="too_large",
        ) from None
    return Reference(artifact.uri, sha256, len(content))


async def fetch_large(
    artifacts: Artifacts, name: str, ext: Mapping[str, Any]
) -> tuple[Any | None, tuple[Finding, ...]]:
    """The message that `ext` refers to, and why it could not be had; `(None, ())` when it refers to none. Raises Unreachable."""
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
    except Unreachable:
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
            break  # its size was checked: the digest will say that this is something else
    return bytes(held)
