"""What follows a settled predecessor: a header tells the receiver not to wait for it (ADR 0009)."""

import msgspec

from aghbus.daemon.state.identity import Identity
from aghbus.protocol.agh.delivery.order import predecessor_in, settled_header
from aghbus.store.engine.commit.transaction import Transaction
from aghbus.store.tables import retry
from aghbus.store.tables.outbox import Outgoing


def with_settled_headers(tx: Transaction, rows: list[Outgoing], identity: Identity) -> list[Outgoing]:
    """`rows`, where the first unanswered message of each flow says that its predecessor is settled."""
    unanswered = {(row.workspace_id, row.message_id) for row in rows}
    return [row if row.attempts == 0 else _with_header(tx, row, unanswered, identity) for row in rows]


def _with_header(tx: Transaction, row: Outgoing, unanswered: set[tuple[str, str]], identity: Identity) -> Outgoing:
    after = predecessor_in(row.raw)
    if after is None or row.recipient is None or row.sender not in identity:
        return row
    if (row.workspace_id, after.id) in unanswered or not retry.is_settled(tx, row.workspace_id, after.id):
        return row
    signer = identity.signer_of(row.sender)
    header = settled_header(row.message_id, after.id, sender=row.sender, to=row.recipient, signer=signer)
    return msgspec.structs.replace(row, settled=header)
