"""Our peers for clients of theirs: each peer, or capability, is an agent that they find and prompt."""

from __future__ import annotations

import asyncio
import contextvars
from contextlib import suppress
from typing import Final

from nats.errors import Error as NatsError
from synadia_ai.agent_service import (
    AgentService,
    CallNext,
    PromptStream,
    RequestInterceptorContext,
    ServiceIdentity,
)
from synadia_ai.agents import Envelope, NatsAgentError

from aghbus.gateways.synadia.process import Bridge
from aghbus.gateways.synadia.served_prompt import ServedPrompt, ServeOptions, Target
from aghbus.protocol.api.peers import Peer
from aghbus.protocol.base.text import escape, shorten
from aghbus.protocol.formats.synadia import names

REFRESH: Final = 5.0
"""Seconds between two looks at who is present."""
MAX_DESCRIPTION: Final = 300
"""Characters of what a peer says about itself."""
END_SECONDS: Final = 5.0
"""For the callers to be told that the bridge stops."""

_request: contextvars.ContextVar[RequestInterceptorContext] = contextvars.ContextVar("synadia_request")


class Serving:
    """The agents that are served. `run` returns after a signal."""

    def __init__(self, bridge: Bridge, options: ServeOptions) -> None:
        self._bridge = bridge
        self._options = options
        self._services: dict[Target, AgentService] = {}
        self._prompts: set[asyncio.Task[None]] = set()
        self._owner = options.owner or ""

    async def run(self) -> None:
        """Serve until the bridge stops."""
        if not self._owner:
            self._owner = names.session((await self._bridge.client.status()).workspace_id)
        await self._refresh()
        ready = [self._shown(service) for service in self._services.values()]
        self._bridge.emit("ready", broker=self._bridge.broker.servers, agents=ready)
        refreshing = asyncio.create_task(self._keep())
        await asyncio.wait(
            {refreshing, stop := asyncio.create_task(self._bridge.stopping.wait())}, return_when="FIRST_COMPLETED"
        )
        refreshing.cancel()
        stop.cancel()
        if self._prompts:
            self._bridge.emit("stopping", running=len(self._prompts))
            await asyncio.wait(self._prompts, timeout=END_SECONDS)
        for target in list(self._services):
            await self._remove(target)

    async def _keep(self) -> None:
        """Follow presence."""
        while True:
            await asyncio.sleep(REFRESH)
            if self._follows_presence:
                await self._refresh()

    @property
    def _follows_presence(self) -> bool:
        return not (self._options.peers or self._options.capabilities)

    async def _refresh(self) -> None:
        """Serve whom the options name, or who is present."""
        wanted = {(target.kind, target.name): target for target in await self._wanted()}
        for target in list(self._services):
            if wanted.pop((target.kind, target.name), None) is None:
                await self._remove(target)
                self._bridge.emit("withdrawn", agent=target.name)
        used = {service.subject.prompt for service in self._services.values()}
        for target in wanted.values():
            service = self._service(target)
            if service.subject.prompt in used:
                self._bridge.note(f"{target.name}: another one is served as {service.subject.prompt}")
                continue
            try:
                await service.start()
            except (NatsAgentError, NatsError) as error:
                self._bridge.note(f"{target.name} cannot be served: {error}")
                continue
            used.add(service.subject.prompt)
            self._services[target] = service
            if self._follows_presence:
                self._bridge.emit("served", agent=self._shown(service))
        self._bridge.metrics.set("agents", len(self._services))

    async def _wanted(self) -> list[Target]:
        options = self._options
        found = [Target("capability", name, f"capability {name}") for name in options.capabilities]
        known = {peer.peer_id: peer for peer in (await self._bridge.client.peers()).peers}
        if self._follows_presence:
            there = [
                peer for peer in known.values() if peer.presence in ("active", "inactive") and not _is_joined(peer)
            ]
            return [*found, *(Target("peer", peer.peer_id, _described(peer.peer_id, peer)) for peer in there)]
        return [*found, *(Target("peer", name, _described(name, known.get(name))) for name in options.peers)]

    def _service(self, target: Target) -> AgentService:
        signer, options = self._bridge.broker.signer, self._options
        service = AgentService(
            agent=names.PEER_AGENT if target.kind == "peer" else names.CAPABILITY_AGENT,
            owner=self._owner,
            session_name=names.session(target.name),
            nc=self._bridge.nats,
            description=target.description,
            keepalive_interval_s=None,  # ours also looks whether the caller is there
            extra_metadata={names.MARK: target.kind, f"{names.MARK}_{target.kind}": target.name},
            identity=None if signer is None else ServiceIdentity(signer=signer),
            min_sender_trust="signed" if options.signed_only else "any",
            interceptors=[_Remember()],
            max_concurrent_prompts=options.concurrency,
        )

        async def on_prompt(envelope: Envelope, stream: PromptStream) -> None:
            prompt = ServedPrompt(self._bridge, target, options, stream, _request.get())
            task = asyncio.create_task(prompt.run())
            self._prompts.add(task)
            task.add_done_callback(self._prompts.discard)
            await task

        service.on_prompt(on_prompt)
        return service

    async def _remove(self, target: Target) -> None:
        with suppress(NatsError, OSError):  # the broker is away
            await self._services.pop(target).stop()
        self._bridge.metrics.set("agents", len(self._services))

    @staticmethod
    def _shown(service: AgentService) -> str:
        subject = service.subject
        return str(names.Address(subject.agent, subject.owner, subject.session_name))


class _Remember:
    """Keeps the request for the handler, which only gets the stream."""

    async def around_request(self, ctx: RequestInterceptorContext, call_next: CallNext) -> None:
        _request.set(ctx)
        await call_next()


def _is_joined(peer: Peer) -> bool:
    """Whether it stands for agents of theirs only: they are found without us."""
    found = peer.card.get("capabilities") or []
    return bool(found) and all(str(name).startswith(f"{names.PREFIX}.") for name in found)


def _described(name: str, peer: Peer | None) -> str:
    said = None if peer is None else peer.summary or peer.card.get("display_name")
    return shorten(escape(f"peer {name}: {said}"), MAX_DESCRIPTION) if said else f"peer {name}"
