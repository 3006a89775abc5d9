"""Sends what the daemon makes of the works of a sentient chain."""

import logging
from collections.abc import Sequence
from dataclasses import dataclass
from functools import partial
from typing import Final

from aghbus.daemon.base.logs import event
from aghbus.daemon.base.metrics import Counters
from aghbus.daemon.send.sender import Batch
from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.protocol.agh.send import Draft
from aghbus.protocol.api.messages import SendResponse
from aghbus.protocol.base.errors import InvalidRequest, Refused
from aghbus.store.engine.commit.transaction import Transaction

_log: Final = logging.getLogger("aghbus.bridge")


@dataclass(frozen=True, slots=True, eq=False)
class Forwarder:
    """Counts and logs what cannot be sent."""

    counters: Counters

    def send_first(
        self, tx: Transaction, batch: Batch, cause: WorkView, drafts: Sequence[Draft]
    ) -> SendResponse | None:
        """Send the first of `drafts` that fits an envelope; if none does, count and log it, and return None. `cause` is the
        work of which they tell."""
        failure: InvalidRequest | Refused | None = None
        for draft in drafts:
            try:
                return batch.send(draft, allow_secrets=True, replace_secrets=True)
            except (InvalidRequest, Refused) as error:
                failure = failure or error
        if failure is not None:
            tx.after_commit(partial(self._not_forwarded, cause.work_id, failure))
        return None

    def _not_forwarded(self, work_id: str, cause: Exception) -> None:
        self.counters.add("bridge.terminal_not_forwarded")
        event(_log, logging.ERROR, "cannot forward the state of a work", work=work_id, cause=cause)
