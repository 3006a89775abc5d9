"""The local API: the bridge of foreign message formats (docs/adapters/)."""

from typing import Any, ClassVar

from aghbus.protocol.api.base import Channel, ErrorResponse, RequestModel, ResponseModel
from aghbus.protocol.api.messages import SendResponse
from aghbus.protocol.api.works import Role
from aghbus.protocol.base.errors import RequestError
from aghbus.protocol.base.formats import Format
from aghbus.protocol.formats.model import Finding


class BridgeSubmitRequest(RequestModel):
    """A foreign message of the daemon's own agent: either `message` or `text`."""

    message: Any = None  # its JSON value; for sentient also an array of messages, which are sent together
    # exactly what the agent wrote; needed where that may be no JSON, and to notice duplicate keys
    text: str | None = None
    channel: Channel | None = None  # the default channel without it
    target: str | None = None  # the peer, for formats that name none
    work_id: str | None = None  # the work that it reports on or continues, where the message does not say so
    key: str | None = None  # distinguishes messages of equal content, for formats without ids


class BridgeSubmitResponse(ResponseModel):
    """What became of a foreign message."""

    message: Any  # as it is sent; an array when one was submitted
    findings: list[Finding]  # warnings about it
    sent: list[SendResponse]  # the envelopes, in order
    repeated: bool  # it was submitted before; `sent` is the earlier result


class MessageRefusedResponse(ErrorResponse, kw_only=True):
    """Error `message_refused`: the message breaks rules of its format. Nothing was sent; quarantine keeps it."""

    findings: list[Finding]  # every violation


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
    """One foreign message for the daemon's own agent."""

    seq: int  # the position to acknowledge
    format: Format  # of the message
    message: Any  # its JSON value
    findings: list[Finding]  # warnings about it
    native: bool  # made from an envelope that carried no foreign message
    envelope_id: str  # of the envelope
    kind: str  # of the envelope
    sender: str  # of the envelope
    trust: str  # `verified` when a signature shows who sent it, else `unverified`
    channel: str  # of the envelope
    work_id: str | None  # its work, null without one
    work_state: str | None  # of the work now, null without one
    work_role: Role | None  # of this daemon in the work, null without one


class BridgeAckRequest(RequestModel):
    """The agent has every message up to a sequence.

    The stream continues after it, inbox items are acked, and works that were opened are accepted.
    """

    seq: int  # the highest one that it has


class BridgeAckResponse(ResponseModel):
    """The position up to which messages of a format are acknowledged."""

    format: Format  # of the messages
    seq: int  # the position


class BridgeLogResponse(ResponseModel):
    """The log of a format."""

    format: Format  # of the rows
    rows: list[dict[str, Any]]  # oldest first: audit entries (sentient), MessageLog (agentos), responses (sacp)
