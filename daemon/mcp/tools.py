"""The tools that the daemon offers to a model: at most eight, because each costs every session its description."""

import asyncio
from collections.abc import AsyncIterator, Awaitable, Callable
from dataclasses import dataclass
from typing import Any, Final, TypeVar

import msgspec
from msgspec import UNSET, UnsetType

from aghbus.daemon.discovery.whois import WhoisQuestions
from aghbus.daemon.mcp import message_rendering, rendering
from aghbus.daemon.mcp import models as t
from aghbus.daemon.mcp.call import ToolCall
from aghbus.daemon.mcp.deliveries import Deliveries
from aghbus.daemon.mcp.fence import line, sentence
from aghbus.daemon.mcp.hints import for_model
from aghbus.daemon.mcp.offer import Tool
from aghbus.daemon.mcp.rpc import Object
from aghbus.daemon.mcp.work_waiter import WorkWaiter
from aghbus.daemon.services.inbox import InboxService
from aghbus.daemon.services.messages import MessageService
from aghbus.daemon.services.peers import PeerService
from aghbus.daemon.services.session_leases import FIRST_SECONDS, SessionLeases
from aghbus.daemon.services.works import WorkService
from aghbus.host.tracing import carrier_in
from aghbus.protocol.api.inbox import InboxAckRequest, InboxItem, InboxLeaseRequest, InboxNextRequest
from aghbus.protocol.api.messages import Message, SendRequest, SendResponse
from aghbus.protocol.api.peers import WhoisRequest
from aghbus.protocol.api.queries import InboxQuery, MessagesQuery, PeersQuery, WorkQuery, WorksQuery
from aghbus.protocol.api.works import WorkActionRequest, WorkOpenRequest
from aghbus.protocol.base.errors import InvalidRequest, NotFound, Refused, RequestError

_A = TypeVar("_A", bound=t.Arguments)

LEASE_SECONDS: Final = 600
"""How long a fetched message stays with a client that has no relay, which would report its session."""
_LISTED_WORKS: Final = 20


@dataclass(frozen=True, slots=True, eq=False)
class BusTools:
    """The tools over the operations of the local API."""

    questions: WhoisQuestions
    peers: PeerService
    messages: MessageService
    works: WorkService
    inbox: InboxService
    leases: SessionLeases
    waiter: WorkWaiter
    deliveries: Deliveries

    def all(self) -> dict[str, Tool]:
        """Every tool by its name."""
        tools = (
            _tool("whois", self._whois, "Ask the agents on the bus who they are, live.", t.PeersOutput, reads=True),
            _tool("peers", self._peers, "List agents seen lately, without asking.", t.PeersOutput, reads=True),
            _tool(
                "open_work",
                self._open,
                "Hand work to another agent: to one that has a capability, or to a peer. It survives restarts.",
                t.WorksOutput,
            ),
            _tool(
                "work",
                self._work,
                "Show works and their state; with wait, once it ended, asks, or got an answer.",
                t.WorksOutput,
                reads=True,
            ),
            _tool(
                "step",
                self._step,
                "Report on a work that another agent gave you: accept it first, then update, need-input, complete or fail;"
                " reject or cancel ends it. You may cancel works that you opened.",
                t.SentOutput,
            ),
            _tool("say", self._say, "Send a message, or answer a question inside a work.", t.SentOutput),
            _tool(
                "inbox",
                self._inbox,
                "Fetch messages for you. Ack them when they are handled.",
                t.InboxOutput,
                local=True,
            ),
            _tool(
                "ack",
                self._ack,
                "Acknowledge fetched messages, so that they do not come again.",
                t.AckOutput,
                local=True,
            ),
        )
        return {each.name: each for each in tools}

    @property
    def _now_ms(self) -> int:
        return self.inbox.clock.millis()

    async def _whois(self, _call: ToolCall, ask: t.WhoisArguments) -> Object:
        found = await self.questions.whois(WhoisRequest(query=ask.query, to=ask.to or None))
        return rendering.result_of(rendering.peers(found.peers, self._now_ms))

    async def _peers(self, _call: ToolCall, ask: t.PeersArguments) -> Object:
        found = await self.peers.list_peers(PeersQuery(capability=ask.capability or None))
        return rendering.result_of(rendering.peers(found.peers, self._now_ms))

    async def _open(self, call: ToolCall, ask: t.OpenArguments) -> Object:
        delivered: str | UnsetType = UNSET
        work_id = call.state
        if not work_id:
            if not ask.to and not ask.capability:
                raise InvalidRequest("to: is required, or capability", hint="`peers` lists who is there")
            request = WorkOpenRequest(
                to=ask.to or None,
                to_capability=None if ask.to else ask.capability,
                intent=ask.capability or "request",
                text=ask.task,
                ext=_trace(call),
            )
            opened = await self.works.open_work(request)
            work_id = opened.work_id
            if call.client.tasks:
                return {"resultType": "task", **await self.waiter.task(work_id)}
            delivered = await self.deliveries.after(opened, ask.wait if ask.until == "delivered" else 0)
        output = await self._waited(call, work_id, ask.wait if ask.until == "done" else 0)
        output.delivery = delivered
        return rendering.result_of(output)

    async def _work(self, call: ToolCall, ask: t.WorkArguments) -> Object:
        if ask.work_id is None:
            if ask.wait:
                raise InvalidRequest("wait: needs a work_id", hint="without both, `work` lists the works")
            query = WorksQuery(limit=_LISTED_WORKS, before=ask.before, text=ask.text)
            return rendering.result_of(rendering.works(await self.works.list_works(query), self._now_ms))
        if ask.until == "delivered":
            return rendering.result_of(await self._delivered(call, ask.work_id, ask.wait))
        return rendering.result_of(await self._waited(call, ask.work_id, ask.wait, ask.before))

    async def _waited(self, call: ToolCall, work_id: str, seconds: float, before: int | None = None) -> t.WorksOutput:
        note = await self.waiter.wait(call, work_id, seconds) if seconds else None
        found = await self.works.get_work(work_id, WorkQuery(before=before))
        return rendering.work(found, self._now_ms, note, latest=before is None)

    async def _delivered(self, call: ToolCall, work_id: str, seconds: float) -> t.WorksOutput:
        """The work once the other side has the last message of ours in it."""
        found = await self.works.find(work_id, WorkQuery())
        ours = {"initiator": found.work.initiator, "target": found.work.target}.get(found.work.role)
        last = next((step.id for step in reversed(found.history) if step.actor == ours), None)
        delivered = UNSET if last is None else await self.deliveries.of(last, seconds)
        output = await self._waited(call, work_id, 0)
        output.delivery = delivered
        return output

    async def _step(self, call: ToolCall, ask: t.StepArguments) -> Object:
        request = WorkActionRequest(message=ask.message, result=ask.result, ext=_trace(call))
        return await self._sent(await self.works.act_on_work(ask.work_id, ask.step, request), 0)

    async def _say(self, call: ToolCall, ask: t.SayArguments) -> Object:
        if ask.work_id is not None and ask.to is None and ask.thread_id is None:
            answer = WorkActionRequest(message=ask.text, ext=_trace(call))
            return await self._sent(await self.works.act_on_work(ask.work_id, "say", answer), ask.wait)
        if ask.to is None and ask.thread_id is None:
            raise InvalidRequest("to: is required, or work_id", hint="`peers` lists who is there")
        body: dict[str, Any] = {"text": ask.text}
        request = SendRequest(
            kind="say", body=body, to=ask.to, work_id=ask.work_id, thread_id=ask.thread_id, ext=_trace(call)
        )
        return await self._sent(await self.messages.send(request), ask.wait)

    async def _sent(self, found: SendResponse, seconds: float) -> Object:
        delivery, note = await self.deliveries.after(found, seconds), await self.deliveries.absent(found)
        return rendering.result_of(message_rendering.sent(found, delivery, note))

    async def _inbox(self, call: ToolCall, ask: t.InboxArguments) -> Object:
        """What is leased goes back when the client disconnects meanwhile, or the daemon drains."""
        if ask.seq is not None:
            return await self._stored(ask.seq, ask.start)
        ask.others |= call.client.wake == "all"
        if ask.text is not None:
            return await self._search(ask, ask.text)
        leased: list[InboxItem] = []
        try:
            messages = await self._fetch(ask, leased, call.client.session)
            left = await self.inbox.list_items(InboxQuery(limit=1))
        except BaseException:
            for item in leased:
                self.inbox.give_back(item.seq, str(item.lease))
            raise
        ready, others = left.counts.get("ready", 0), 0 if ask.others else left.others
        return rendering.result_of(
            t.InboxOutput(
                messages=messages,
                now=rendering.stamp(self._now_ms),
                waiting=max(0, ready - others),
                others=others,
                note=UNSET if messages else self._held_by_others(call.client.session),
            )
        )

    def _held_by_others(self, session: str) -> str | UnsetType:
        """Who has messages that this session does not get, and since when; nothing when nobody has."""
        held = [
            f"{each.messages} held by "
            + (f"session {each.session} since {rendering.stamp(each.since_ms)}" if each.session else "another consumer")
            for each in self.leases.of_others(session)
        ]
        return f"{', '.join(held)}: they come here unless they are acked there." if held else UNSET

    async def _stored(self, seq: int, start: int) -> Object:
        """One message from a character on, also one that another consumer has leased."""
        found = (await self.messages.list_messages(MessagesQuery(since=seq - 1, limit=1))).messages
        if not found or found[0].seq != seq:
            raise NotFound(f"seq: no message {seq} is stored here")
        admitted = self._is_admitted(found[0])
        return rendering.result_of(message_rendering.piece(found[0], start, self._now_ms, admitted=admitted))

    async def _search(self, ask: t.InboxArguments, text: str) -> Object:
        query = MessagesQuery(text=text, before=ask.before, work_id=ask.work_id, limit=ask.limit)
        page = await self.messages.list_messages(query)
        found = message_rendering.hits(page, text, self._now_ms, self._is_admitted, others=ask.others)
        return rendering.result_of(found)

    def _is_admitted(self, message: Message) -> bool:
        return message.direction == "out" or not self.inbox.is_other(message.sender)

    async def _fetch(self, ask: t.InboxArguments, leased: list[InboxItem], session: str) -> list[t.InboxMessage]:
        """Lease messages into `leased` while one more fits into the answer."""
        messages: list[t.InboxMessage] = []
        room = rendering.MAX_ANSWER
        async for item in self._leased(ask, session):
            leased.append(item)
            messages.append(message_rendering.message(item, self._now_ms))
            room -= len(msgspec.json.encode(messages[-1]))
            if len(messages) == ask.limit or room <= rendering.MAX_ITEM:
                break
        return messages

    async def _leased(self, ask: t.InboxArguments, session: str) -> AsyncIterator[InboxItem]:
        """The messages asked for, oldest first, each leased as it is taken."""
        lease = self.leases.new_token(session) if session else self.inbox.new_lease()
        visibility = FIRST_SECONDS if session else LEASE_SECONDS
        if ask.others or ask.work_id is not None:
            request = InboxNextRequest(visibility=visibility, work_id=ask.work_id)
            while (item := (await self.inbox.next_under(lease, request)).item) is not None:
                yield item
            return
        form = InboxLeaseRequest(lease=lease, visibility=visibility)
        since: int | None = 0
        while since is not None:
            page = await self.inbox.list_items(InboxQuery(states=frozenset({"ready"}), contacts=True, since=since))
            for each in page.items:
                try:
                    item = await self.inbox.lease_in_order(each.seq, form)
                except (
                    NotFound,
                    Refused,
                ):  # another session has it, it is not due yet, or an earlier one is not settled
                    continue
                except asyncio.CancelledError:
                    self.inbox.give_back(each.seq, lease)
                    raise
                yield item
            since = page.next_since

    async def _ack(self, _call: ToolCall, ask: t.AckArguments) -> Object:
        outcomes = await asyncio.gather(*(self._ack_one(each) for each in ask.messages))
        refused = [outcome for outcome in outcomes if isinstance(outcome, t.NotAcked)]
        acked = [outcome for outcome in outcomes if isinstance(outcome, int)]
        return rendering.result_of(t.AckOutput(acked=acked, refused=refused))

    async def _ack_one(self, leased: t.Leased) -> int | t.NotAcked:
        try:
            return (await self.inbox.ack(leased.seq, InboxAckRequest(lease=leased.lease))).seq
        except RequestError as error:
            return t.NotAcked(seq=leased.seq, reason=line(f"{error.error_code}: {sentence(error.message)}"))


def _trace(call: ToolCall) -> Object | None:
    """The trace that the call belongs to: it travels in `_meta` (SEP-414) and in the envelope's `ext`."""
    return dict(carrier_in(call.request.meta)) or None


def _tool(
    tool: str,
    perform: Callable[[ToolCall, _A], Awaitable[Object]],
    description: str,
    output: type[t.ToolResult],
    *,
    reads: bool = False,
    local: bool = False,
) -> Tool:
    """`reads`: it changes nothing; `local`: it changes only what this daemon keeps."""
    kind: type[_A] = perform.__annotations__["ask"]

    async def convert(call: ToolCall, arguments: Object) -> Object:
        try:
            ask = msgspec.convert(arguments, kind)
        except msgspec.ValidationError as error:
            raise InvalidRequest(f"arguments: {error}", hint="see the tool's input schema") from None
        try:
            return await perform(call, ask)
        except RequestError as error:
            error.message, error.hint = sentence(error.message), for_model(sentence(error.hint))
            raise

    definition: Object = {
        "name": tool,
        "description": description,
        "inputSchema": t.schema_of(kind),
        "outputSchema": t.schema_of(output),
        "annotations": {"readOnlyHint": True}
        if reads
        else {"destructiveHint": False, **({"openWorldHint": False} if local else {})},
        "_meta": {"anthropic/alwaysLoad": True},
    }
    return Tool(tool, definition, convert)
