"""The model of delivery with the real parts of daemons: their stores, publishers and inboxes, on a clock and wires of the test.

Nothing waits: when a loop of this kind has nothing to do, its time goes on. So minutes of retries, leases and expiries take
milliseconds, and a run can be repeated.
"""

import asyncio
import contextlib
import re
import shutil
import tempfile
from collections.abc import Coroutine, Mapping, Sequence
from itertools import count
from pathlib import Path
from typing import Any, Final, NamedTuple, TypeVar

from aghbus.daemon.config.settings import RetrySettings, Settings
from aghbus.daemon.nats.carrier import Carried
from aghbus.daemon.nats.events import Settlement
from aghbus.daemon.nats.link import InboundMessage
from aghbus.daemon.wiring import Replacements
from aghbus.protocol.agh.delivery.order import AFTER_SETTLED
from aghbus.protocol.agh.envelope import Envelope, parse
from aghbus.protocol.agh.identifiers import subject_for
from aghbus.protocol.agh.lifecycle import TERMINAL_STATES, WorkView
from aghbus.protocol.agh.send import Draft
from aghbus.protocol.api.inbox import InboxAckRequest, InboxItem, InboxNextRequest
from aghbus.protocol.base.errors import Refused
from aghbus.store.engine.database import Store
from aghbus.store.engine.memory.trust import Rule
from aghbus.store.tables.outbox import Outgoing
from aghbus.store.tables.works import lifecycle
from tests.support.delivery_net import NAMES
from tests.support.peers import CHANNEL, THREAD, WORKSPACE, Agent, Bus, Peer
from tests.support.publishing import Up
from tests.support.virtual_time import START, Loop, LoopClock
from tests.support.wiring import daemon_context, daemon_parts

T = TypeVar("T")
DAY: Final = 86_400  # seconds
LEASE: Final = 5.0  # seconds
GREETS: Final = 30  # seconds between two greets of the foreign peer
REDELIVERED: Final = 30  # seconds after which a stream delivers again what was not settled
REST: Final = 240  # seconds in which everything comes to rest once nothing fails: several of the longest pauses


class Flying(NamedTuple):
    """A message on the wire; `copy` is its sequence in the stream, 0 without one."""

    message: InboundMessage
    copy: int = 0


class _Settled(Settlement):
    """Settles a copy in the stream of `name`."""

    def __init__(self, net: "DaemonNet", name: str, flying: Flying) -> None:
        self._net, self._name, self._flying = net, name, flying

    def ack(self) -> None:
        self._net.stored[self._name].pop(self._flying.copy, None)

    def nak(self, delay: float) -> None:
        self._net.loop.call_later(delay, self._net.redeliver_one, self._name, self._flying.copy)


class _Wires(Up):
    """The link of a daemon to the wires, until it is `cut`."""

    def __init__(self, daemon: "Daemon") -> None:
        super().__init__()
        self.is_cut = False
        self._daemon = daemon

    async def publish(
        self, subject: str, data: bytes, headers: Mapping[str, str] | None = None, reply: str = ""
    ) -> None:
        self.publish_nowait(subject, data, headers, reply)

    def publish_nowait(
        self,
        subject: str,
        data: bytes,
        headers: Mapping[str, str] | None = None,
        reply: str = "",
        *,
        flush: bool = True,
    ) -> bool:
        if not self.is_cut:
            self._daemon.net.post(self._daemon.name, InboundMessage(subject, data, reply, dict(headers or {})))
        return True

    def publish_all_nowait(self, messages: Sequence[tuple[str, bytes]]) -> bool:
        return all(self.publish_nowait(subject, data) for subject, data in messages)

    async def flush(self, timeout: float) -> None:
        await asyncio.sleep(0.001)

    def take(self, message: InboundMessage) -> None:
        """Give a message to the subscription of its subject."""
        for one in self.subscriptions:
            if message.subject == one.subject or message.subject.startswith(one.subject.rstrip("*")):
                one.callback(message)
                return


class _IntoStream:
    """Publishes into the stream, which keeps one copy of each message until it is settled, as the carrier of JetStream does."""

    def __init__(self, daemon: "Daemon") -> None:
        self._daemon = daemon

    def hand_over(self, _row: Outgoing) -> bool:
        return False

    async def confirm(self) -> None:
        pass

    async def carry(self, rows: Sequence[Outgoing]) -> Carried:
        daemon = self._daemon
        for row in rows:
            headers = {AFTER_SETTLED: row.settled} if row.settled else {}
            reply = daemon.parts.ack_inboxes.reply(row)
            daemon.net.post(daemon.name, InboundMessage(row.subject, row.raw, reply, headers), key=row.message_id)
        return Carried([row.seq for row in rows], [])


class Daemon(Agent):
    """The parts of one daemon over a store in `folder`, and its agent. `life` is that of the agent's next message in seconds;
    an end of a work, and what nobody has shortened, lives a day."""

    def __init__(self, name: str, net: "DaemonNet", folder: Path) -> None:
        self.name = name
        self.net = net
        self.life = DAY
        self.leased: list[InboxItem] = []
        self._folder, self._starts = folder, count()
        self._clock = LoopClock(net.loop, name)
        self._path = folder / "0" / "store.db"
        self.start()

    def start(self) -> None:
        net, other = self.net, self.net.other(self.name)
        settings = Settings(name=self.name, peer_id=self.name, workspace=WORKSPACE, channels=(CHANNEL,), retry=RETRY)
        context = daemon_context(settings, self._clock)
        self.store = net.run(Store.open(self._path, synchronous="normal"), waits=True)
        self.link = _Wires(self)
        replaced = Replacements(carrier=_IntoStream(self) if net.flow else None)
        self.parts = parts = daemon_parts(context, self.store, self.link, replaced)
        net.run(self.store.write(lambda tx: tx.memory.trust.put(tx, Rule("admit", "", other, "operator", 0))))
        net.run(parts.deadlines.resume(), waits=True)
        net.run(self._subscribe())
        tasks = (parts.publisher.run, parts.publisher.retry, parts.committer.run, parts.deadlines.run)
        self._tasks = [net.loop.create_task(main()) for main in (*tasks, parts.greeter.keep_greeting)]
        self.join()

    async def _subscribe(self) -> None:
        self.parts.ack_inboxes.open(self.parts.ack_receiver.receive)
        for to in (None, self.name):
            self.link.subscribe(subject_for(WORKSPACE, CHANNEL, to), self.parts.intake.offer)

    def join(self) -> None:
        """The link is up (again)."""
        self.parts.publisher.link_up()
        self.net.run(self.parts.greeter.join())
        self.net.pass_time(0.02)

    def stop(self) -> None:
        """Nothing leaves any more."""
        self.link.is_cut = True
        for task in self._tasks:
            task.cancel()
        self.net.run(asyncio.wait(self._tasks))
        self.net.run(self.store.close(), waits=True)
        self.parts.signatures.close()

    def kill(self) -> None:
        """Start again with the files as they are now."""
        path = self._folder / str(next(self._starts) + 1) / "store.db"
        path.parent.mkdir()
        for one in self._path.parent.glob("store.db*"):
            if not one.name.endswith("lock"):
                shutil.copyfile(one, path.with_name(one.name))
        self.stop()
        self._path = path
        self.start()

    # the agent

    def send(self, kind: str, body: Mapping[str, Any], **parts: Any) -> Envelope:
        now, ends = self._clock.seconds(), body.get("state") in TERMINAL_STATES or kind == "receipt"
        fields: dict[str, Any] = {"surface": "thread", "container": THREAD, **parts}
        fields |= {"workspace_id": WORKSPACE, "channel": CHANNEL, "ts": now, "kind": kind, "sender": self.name}
        fields |= {"id": self._clock.mint(), "body": body, "expires_at": now + (DAY if ends else self.life)}
        draft = Draft(**fields)
        self.life = DAY
        self.net.run(self._send(draft))
        self.net.by_agents.add(draft.id)
        self.net.pass_time(0.02)
        ((raw,),) = self.rows("SELECT raw FROM envelopes WHERE msg_id = ? AND direction = 'out'", draft.id)
        return parse(raw, now)

    async def _send(self, draft: Draft) -> None:
        await self.parts.sender.send_all(lambda _tx, batch: batch.send(draft))

    def next(self) -> InboxItem | None:
        """Lease a message, and note what it overtakes: earlier ones of its flow and work that wait or are leased, but for the
        opening of an accepted work and answered questions."""
        item = self.net.run(self.parts.inbox.next(InboxNextRequest(visibility=LEASE))).item
        if item is not None:
            self.leased.append(item)
            if earlier := self.rows(_OVERTAKEN, item.seq):
                self.net.overtaken.append((self.name, item.message.id, [message_id for (message_id,) in earlier]))
        return item

    def ack(self, item: InboxItem) -> None:
        self.leased = [one for one in self.leased if one.seq != item.seq]
        with contextlib.suppress(Refused):  # the lease has expired
            self.net.run(self.parts.inbox.ack(item.seq, InboxAckRequest(lease=item.lease)))

    # what it knows

    def rows(self, sql: str, *values: Any) -> list[tuple[Any, ...]]:
        def job(tx: Any) -> list[tuple[Any, ...]]:
            tx.flush()
            return [tuple(row) for row in tx.db.execute(sql, values)]

        return self.net.run(self.store.write(job))

    @property
    def works(self) -> dict[str, WorkView]:
        """By their ids."""
        found = [(work_id, self.work(work_id)) for (work_id,) in self.rows("SELECT work_id FROM works")]
        return {work_id: work for work_id, work in found if work is not None}

    def work(self, work_id: str) -> WorkView | None:
        return self.net.run(self.store.write(lambda tx: lifecycle.load(tx, WORKSPACE, CHANNEL, work_id)))


_KIND_AND_ID: Final = re.compile(rb'.*?"id":"([^"]*)".*?"kind":"([a-z]*)"').match
RETRY: Final = RetrySettings(first=1.0, ceiling=10.0)
_UNSETTLED: Final = """
SELECT e.msg_id FROM envelopes AS e JOIN outbox AS o ON o.seq = e.seq
WHERE e.direction = 'out' AND (o.state = 'queued' OR o.next_ms IS NOT NULL) ORDER BY e.seq
"""
_OVERTAKEN: Final = """
SELECT e.msg_id FROM envelopes AS mine JOIN envelopes AS e ON e.flow = mine.flow AND e.work_id IS mine.work_id
LEFT JOIN inbox AS i ON i.seq = e.seq LEFT JOIN works AS w ON w.work_id = e.work_id
WHERE mine.seq = ?1 AND mine.direction = 'in' AND e.seq < mine.seq AND e.inbox = 1 AND (i.state IN ('ready', 'leased')
    OR (i.seq IS NULL AND e.seq > (SELECT value FROM meta WHERE key = 'inbox_position')))
AND NOT (coalesce(i.attempts, 0) > 0 AND ((e.outcome IS 'opened' AND w.state IS NOT 'submitted')
    OR (e.kind = 'trace' AND w.state IS NOT 'needs_input')))
"""


class DaemonNet(Bus):
    """Two daemons, and what is on its way to each of them. With `foreign`, worker is a peer of another implementation: it
    acknowledges nothing, repeats nothing, and knows no extensions."""

    def __init__(self, *, flow: bool = False, foreign: bool = False) -> None:
        super().__init__(START)
        self.ordered = True
        self.flow, self.foreign = flow, foreign
        self.loop = Loop()
        self.folder = tempfile.TemporaryDirectory(dir="/dev/shm" if Path("/dev/shm").is_dir() else None)
        self.wires: dict[str, list[Flying]] = {name: [] for name in NAMES}
        self.stored: dict[str, dict[int, Flying]] = {name: {} for name in NAMES}  # in the stream, not settled
        self.copies: dict[tuple[str, bool], int] = {}  # in the stream, by id and whether the predecessor is settled
        self.last_copy = 0
        self.away: set[str] = set()  # not subscribed
        self.to_nobody: set[str] = set()  # ids of envelopes of which the last copy had no receiver
        self.by_agents: set[str] = set()  # ids of messages
        self.overtaken: list[tuple[str, str, list[str]]] = []
        self.peers: dict[str, Any] = {}
        for name in NAMES:
            if foreign and name == "worker":
                self.peers[name] = Peer(name, self, foreign=True)
                self._greeting = self.loop.create_task(self._greet(self.peers[name]))
            else:
                self.peers[name] = Daemon(name, self, Path(self.folder.name) / name)
        self.pass_time(1)  # they know each other

    @property
    def daemons(self) -> list[Daemon]:
        return [peer for peer in self.peers.values() if isinstance(peer, Daemon)]

    def close(self) -> None:
        for daemon in self.daemons:
            daemon.stop()
        if self.foreign:
            self._greeting.cancel()
        self.loop.run_until_complete(self.loop.shutdown_asyncgens())
        self.loop.close()
        self.folder.cleanup()

    def run(self, task: Coroutine[Any, Any, T] | asyncio.Future[T], *, waits: bool = False) -> T:
        self.loop.selector.waits = waits
        try:
            return self.loop.run_until_complete(task)
        finally:
            self.loop.selector.waits = False

    def pass_time(self, seconds: float) -> None:
        self.run(asyncio.sleep(seconds))
        self.now = START + int(self.loop.time())

    def other(self, name: str) -> str:
        return NAMES[1 - NAMES.index(name)]

    def work(self, name: str, work_id: str | None) -> WorkView | None:
        peer: Agent = self.peers[name]
        return peer.work(work_id or "")

    # the wires

    def publish(self, sender: str, to: str | None, raw: bytes) -> None:
        """The foreign peer publishes."""
        self.post(sender, InboundMessage(subject_for(WORKSPACE, CHANNEL, to), raw, "", None))

    def post(self, sender: str, message: InboundMessage, *, key: str | None = None) -> None:
        """A publish. With `key`, the id of an envelope, it is a copy that the stream does not keep twice."""
        to, found = self.other(sender), _KIND_AND_ID(message.data)
        if found is not None and found[2] in (b"greet", b"whois"):
            if to not in self.away and to in self.peers:
                self.loop.call_soon(self._take, to, message)
        elif found is None:
            self.wires[to].append(Flying(message))  # an acknowledgement
        elif self.flow:
            self._store(to, message, key)
        elif to not in self.away:
            self.to_nobody.discard(found[1].decode())
            self.wires[to].append(Flying(message))
        else:
            self.to_nobody.add(found[1].decode())
            if message.reply:
                answer = InboundMessage(message.reply, b"", "", {"Status": "503"})
                self.loop.call_soon(self._take, sender, answer)

    def _take(self, name: str, message: InboundMessage) -> None:
        peer = self.peers[name]
        if isinstance(peer, Peer):
            peer.receive(message.data)
        else:
            peer.link.take(message)

    def _store(self, to: str, message: InboundMessage, key: str | None) -> None:
        if key is not None:
            copy = key, AFTER_SETTLED in (message.headers or {})
            floor = min(self.stored[to], default=self.last_copy + 1) - 1
            if self.copies.get(copy, 0) > floor:
                return  # the stream still keeps it for its receiver
            self.copies[copy] = self.last_copy + 1
        self.last_copy += 1
        self.stored[to][self.last_copy] = flying = Flying(message, self.last_copy)
        self.wires[to].append(flying)

    def redeliver_one(self, name: str, copy: int) -> None:
        if copy in self.stored[name]:
            self.wires[name].append(self.stored[name][copy])

    def redeliver(self, name: str) -> None:
        """The stream delivers again what was not settled."""
        self.wires[name] += self.stored[name].values()

    async def _greet(self, peer: Peer) -> None:
        """The greets of the foreign peer."""
        while True:
            if peer.name not in self.away:
                self.now = START + int(self.loop.time())
                peer.send("greet", {"peer_card": peer.card.to_wire()})
            await asyncio.sleep(GREETS)

    def arrive(self, name: str, *, at: int = 0, acknowledge: bool = True) -> None:
        """One message on the wire to `name` arrives, is decided on and committed."""
        if at >= len(self.wires[name]):
            return
        flying, peer = self.wires[name].pop(at), self.peers[name]
        message = flying.message
        if flying.copy:
            settlement = _Settled(self, name, flying)
            message = InboundMessage(message.subject, message.data, message.reply, message.headers, settlement)
        if isinstance(peer, Daemon):
            peer.link.is_cut = not acknowledge
        self._take(name, message)
        self.pass_time(0.02)

    # the daemons

    def drain(self, name: str) -> None:
        """The agent takes everything in its inbox that it can get."""
        peer = self.peers[name]
        if isinstance(peer, Peer):
            peer.inbox.clear()
            return
        for item in [*peer.leased]:
            peer.ack(item)
        while (item := peer.next()) is not None:
            peer.ack(item)

    def send_out(self, name: str, *, again: bool) -> None:
        """Time for the publisher; with `again` for the first retry."""
        self.pass_time(1.5 if again else 0.05)

    def cut(self, name: str) -> None:
        """The connection of `name` is lost with what is in flight to it, and is back."""
        self.wires[name].clear()
        self.redeliver(name)
        if isinstance(peer := self.peers[name], Daemon):
            peer.join()

    def crash(self, name: str) -> None:
        self.wires[name].clear()
        if isinstance(peer := self.peers[name], Daemon):
            peer.leased.clear()
            peer.kill()
        self.redeliver(name)

    def leave(self, name: str) -> None:
        """The foreign peer has got what was on its way, and is away: the broker says that nobody listens."""
        while self.wires[name]:
            self.arrive(name)
        self.away.add(name)

    def come_back(self, name: str) -> None:
        """The foreign peer listens again. It greets some time later: nobody may have noticed that it was away."""
        self.away.discard(name)

    def come_to_rest(self) -> None:
        """Nothing fails any more."""
        for name in [*self.away]:
            self.come_back(name)
        rested = self.loop.time() + (2 * GREETS if self.foreign else 0)
        for second in range(REST):
            while any(self.wires.values()):
                for name in NAMES:
                    self.arrive(name)
            for name in NAMES:
                self.drain(name)
            if self.loop.time() >= rested and not any(self.wires.values()) and not self.unsettled():
                return
            if second % REDELIVERED == REDELIVERED - 1:
                for name in NAMES:
                    self.redeliver(name)
            self.pass_time(1)

    def unsettled(self) -> list[str]:
        """What is not at rest."""
        found = [f"stream of {name}" for name in NAMES if self.stored[name]]
        for daemon in self.daemons:
            found += [message_id for (message_id,) in daemon.rows(_UNSETTLED)]
            found += [f"inbox of {daemon.name}"] * bool(daemon.store.memory.inbox.waiting)
        return found
