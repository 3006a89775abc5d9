"""The local API of the bridge as plain data (docs/api.md, docs/adapters/): foreign messages in, foreign messages out."""

from typing import Any, Literal

from aghbus.protocol.adapters.model import Finding
from aghbus.protocol.api.models import Answer, Ask, ErrorAnswer, Role, Sent

Format = Literal["sentient", "humaninloop", "agentos", "sacp"]


class HandOverAsk(Ask):
    """A message of our own agent. Either `message`, its JSON value, or `text`, exactly what the agent wrote (needed where that
    may be no JSON at all, and to notice duplicate keys).

    `target` is the peer for formats that name none, `work_id` the work that it reports on or continues where it cannot be
    told from the message. For formats without ids `key` names the message among those with equal content: two openings, or two
    on one work.
    """

    message: Any = None
    text: str | None = None
    channel: str | None = None
    target: str | None = None
    work_id: str | None = None
    key: str | None = None


class HandedOver(Answer):
    """What became of it. `message` is the message as it travels; `sent` the envelopes, in order; `repeated`: it was handed
    over before, and `sent` tells what was sent then."""

    message: Any
    findings: list[Finding]
    sent: list[Sent]
    repeated: bool


class RefusedMessage(ErrorAnswer, kw_only=True):
    """Error `message_refused`: the message breaks rules of its format; nothing was sent, quarantine keeps it."""

    findings: list[Finding]


class HandedOut(Answer):
    """One message for our agent. `seq` is the position to acknowledge; `native`: made from an envelope that carried none.

    `work_id` is the work of the envelope, `work_state` its state as it is now, `work_role` our part in it; `sender` is the
    envelope's peer, `trust` whether a signature shows that: `verified` or `unverified`.
    """

    seq: int
    format: Format
    message: Any
    findings: list[Finding]
    native: bool
    envelope_id: str
    kind: str
    sender: str
    trust: str
    channel: str
    work_id: str | None
    work_state: str | None
    work_role: Role | None


class HandOutAckAsk(Ask):
    """Our agent has everything up to and including `seq`: the stream goes on after it, inbox items are acked, works that
    were opened are accepted."""

    seq: int


class HandOutPosition(Answer):
    """Up to where messages of a format were acknowledged."""

    format: Format
    seq: int


class FormatLog(Answer):
    """Rows of a format's own log, oldest first: audit entries (sentient), MessageLog (agentos), responses (sacp)."""

    format: Format
    rows: list[dict[str, Any]]
