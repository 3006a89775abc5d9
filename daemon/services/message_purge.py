"""Purging messages: an operator removes the stored text of a peer, of a work, or of a time (docs/data-protection.md)."""

import asyncio
from collections.abc import Callable
from dataclasses import dataclass, field
from functools import partial
from time import monotonic
from typing import Final

from aghbus.daemon.artifacts.store import Artifacts
from aghbus.daemon.base.clock import Clock
from aghbus.daemon.base.failpoints import failpoint
from aghbus.daemon.bridge.log_files import LogFiles
from aghbus.daemon.state.identity import Identity
from aghbus.protocol.agh.identifiers import is_key_id, is_peer
from aghbus.protocol.agh.trust.policy import identity_of
from aghbus.protocol.api.messages import PurgeKept, PurgeRequest, PurgeResponse
from aghbus.protocol.base.errors import InvalidRequest
from aghbus.store import purge
from aghbus.store.audit import events as audit
from aghbus.store.engine.database import Store
from aghbus.store.purge import STEP, Found, Plan, Selection
from aghbus.store.tables import chain_runs, identities, quarantine
from aghbus.store.tables.bridge import log as bridge_log
from aghbus.store.tables.bridge.log import Doomed

NOT_REACHED: Final = (
    "backups, and stores that `aghd restore --replace` moved aside",
    "what other peers have stored",
    "messages in the broker's stream (durability = jetstream), until they expire",
    "log files, and journals of `aghctl serve` of works that it has not reported yet",
)
_SECONDS: Final = 5.0  # of one request: then the caller asks for the rest, and can show how far it is
_SHOWN: Final = 100  # ids of what is kept


@dataclass(slots=True, eq=False)
class MessagePurge:
    """Purges the messages of one daemon."""

    clock: Clock
    store: Store
    identity: Identity
    artifacts: Artifacts
    log_files: LogFiles
    _rewriting: asyncio.Task[str | None] | None = field(default=None, init=False)

    async def purge_messages(self, request: PurgeRequest) -> PurgeResponse:
        """Remove chosen messages, works, and what else is kept of their text; the last request overwrites it in the files.

        Raises InvalidRequest, Unavailable (also when artifacts cannot be reached), StoreUnavailable.
        """
        wanted, what = self._selection(request), _what(request)
        chosen = await purge.plan(self.store.reader, wanted)
        answer = _nothing()
        if not request.since:
            await self._purge_others(request, wanted, chosen, answer)
        until = monotonic() + _SECONDS
        seqs = [seq for seq in chosen.seqs if seq > request.since]
        for start in range(0, len(seqs), STEP):
            window = seqs[start : start + STEP]
            _count(answer, await self._step(request, chosen, window, answer))
            if monotonic() > until:
                answer.next_since = window[-1]
                break
        if request.dry_run:
            return answer
        removed = sum(answer.messages.values()) + answer.bridge_log + answer.quarantined + answer.chain_runs
        if removed:
            text = f"{what}: {sum(answer.messages.values())} messages, {answer.works} works"
            await self.store.write(lambda tx: audit.note_policy(tx, self.clock.millis(), "messages_purged", text))
        if answer.next_since is None:
            await self._overwrite(answer, anew=removed > 0, last=chosen.seqs[-1] if chosen.seqs else request.since)
        return answer

    async def _step(self, request: PurgeRequest, chosen: Plan, window: list[int], answer: PurgeResponse) -> Found:
        found = await purge.look(self.store.reader, chosen, window)
        rows = await bridge_log.of_envelopes(self.store.reader, found.seqs)
        if request.dry_run or not found.seqs:
            answer.bridge_log += len(rows)
            return found
        answer.bridge_log += await self._remove_log(rows)
        removed = await self.store.write(
            lambda tx: purge.remove(tx, chosen, found.seqs, self.clock.millis()),
        )
        failpoint("purge.removed")
        return removed._replace(unread=found.unread, undelivered=found.undelivered)

    async def _purge_others(
        self, request: PurgeRequest, wanted: Selection, chosen: Plan, answer: PurgeResponse
    ) -> None:
        """What is kept outside of messages. It goes first: a repetition finds it by the works, as long as they are stored."""
        reader, kept = self.store.reader, answer.kept
        own_ids = await identities.all_ids(reader)
        if chosen.work_ids:
            removed, others = await self.artifacts.remove(set(chosen.work_ids), own_ids, dry_run=request.dry_run)
            answer.artifacts, kept.artifacts, answer.kept_artifacts = removed, len(others), others[:_SHOWN]
        rows = await bridge_log.naming(reader, chosen.names) if chosen.names else []
        if wanted.before_ms:
            rows = await bridge_log.before(reader, wanted.before_ms)
        runs = chosen.work_ids, chosen.names, wanted.before_ms
        refused = chosen.names, wanted.work_id, wanted.before_ms
        answer.chain_runs, kept.chain_runs = await chain_runs.count(reader, *runs)
        kept.works, answer.kept_works = len(chosen.kept_works), chosen.kept_works[:_SHOWN]
        if request.dry_run:
            answer.bridge_log = len(rows)
            answer.quarantined = await quarantine.count(reader, *refused)
            return
        answer.bridge_log = await self._remove_log(rows)
        answer.chain_runs = await self.store.write(lambda tx: chain_runs.remove(tx, *runs))
        answer.quarantined = await self.store.write(lambda tx: quarantine.remove(tx, *refused))

    async def _remove_log(self, rows: list[Doomed]) -> int:
        removed = 0
        for start in range(0, len(rows), STEP):
            part = rows[start : start + STEP]
            await self.log_files.erase([row.record for row in part])
            removed += await self.store.write(partial(bridge_log.remove, rows=part))
        return removed

    async def _overwrite(self, answer: PurgeResponse, *, anew: bool, last: int) -> None:
        """Wait for the store to be written anew, for as long as one request may take."""
        if self._rewriting is None or anew:
            self._rewriting = asyncio.create_task(self.store.rewrite(), name="rewriting the store")
        done, _ = await asyncio.wait([self._rewriting], timeout=2 * _SECONDS)
        if not done:
            answer.next_since = last
            return
        rewriting, self._rewriting = self._rewriting, None
        answer.problem = rewriting.result()
        answer.overwritten = answer.problem is None

    def _selection(self, request: PurgeRequest) -> Selection:
        given = [request.peer is not None, request.work_id is not None, request.before_ms is not None]
        if sum(given) != 1:
            raise InvalidRequest("exactly one of peer, work_id and before_ms is required")
        if request.peer is None:
            return Selection(work_id=request.work_id, before_ms=request.before_ms or 0)
        if not is_peer(request.peer) and not is_key_id(request.peer):
            raise InvalidRequest("peer: must be a peer id, a handle or a key id")
        matches = _matcher(request.peer)
        if any(map(matches, self.identity.own_ids)):
            hint = "every message is ours: choose with work_id or before_ms"
            raise InvalidRequest("peer: is this daemon", hint=hint)
        return Selection(is_peer=matches)


def _nothing() -> PurgeResponse:
    return PurgeResponse(
        messages={},
        works=0,
        chain_runs=0,
        bridge_log=0,
        quarantined=0,
        artifacts=0,
        kept=PurgeKept(works=0, unread=0, undelivered=0, chain_runs=0, artifacts=0),
        kept_works=[],
        kept_artifacts=[],
        next_since=None,
        overwritten=False,
        problem=None,
        not_reached=[*NOT_REACHED],
    )


def _matcher(peer: str) -> Callable[[str], bool]:
    wanted = identity_of(peer)
    return lambda name: identity_of(name) == wanted


def _what(request: PurgeRequest) -> str:
    if request.peer is not None:
        return f"peer {request.peer}"
    return f"work {request.work_id}" if request.work_id is not None else f"before {request.before_ms}"


def _count(answer: PurgeResponse, found: Found) -> None:
    for kind, number in found.kinds.items():
        answer.messages[kind] = answer.messages.get(kind, 0) + number
    answer.works += found.works
    answer.kept.unread += found.unread
    answer.kept.undelivered += found.undelivered
