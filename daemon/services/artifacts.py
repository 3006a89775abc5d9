"""The part of the daemon's service that is about artifacts; the node's service inherits it."""

from collections.abc import AsyncIterator
from functools import cached_property

from aghbus.daemon.artifacts.store import Artifacts
from aghbus.daemon.state.context import Core
from aghbus.protocol.api.artifacts import Artifact, ArtifactsResponse


class ArtifactService:
    """Artifacts over the link of a running daemon, in either durability; made at the first use."""

    _core: Core

    @cached_property
    def _artifacts(self) -> Artifacts:
        core = self._core
        return Artifacts(core.link, core.us, lambda: core.settings.artifacts)

    async def artifact_put(self, work_id: str, name: str, content: AsyncIterator[bytes]) -> Artifact:
        """Store content under a URI that is free, or has the same content."""
        return await self._artifacts.put(work_id, name, content)

    async def artifact_get(self, work_id: str, name: str) -> tuple[Artifact, AsyncIterator[bytes]]:
        """The artifact and its content; an error of the last piece says that it was not what its digest says."""
        return await self._artifacts.get(work_id, name)

    async def artifacts(self, *, work_id: str | None, limit: int) -> ArtifactsResponse:
        """What is in the bucket."""
        return await self._artifacts.list(work_id, limit)
