"""Signatures verified in threads, while earlier messages are decided and committed (docs/trust.md).

The result is a pure function of the envelope's bytes; policy, time and our keys do not matter. So an envelope may be verified in
advance, and its result kept under these bytes and dropped at any moment: without a result it is verified on the spot. Trust, and
the budget that a failure spends, are decided in the envelope's turn.
"""

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.errors import VerificationFailed
from aghbus.protocol.agh.trust.trust import Verifier
from aghbus.store.engine.gil_yield import yield_gil_while

MIN_BATCH: Final = 5  # with fewer, the hand-over to a thread costs more than it saves
_PART: Final = 64  # envelopes of one job of a thread, so that the first are ready before the last
_UNKNOWN: Final = VerificationFailed("not checked yet")


class SignaturePool:
    """A verifier with a cache of results that its threads fill: `begin` gives envelopes to them, others are verified inline."""

    def __init__(self, check: Verifier, threads: int | None = None) -> None:
        """`check` is called in several threads at a time, by default as many as the cores of this process."""
        self._check = check
        self._threads = threads or len(os.sched_getaffinity(0))
        self._pool = ThreadPoolExecutor(self._threads, thread_name_prefix="verification")  # threads start when needed
        self._found: dict[bytes, VerificationFailed | None] = {}
        self._begun: dict[bytes, asyncio.Future[None]] = {}

    def verify(self, envelope: Envelope) -> None:
        """The result of `check`, cached or fresh. Raises VerificationFailed."""
        found = self._found.get(envelope.raw, _UNKNOWN)
        if found is _UNKNOWN:
            self._check(envelope)
        elif found is not None:
            raise found

    def begin(self, envelopes: Sequence[Envelope]) -> None:
        """Start to verify these, unless they are too few. The caller must `forget` each in the end."""
        fresh = list({each.raw: each for each in envelopes if each.raw not in self._begun}.values())
        if len(fresh) < MIN_BATCH:
            return
        loop = asyncio.get_running_loop()
        size = min(_PART, -(-len(fresh) // self._threads))
        for first in range(0, len(fresh), size):
            part = fresh[first : first + size]
            checked = loop.run_in_executor(self._pool, self._check_all, part)
            self._begun.update((each.raw, checked) for each in part)

    async def ready(self, envelopes: Sequence[Envelope]) -> None:
        """Wait until those of these that were begun are verified."""
        parts = dict.fromkeys([self._begun.get(each.raw) for each in envelopes])
        for checked in parts:
            if checked is not None and not checked.done():
                await yield_gil_while(checked)

    def forget(self, envelopes: Sequence[Envelope]) -> None:
        """Drop the results of these; they are ready, or were never begun."""
        for each in envelopes:
            self._begun.pop(each.raw, None)
            self._found.pop(each.raw, None)

    @property
    def pending(self) -> int:
        """The number of envelopes begun and not forgotten."""
        return len(self._begun)

    def close(self) -> None:
        """End the threads and drop their queue. `verify` keeps working."""
        self._pool.shutdown(cancel_futures=True)

    def _check_all(self, envelopes: list[Envelope]) -> None:
        for each in envelopes:
            try:
                self._check(each)
            except VerificationFailed as error:
                self._found[each.raw] = error
            except Exception:  # noqa: S112 - the error is raised again when this envelope is decided
                continue
            else:
                self._found[each.raw] = None
