"""The result of a node: of its work, or of a visit that ended without one."""

from dataclasses import dataclass
from typing import Any

from aghbus.daemon.chains.messages import ChainMessages
from aghbus.protocol.agh.bodies import Receipt, Trace
from aghbus.protocol.agh.decoding import decode_json
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.lifecycle import State, WorkView
from aghbus.protocol.chains.run import Result, native_response, work_value
from aghbus.protocol.formats.model import BridgedEnvelope
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.tables.chain_runs import Visit


def result_of(visit: Visit, state: State, message: str | None, value: Any = None) -> Result:
    """The result of a visit in the form of SACP."""
    return Result(
        node=visit.node,
        state=state,
        response=native_response(state, message, value),
        work=work_value(visit.work_id, state, message, value),
    )


@dataclass(frozen=True, slots=True, eq=False)
class WorkResults:
    """Reads results from the envelopes that end works or ask questions."""

    messages: ChainMessages

    def read(self, tx: Transaction, visit: Visit, work: WorkView, envelope: Envelope | None) -> Result:
        """The result of a work that has ended or asks a question; `envelope` did that.

        Raises ArtifactNotFetched when its foreign message is in the artifact store.
        """
        result = self._native(visit, work.state, None if envelope is None else envelope.body)
        if envelope is None or envelope.sender != work.target:
            return result
        return self.messages.judge(tx, BridgedEnvelope(envelope=envelope, work=work, outcome="advanced"), result)

    def _native(self, visit: Visit, state: State, body: object) -> Result:
        if isinstance(body, Trace):
            return result_of(visit, state, body.message, None if body.result is None else decode_json(body.result))
        return result_of(visit, state, _receipt_text(body) if isinstance(body, Receipt) else None)


def is_busy(work: WorkView, envelope: Envelope | None) -> bool:
    """Whether the peer refused the work because it is busy."""
    body = None if envelope is None else envelope.body
    refused = isinstance(body, Receipt) and (body.status, body.reason_code) == ("rejected", "busy")
    return refused and envelope is not None and envelope.sender == work.target


def _receipt_text(receipt: Receipt) -> str:
    """The reason in a receipt: its detail, else status and reason code."""
    return receipt.detail or " ".join(filter(None, (receipt.status, receipt.reason_code)))
