"""An artifact's content as the body of a response, in pieces, described by headers.

The iterator yields its last piece only when size and digest are right. If it fails before, the response is not terminated,
which every HTTP client reports: a truncated file never looks complete.
"""

import logging
from collections.abc import AsyncIterator
from typing import Final

from aghbus.daemon.api.http.exchange import Exchange, common_headers
from aghbus.daemon.base.logs import event
from aghbus.protocol.api.artifacts import Artifact
from aghbus.protocol.base.errors import RequestError

logger = logging.getLogger("aghbus.daemon.api")

CONTENT: Final = b"application/octet-stream"


class Download:
    """One response. `content` is closed in any case."""

    def __init__(self, exchange: Exchange, artifact: Artifact, content: AsyncIterator[bytes]) -> None:
        self._exchange = exchange
        self._artifact = artifact
        self._content = content

    async def run(self, where: str) -> None:
        """Send the content. An error before the first piece is raised; a later one is logged with the path `where`."""
        try:
            piece: bytes | None = await anext(self._content, b"")
            self._start()
            while piece:
                await self._exchange.write(piece)
                piece = await self._next(where)
            if piece is not None:
                self._exchange.end()
        finally:
            closing = getattr(self._content, "aclose", None)
            if closing is not None:
                await closing()

    async def _next(self, where: str) -> bytes | None:
        try:
            return await anext(self._content, b"")
        except RequestError as error:
            event(logger, logging.WARNING, "download cut off", path=where, cause=error.message)
            return None

    def _start(self) -> None:
        artifact = self._artifact
        disposition = b'attachment; filename="%s"' % artifact.name.encode()  # the grammar of names has no quotes
        headers = (
            *common_headers(CONTENT),
            (b"artifact-size", b"%d" % artifact.size),
            (b"artifact-digest", artifact.digest.encode()),
            (b"content-disposition", disposition),
        )
        self._exchange.start(200, headers)
