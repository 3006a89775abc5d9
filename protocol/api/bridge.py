"""The local API: the bridge of foreign message formats (docs/adapters/)."""

from typing import Any, ClassVar

from aghbus.protocol.adapters.model import Finding
from aghbus.protocol.api.base import Channel, ErrorResponse, RequestModel, ResponseModel
from aghbus.protocol.api.messages import SendResponse
from aghbus.protocol.api.works import Role
from aghbus.protocol.chains.chain import Format
from aghbus.protocol.errors import RequestError


class BridgeSubmitRequest(RequestModel):
    """A foreign message of the daemon's own agent: either `message` or `text`.

    message: its JSON value.
    text: exactly what the agent wrote; needed where that may be no JSON, and to notice duplicate keys.
    channel: the default channel without it.
    target: the peer, for formats that name none.
    work_id: the work that it reports on or continues, where the message does not say so.
    key: tells apart messages of equal content, for formats without ids.
    """

    message: Any = None
    text: str | None = None
    channel: Channel | None = None
    target: str | None = None
    work_id: str | None = None
    key: str | None = None


class BridgeSubmitResponse(ResponseModel):
    """What became of a foreign message.

    message: as it is sent.
    findings: warnings about it.
    sent: the envelopes, in order.
    repeated: it was submitted before; `sent` is what was sent then.
    """

    message: Any
    findings: list[Finding]
    sent: list[SendResponse]
    repeated: bool


class MessageRefusedResponse(ErrorResponse, kw_only=True):
    """Error `message_refused`: the message breaks rules of its format. Nothing was sent; quarantine keeps it.

    findings: every violation.
    """

    findings: list[Finding]


class MessageRefused(RequestError):
    """A submitted message breaks rules of its format. Nothing was sent; the message is in quarantine.

    `findings` has every violation, warnings included.
    """

    code: ClassVar[str] = "message_refused"

    def __init__(self, name: str, findings: tuple[Finding, ...]) -> None:
        errors = [finding for finding in findings if finding.severity == "error"]
        first = errors[0]
        more = f", and {len(errors) - 1} more" if len(errors) > 1 else ""
        super().__init__(
            f"the {name} message is refused: {first.path or 'the message'}: {first.message} ({first.rule}){more}",
            hint=f"docs/adapters/{name}.md lists the rules; `aghctl quarantine` shows refused messages",
        )
        self.findings = findings


class BridgeMessage(ResponseModel):
    """One foreign message for the daemon's own agent.

    seq: the position to acknowledge.
    format: of the message.
    message: its JSON value.
    findings: warnings about it.
    native: made from an envelope that carried no foreign message.
    envelope_id: of the envelope.
    kind: of the envelope.
    sender: of the envelope.
    trust: `verified` when a signature shows who sent it, else `unverified`.
    channel: of the envelope.
    work_id: its work, null without one.
    work_state: of the work now, null without one.
    work_role: of this daemon in the work, null without one.
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


class BridgeAckRequest(RequestModel):
    """The agent has every message up to a sequence.

    The stream goes on after it, inbox items are acked, and works that were opened are accepted.

    seq: the highest one that it has.
    """

    seq: int


class BridgeAckResponse(ResponseModel):
    """The position up to which messages of a format are acknowledged.

    format: of the messages.
    seq: the position.
    """

    format: Format
    seq: int


class BridgeLogResponse(ResponseModel):
    """The log of a format.

    format: of the rows.
    rows: oldest first: audit entries (sentient), MessageLog (agentos), responses (sacp).
    """

    format: Format
    rows: list[dict[str, Any]]
