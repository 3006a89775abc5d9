"""The order of what we send: the last unanswered envelope of each flow."""

import sqlite3
from functools import partial
from typing import Final

from aghbus.protocol.agh.delivery.order import Predecessor
from aghbus.store.engine.unit_of_work import UnitOfWork, put_back

_SWEEP: Final = 4_096  # ours, flows: from there on expired ones are dropped
_OUTSTANDING: Final = """
SELECT e.workspace_id, e.channel, e.sender, e.recipient, e.container, o.seq, e.msg_id, o.expires_at
FROM outbox AS o JOIN envelopes AS e ON e.seq = o.seq
WHERE e.recipient IS NOT NULL AND o.seq IN (
    SELECT seq FROM outbox WHERE state = 'queued' AND state NOT IN ('published', 'receipted')
    UNION SELECT seq FROM outbox WHERE next_ms IS NOT NULL)
ORDER BY o.seq
"""

FlowKey = tuple[str, str, str, str, str | None]
"""What one of our peer ids sends to one recipient in one container: workspace, channel, sender, recipient, container."""


_Last = tuple[int, str, int]
"""The last unanswered envelope of a flow: its sequence, its id, and from when on none of the flow is fresh."""


class OpenFlows:
    """The last unanswered envelope of each flow of ours (docs/adr/0009): the next one names it as predecessor.

    A given-up envelope stays the last of its flow while an earlier one is unanswered, until both have expired. Example: 1 is
    unanswered and 2 was given up. Then 3 names 2, and is published again when 1 is settled.
    """

    __slots__ = ("_flows", "_last", "_sweep_at")

    def __init__(self) -> None:
        self._last: dict[FlowKey, _Last] = {}
        self._flows: dict[int, FlowKey] = {}  # by the sequence of the last envelope
        self._sweep_at = _SWEEP

    def __len__(self) -> int:
        return len(self._last)

    def predecessor(self, flow: FlowKey) -> Predecessor | None:
        """The last unanswered envelope of `flow`; None when everything is answered."""
        last = self._last.get(flow)
        return None if last is None else Predecessor(last[1], last[2])

    def is_last(self, seq: int) -> bool:
        """Whether our envelope `seq` is what the next one of its flow would name."""
        return seq in self._flows

    def put(self, tx: UnitOfWork, flow: FlowKey, seq: int, message_id: str, fresh_until: int, now: int) -> None:
        """A new envelope of `flow` is queued at Unix second `now`."""
        if len(self._last) >= self._sweep_at:
            self._sweep(now)
        before = self._last.get(flow)
        tx.undo.extend((partial(put_back, self._last, flow, before), partial(self._flows.pop, seq, None)))
        if before is not None:
            before_seq, _, before_until = before
            tx.undo.append(partial(put_back, self._flows, before_seq, flow))
            del self._flows[before_seq]
            if before_until > fresh_until:
                fresh_until = before_until
        self._last[flow] = (seq, message_id, fresh_until)
        self._flows[seq] = flow

    def settle(self, tx: UnitOfWork, seq: int) -> None:
        """Our envelope `seq` was answered, and everything before it in its flow was too, or needs no answer."""
        flow = self._flows.get(seq)
        if flow is not None:
            steps = partial(put_back, self._flows, seq, flow), partial(put_back, self._last, flow, self._last.get(flow))
            tx.undo.extend(steps)
            del self._flows[seq], self._last[flow]

    def load(self, db: sqlite3.Connection) -> None:
        """Reads the unanswered envelopes of a store that is being opened."""
        for workspace_id, channel, sender, to, container, seq, message_id, fresh_until in db.execute(_OUTSTANDING):
            flow = (workspace_id, channel, sender, to, container)
            before = self._last.get(flow)
            self._last[flow] = (seq, message_id, fresh_until if before is None else max(before[2], fresh_until))
        self._flows = {last[0]: flow for flow, last in self._last.items()}

    def _sweep(self, now: int) -> None:
        for flow, last in list(self._last.items()):
            if last[2] <= now:
                del self._last[flow], self._flows[last[0]]
        self._sweep_at = max(_SWEEP, 2 * len(self._last))
