"""The local API: the agent's inbox."""

from typing import Annotated, Final, Literal

from msgspec import Meta

from aghbus.protocol.api.base import Delay, RequestModel, ResponseModel
from aghbus.protocol.api.messages import Message

InboxState = Literal["ready", "leased", "acked", "dead"]

MAX_INBOX_WAIT: Final = 300.0
"""Seconds, ours: a consumer asks again after that, so that the daemon sees that it is alive."""

MAX_VISIBILITY: Final = 43_200.0
"""Seconds, ours: half a day, the longest lease of a message."""


class InboxItem(ResponseModel):
    """A message for the agent.

    seq: of the message.
    state: in the inbox.
    attempts: number of leases.
    lease: the token that acks it, null unless it is leased.
    lease_until_ms: when the lease ends, null unless it is leased.
    available_ms: when it is ready (again).
    last_error: as the last nack said, null without one.
    message: the message.
    """

    seq: int
    state: InboxState
    attempts: int
    lease: str | None
    lease_until_ms: int | None
    available_ms: int
    last_error: str | None
    message: Message


class InboxResponse(ResponseModel):
    """The inbox.

    items: oldest first.
    counts: number of messages, by state.
    """

    items: list[InboxItem]
    counts: dict[str, int]


class InboxNextRequest(RequestModel):
    """Lease the oldest ready message.

    wait: seconds to wait for a message.
    visibility: seconds until the message is ready again unless it is acked.
    ack: acknowledge the message at once.
    work_id: only a message of this work.
    """

    wait: Annotated[float, Meta(ge=0, le=MAX_INBOX_WAIT)] = 0.0
    visibility: Annotated[float, Meta(ge=1, le=MAX_VISIBILITY)] = 300.0
    ack: bool = False
    work_id: str | None = None


class InboxNextResponse(ResponseModel):
    """The leased message.

    item: null when there was none in time.
    """

    item: InboxItem | None


class InboxAckRequest(RequestModel):
    """Done with a message.

    lease: must be the current one; without it the message is acked under any lease.
    """

    lease: str | None = None


class InboxNackRequest(RequestModel):
    """Return a message to the queue.

    lease: must be the current one; without it the message is returned under any lease.
    delay: seconds until it is ready again; null backs off by the number of attempts.
    error: why, for people.
    """

    lease: str | None = None
    delay: Delay | None = None
    error: str | None = None
