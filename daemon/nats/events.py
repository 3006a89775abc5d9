"""The values between the link and its users: messages, events and errors.

LinkError
 ├─ LinkDown          there is no connection now; the caller keeps its message
 ├─ LinkTimeout       the broker, or a responder, did not answer in time
 ├─ NoResponders      no subscriber on the subject of a request
 ├─ PayloadTooLarge   the caller's fault: more than the server takes
 └─ BadPublish        the caller's fault: a subject or header that NATS does not allow
ConnectFailed         one attempt to connect failed; the link keeps it as `last_error` and keeps trying
JetStreamError        JetStream refused a request; its error code and its description
 └─ NoJetStream       there is no JetStream on this server, or not for our account
"""

from collections.abc import Mapping
from typing import ClassVar, Literal, Protocol

import msgspec


class Settlement(Protocol):
    """Settles a message that the broker keeps until it is acknowledged; both methods return immediately."""

    def ack(self) -> None:
        """It is committed, or needs no commit: never deliver it again."""

    def nak(self, delay: float) -> None:
        """It could not be stored now: deliver it again after `delay` seconds."""


class InboundMessage(msgspec.Struct, eq=False):
    """One message from NATS: subject, payload bytes, reply subject (empty if none), headers (None if none).

    `settlement` is there when the broker waits for an acknowledgement (JetStream), None in core NATS.
    """

    subject: str
    data: bytes
    reply: str
    headers: Mapping[str, str] | None
    settlement: Settlement | None = None


class LinkError(Exception):
    """Any failure that a user of the link has to handle."""


class LinkDown(LinkError):
    """There is no connection, or it was lost before the answer."""


class LinkTimeout(LinkError):
    """No answer in time; the request may have been performed."""


class NoResponders(LinkError):
    """The broker reports that no client is subscribed to the request's subject."""


class PayloadTooLarge(LinkError):
    """Refused before sending, because the server would close the connection: `size` with headers, `limit`, both in bytes."""

    def __init__(self, size: int, limit: int) -> None:
        super().__init__(f"payload and headers are {size} bytes, the server takes {limit}")
        self.size = size
        self.limit = limit


class BadPublish(LinkError):
    """A subject with white space or empty, or a header name outside RFC 7230's tokens."""


class JetStreamError(Exception):
    """JetStream refused a request: `code` is its own error code, 0 if it gave none; the text is its description."""

    def __init__(self, code: int, description: str) -> None:
        super().__init__(description)
        self.code = code


class NoJetStream(JetStreamError):
    """No JetStream or no stream answers, also because it has no leader, or JetStream is not enabled for our account."""

    def __init__(self, description: str = "no JetStream answers") -> None:
        super().__init__(0, description)


ProblemCode = Literal["resolve", "unreachable", "auth", "tls", "timeout", "protocol", "lost"]


class LinkProblem(msgspec.Struct, frozen=True):
    """Why there is no connection: code, cause and hint for the operator, Unix time. Holds no secret, and only printable text."""

    code: ProblemCode
    cause: str
    hint: str
    at: float

    def __str__(self) -> str:
        return f"{self.cause} ({self.hint})" if self.hint else self.cause


class ConnectFailed(Exception):
    """One attempt to connect has failed."""

    def __init__(self, problem: LinkProblem) -> None:
        super().__init__(str(problem))
        self.problem = problem


class ServerInfo(msgspec.Struct, frozen=True):
    """The connected server by its INFO line; `url` without userinfo, `max_payload` in bytes with headers."""

    name: str
    version: str
    url: str
    jetstream: bool
    tls: bool
    max_payload: int


class PermissionDenied(msgspec.Struct, frozen=True):
    """The server refused a publish or a subscription; the connection stays up."""

    sentence: ClassVar[str] = "the NATS server denied a permission"
    detail: str


class CallbackFailed(msgspec.Struct, frozen=True):
    """A subscriber's callback raised: a bug; the message counts as delivered."""

    sentence: ClassVar[str] = "a message could not be handled"
    subject: str
    error: BaseException


class ServerComplaint(msgspec.Struct, frozen=True):
    """Any other error from the server or the client library."""

    sentence: ClassVar[str] = "the NATS server reported an error"
    detail: str


LinkEvent = PermissionDenied | CallbackFailed | ServerComplaint
