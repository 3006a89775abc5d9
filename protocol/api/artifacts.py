"""The local API: artifacts, content in the object store of the broker."""

from aghbus.protocol.api.base import ResponseModel


class Artifact(ResponseModel):
    """One artifact.

    uri: `agh://artifacts/WORK_ID/NAME`.
    work_id: its work.
    name: its name within the work.
    size: in bytes.
    digest: `sha256:` and 64 hex digits.
    put_by: the peer id that the storing daemon gave, not verified; null when it gave none.
    """

    uri: str
    work_id: str
    name: str
    size: int
    digest: str
    put_by: str | None


class ArtifactsResponse(ResponseModel):
    """Artifacts of one work, or of all.

    artifacts: sorted by URI.
    more: whether there are others beyond the limit.
    """

    artifacts: list[Artifact]
    more: bool
