"""What an automatic receipt answers."""

import msgspec

from aghbus.protocol.agh.envelope import OPENING_KINDS, Envelope


class ReceiptTarget(msgspec.Struct, frozen=True, kw_only=True):
    """The parts of an envelope that an automatic receipt to it needs."""

    id: str
    workspace_id: str
    channel: str
    kind: str
    sender: str
    surface: str
    container: str
    work_id: str
    trace_id: str | None = None


def source_of(envelope: Envelope) -> ReceiptTarget | None:
    """The target of a receipt to an envelope; None if none may be sent (undirected, without work, a receipt or trace)."""
    if envelope.to is None or envelope.work_id is None or envelope.surface is None or envelope.container is None:
        return None
    if envelope.kind not in OPENING_KINDS:
        return None
    return ReceiptTarget(
        id=envelope.id,
        workspace_id=envelope.workspace_id,
        channel=envelope.channel,
        kind=envelope.kind,
        sender=envelope.sender,
        surface=envelope.surface,
        container=envelope.container,
        work_id=envelope.work_id,
        trace_id=envelope.trace_id,
    )
