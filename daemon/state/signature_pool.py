"""Signatures checked in threads while the messages before them are decided and committed (docs/trust.md).

What a check finds is a pure function of an envelope's bytes: neither policy nor time nor keys of ours come into it. So it may be
made before the envelope's turn, kept under these bytes, and dropped at any moment: where nothing is known the envelope is checked
on the spot. Whether it is believed, and whose budget a wrong signature spends, is decided in its turn as ever.
"""

import asyncio
import os
from collections.abc import Sequence
from concurrent.futures import ThreadPoolExecutor
from typing import Final

from aghbus.protocol.envelope import Envelope
from aghbus.protocol.errors import VerificationFailed
from aghbus.protocol.trust.trust import Verifier
from aghbus.store.engine.gil_yield import with_room

FEW: Final = 4  # ours: up to here handing them over and back costs more than it saves
_PART: Final = 64  # ours: envelopes of one piece of work, so that the first are ready before the last
_UNKNOWN: Final = VerificationFailed("not checked yet")


class Verification:
    """A verifier that may have been asked before. What is handed to `begin` goes to its threads; all else is checked at once."""

    def __init__(self, check: Verifier, threads: int | None = None) -> None:
        """`check` is asked in several threads at a time, `threads` of them: as many as this process may use cores."""
        self._check = check
        self._threads = threads or len(os.sched_getaffinity(0))
        self._pool = ThreadPoolExecutor(
            self._threads, thread_name_prefix="verification"
        )  # none runs before it is needed
        self._found: dict[bytes, VerificationFailed | None] = {}
        self._begun: dict[bytes, asyncio.Future[None]] = {}

    def verify(self, envelope: Envelope) -> None:
        """What `check` says, looked up where it is known. Raises VerificationFailed as that does."""
        found = self._found.get(envelope.raw, _UNKNOWN)
        if found is _UNKNOWN:
            self._check(envelope)
        elif found is not None:
            raise found

    def begin(self, envelopes: Sequence[Envelope]) -> None:
        """Have these checked, unless they are already, or are too few to be worth it. Each must be forgotten in the end."""
        fresh = list({each.raw: each for each in envelopes if each.raw not in self._begun}.values())
        if len(fresh) <= FEW:
            return
        loop = asyncio.get_running_loop()
        size = min(_PART, -(-len(fresh) // self._threads))
        for first in range(0, len(fresh), size):
            part = fresh[first : first + size]
            checked = loop.run_in_executor(self._pool, self._check_all, part)
            self._begun.update((each.raw, checked) for each in part)

    async def ready(self, envelopes: Sequence[Envelope]) -> None:
        """Wait until those of these that were begun are checked."""
        parts = dict.fromkeys([self._begun.get(each.raw) for each in envelopes])
        for checked in parts:
            if checked is not None and not checked.done():
                await with_room(checked)

    def forget(self, envelopes: Sequence[Envelope]) -> None:
        """Drop what was found of these; they are ready, or were never begun."""
        for each in envelopes:
            self._begun.pop(each.raw, None)
            self._found.pop(each.raw, None)

    @property
    def known(self) -> int:
        """Envelopes that were begun and not forgotten."""
        return len(self._begun)

    def close(self) -> None:
        """End the threads, what waits for them undone. `verify` goes on as before."""
        self._pool.shutdown(cancel_futures=True)

    def _check_all(self, envelopes: list[Envelope]) -> None:
        for each in envelopes:
            try:
                self._check(each)
            except VerificationFailed as error:
                self._found[each.raw] = error
            except Exception:  # noqa: S112 - a defect of ours comes out where the envelope is decided about, and hits it alone
                continue
            else:
                self._found[each.raw] = None
