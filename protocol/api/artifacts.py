"""The local API: artifacts, content in the object store of the broker."""

from aghbus.protocol.api.base import ResponseModel


class Artifact(ResponseModel):
    """One artifact."""

    uri: str  # `agh://artifacts/WORK_ID/NAME`
    work_id: str  # its work
    name: str  # its name within the work
    size: int  # in bytes
    digest: str  # `sha256:` and 64 hex digits
    put_by: str | None  # the peer id that the storing daemon gave, not verified; null when it gave none


class ArtifactsResponse(ResponseModel):
    """Artifacts of one work, or of all."""

    artifacts: list[Artifact]  # sorted by URI
    more: bool  # whether there are others beyond the limit
