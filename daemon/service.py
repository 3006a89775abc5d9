"""What the local API can ask of the daemon: the seam between HTTP and the node.

Every method takes and returns the plain data of `aghbus.protocol.control` and raises RequestError (`InvalidRequest`,
`NotFound`, `Refused`, `Unavailable`) for what cannot be done.
"""

from collections.abc import AsyncIterator
from typing import Protocol

from aghbus.protocol import control


class EventFilter(control.Ask):
    """Which events of the stream; empty means all. Several values of one filter are alternatives, filters combine."""

    kinds: frozenset[str] = frozenset()
    work_id: str | None = None
    thread_id: str | None = None
    direct_id: str | None = None
    peer: str | None = None
    channel: str | None = None
    directions: frozenset[str] = frozenset()
    inbox: bool = False  # only what was put into our inbox and is not acked yet


class MessageQuery(control.Ask):
    """One page of messages, in order of the local sequence, after `since`; `last` takes the newest `limit` instead."""

    since: int = 0
    limit: int = 100
    last: bool = False
    kinds: frozenset[str] = frozenset()
    work_id: str | None = None
    thread_id: str | None = None
    direct_id: str | None = None
    peer: str | None = None
    channel: str | None = None
    directions: frozenset[str] = frozenset()


class Service(Protocol):
    """The daemon as its API sees it."""

    async def status(self) -> control.Status: ...
    async def readiness(self) -> control.Readiness: ...
    async def peers(self, *, capability: str | None, channel: str | None, include_expired: bool) -> control.Peers: ...
    async def whois(self, ask: control.WhoisAsk) -> control.WhoisAnswer: ...
    async def send(self, ask: control.SendAsk) -> control.Sent: ...
    async def work_open(self, ask: control.WorkOpenAsk) -> control.Sent: ...
    async def work_verb(self, work_id: str, verb: control.WorkVerb, ask: control.WorkVerbAsk) -> control.Sent: ...
    async def works(
        self, *, states: frozenset[str], role: str | None, peer: str | None, channel: str | None, limit: int
    ) -> control.Works: ...
    async def work(self, work_id: str, channel: str | None) -> control.WorkDetail: ...
    async def messages(self, query: MessageQuery) -> control.Messages: ...
    async def message(self, message_id: str) -> control.Message: ...
    async def threads(self, *, channel: str | None, limit: int) -> control.Threads: ...
    async def directs(self, *, channel: str | None, limit: int) -> control.Directs: ...
    async def inbox(self, *, states: frozenset[str], limit: int) -> control.InboxList: ...
    async def inbox_next(self, ask: control.InboxNextAsk) -> control.InboxNext: ...
    async def inbox_ack(self, seq: int, ask: control.InboxAckAsk) -> control.InboxItem: ...
    async def inbox_nack(self, seq: int, ask: control.InboxNackAsk) -> control.InboxItem: ...
    async def inbox_requeue(self, seq: int) -> control.InboxItem: ...
    async def capabilities(self) -> control.Capabilities: ...
    async def quarantine(self, *, limit: int) -> control.QuarantineList: ...
    def events(self, since: int | None, wanted: EventFilter) -> AsyncIterator[control.Event]:
        """Events after `since` (None: from now on), for ever; a `gap` event first where retention removed some of them.

        Ends when the daemon drains. Closing the iterator releases everything it holds.
        """
        ...
