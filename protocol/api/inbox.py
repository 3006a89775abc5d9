"""The local API: the agent's inbox."""

import re
from typing import Annotated, Final, Literal

from aghbus.protocol.agh.lifecycle import State
from aghbus.protocol.api.base import Delay, RequestModel, ResponseModel, seconds, text
from aghbus.protocol.api.messages import Message

InboxState = Literal["ready", "leased", "acked", "dead"]
Lane = Literal["contact", "plain", "other"]

HELD: Final = "held: "
"""How `last_error` of an opening begins that is held since a restore."""

LEASE: Final = re.compile(r"[A-Za-z0-9._-]{8,128}")
"""The token of a lease."""

MAX_INBOX_WAIT: Final = 300.0
"""Seconds: a consumer asks again after that, so that the daemon sees that it is alive."""

MAX_VISIBILITY: Final = 43_200.0
"""Seconds: half a day, the longest lease of a message."""


Visibility = Annotated[float, seconds(1, MAX_VISIBILITY)]


class InboxItem(ResponseModel):
    """A message for the agent."""

    seq: int  # of the message
    state: InboxState  # in the inbox
    attempts: int  # number of leases
    lease: str | None  # the token that acks it, null unless it is leased
    lease_until_ms: int | None  # when the lease ends, null unless it is leased
    available_ms: int  # when it is ready (again)
    # reason of the last nack, that the lease expired, why a message of ours was given up, or how the question of a chain is
    # answered; null without one
    last_error: str | None
    work_state: State | None  # of its work as it is now, null without one
    message: Message  # the message
    # of its sender as the trust rules are now: `contact`, `plain` (a contact without a key) or `other`; ours are `contact`
    lane: Lane = "other"
    # who leased it, as its token says: the id of a session of an agent host, `worker.PID` or `inbox.next`; null unless it does
    leased_by: str | None = None
    leased_ms: int | None = None  # when that was, null unless its token says it
    renewed_ms: int | None = None  # when its holder renewed it last, null unless it did since the daemon's start

    @property
    def is_held(self) -> bool:
        """Whether it is an opening that is held since a restore."""
        return self.state == "dead" and not self.attempts and (self.last_error or "").startswith(HELD)


class InboxResponse(ResponseModel):
    """The inbox."""

    items: list[InboxItem]  # oldest first
    next_since: int | None  # `since` of the next page, null when there is none
    counts: dict[str, int]  # number of messages, by state
    others: int  # number of those that are ready or leased and of peers that are no contacts


class InboxNextRequest(RequestModel):
    """Lease the oldest ready message."""

    wait: Annotated[float, seconds(0, MAX_INBOX_WAIT)] = 0.0  # seconds to wait for a message
    # seconds until the message is ready again unless it is acked
    visibility: Visibility = 300.0
    ack: bool = False  # acknowledge the message immediately
    work_id: str | None = None  # only a message of this work
    # true: also a message for which an earlier one of its sender in its work, or outside of works in its container, is leased
    # or returned
    concurrent: bool = False
    others: bool = True  # false: messages of peers that were not admitted are left, and their senders are not told


class InboxNextResponse(ResponseModel):
    """The leased message."""

    item: InboxItem | None  # null when there was none in time


class InboxPurgeRequest(RequestModel):
    """Make unread messages dead, and close works that were not accepted; exactly one of the fields."""

    sender: str | None = None  # those of this peer id; of a key id or a handle those of every handle of the key
    others: bool = False  # those of all peers that are no contacts
    dry_run: bool = False  # change nothing: the response has what would be purged


class InboxPurgeResponse(ResponseModel):
    """What was purged."""

    messages: int  # that are dead now
    works: int  # that were rejected or canceled


class InboxLeaseRequest(RequestModel):
    """Lease one ready message, or renew its lease."""

    # the caller's token; the same one renews the lease and makes the request idempotent
    lease: Annotated[str, text(f"^{LEASE.pattern}$")]
    # seconds from now until the message is ready again unless it is acked
    visibility: Visibility = 300.0
    # false: a message of a peer that was not admitted is not leased; if it opened a work, its sender is told once that it waits
    others: bool = True
    accept: bool = False  # also accept the work that the message opens, unless that was done


class InboxAckRequest(RequestModel):
    """Done with a message."""

    lease: str | None = None  # must be the current one; without it the message is acked under any lease


class InboxNackRequest(RequestModel):
    """Return a message to the queue."""

    lease: str | None = None  # must be the current one; without it the message is returned under any lease
    delay: Delay | None = None  # seconds until it is ready again; null backs off by the number of attempts
    error: str | None = None  # why, for people
