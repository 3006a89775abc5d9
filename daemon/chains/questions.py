"""Questions of nodes: which nodes ask, and their place in the inbox of the daemon that runs the chain."""

import contextlib
from dataclasses import dataclass

from aghbus.daemon.state.inbox_waiters import InboxWaiters
from aghbus.protocol.base.errors import NotFound, Refused
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.tables import chain_runs as chains
from aghbus.store.tables import inbox
from aghbus.store.tables.chain_runs import Run, Visit


@dataclass(frozen=True, slots=True, eq=False)
class Questions:
    """Puts questions into the inbox, and removes those that were answered or have no effect any more."""

    waiters: InboxWaiters

    def put(self, tx: Transaction, visit: Visit, seq: int | None) -> None:
        """The envelope `seq` asks the question of a visit; None when it is no longer stored. Replaces an earlier question."""
        if seq is None or seq == visit.question_seq:
            return
        self.remove(tx, visit)
        command = f"aghctl chain resume {visit.run_id} --node {visit.node} --answer TEXT"
        inbox.notify(tx, seq, f"a chain waits for the answer: {command}")
        tx.after_commit(self.waiters.wake_all)

    def remove(self, tx: Transaction, visit: Visit) -> None:
        """The question of a visit, if any, leaves the inbox."""
        if visit.question_seq is not None:
            with contextlib.suppress(NotFound):  # retention removed it
                inbox.ack(tx, visit.question_seq)


def asking(tx: Transaction, run: Run) -> list[Visit]:
    """The visits that wait for an answer, in order."""
    return [visit for visit in chains.open_visits(tx, run.run_id) if visit.work_state == "needs_input"]


def asking_node(tx: Transaction, run: Run, node: str | None) -> Visit:
    """The visit of `node` that waits for an answer (None: the only one of the run). Raises Refused."""
    asked = asking(tx, run)
    found = [visit for visit in asked if node in (None, visit.node)]
    if len(found) == 1:
        return found[0]
    if found:
        names = ", ".join(visit.node for visit in found)
        raise Refused(f"several nodes of run {run.run_id} ask: {names}", code="conflict", hint="name one of them: node")
    where = f"node {node} of run {run.run_id}" if asked else f"run {run.run_id} is {run.state} and"
    raise Refused(f"{where} has no question", code="conflict", hint="`aghctl chain show` shows its state")
