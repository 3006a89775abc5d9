"""How busy our agent is, as our greets tell: its open works, and how many its workers carry out at a time."""

from collections.abc import AsyncGenerator, Callable
from typing import TypeVar

from aghbus.protocol.agh.handover import LOAD_KEY, Load
from aghbus.store.engine.database import Store
from aghbus.store.tables.works import open_works

T = TypeVar("T")


def _nobody() -> None:
    pass


class OwnLoad:
    """`on_change` is called when a worker connects or goes."""

    def __init__(self, store: Store) -> None:
        self._store = store
        self._takes = self._open = 0
        self.on_change: Callable[[], object] = _nobody

    async def refresh(self) -> None:
        """Count the open works. Raises StoreUnavailable."""
        found = await open_works.counts_by_role(self._store.reader)
        self._open = sum(count for (_, role), count in found.items() if role == "target")

    @property
    def load(self) -> Load:
        """As the last greet told it, or the next one does."""
        return Load(self._open, self._takes)

    @property
    def extension(self) -> dict[str, object]:
        """The members of a greet's ext."""
        return {LOAD_KEY: list(self.load)}

    async def connected(self, takes: int, stream: AsyncGenerator[T, None]) -> AsyncGenerator[T, None]:
        """The event `stream` of a worker that carries out `takes` works at a time."""
        self._count(takes)
        try:
            async for page in stream:
                yield page
        finally:
            self._count(-takes)
            await stream.aclose()

    def _count(self, takes: int) -> None:
        self._takes += takes
        self.on_change()
