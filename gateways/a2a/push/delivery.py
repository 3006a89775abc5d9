"""Push notifications: each config is followed by a task, which sends what happens in order, repeats what fails, and goes on where
it was after a restart."""

from __future__ import annotations

import asyncio
import hashlib
import json
import random
import re
import time
import uuid
from collections.abc import Callable
from contextlib import aclosing, suppress
from functools import partial
from typing import Final
from weakref import WeakValueDictionary

import h11
from a2a.utils.errors import InvalidParamsError, PushNotificationNotSupportedError, TaskNotFoundError

from aghbus.client import ClientError, NotFound
from aghbus.gateways.a2a.base.bus import Agent, Bus
from aghbus.gateways.a2a.base.errors import fault
from aghbus.gateways.a2a.base.files import Files
from aghbus.gateways.a2a.base.signing import Signing
from aghbus.gateways.a2a.push.store import MAX_CONFIGS, MAX_OF_CALLER, MAX_OF_TASK, Config, PushStore
from aghbus.gateways.a2a.push.webhook import AllowList, Refused, post
from aghbus.gateways.base.metrics import Metrics
from aghbus.protocol.base.backoff import Backoff
from aghbus.protocol.formats.a2a.ids import caller_part
from aghbus.protocol.formats.a2a.parts import Json
from aghbus.protocol.formats.a2a.tasks import TaskView
from aghbus.protocol.formats.derived_ids import digest

FIRST_PAUSE, LAST_PAUSE = 1.0, 300.0
"""Seconds between two attempts: the first, and the longest that doubling leads to."""
GIVE_UP: Final = 86_400.0
"""Seconds of failures after which a config is forgotten."""
KEPT_MS: Final = 3_600_000
"""How long the config of an ended task can still be read."""
AT_A_TIME: Final = 64
OF_CALLER: Final = 8
"""Requests to webhooks: of all callers, and of one, whose slow ones keep nobody else's back."""

_SCHEME: Final = re.compile(r"[A-Za-z0-9!#$%&'*+.^_`|~-]{1,64}")
_VALUE: Final = re.compile(r"[!-~]([ -~]{0,4094}[!-~])?")
_ID: Final = re.compile(r"[!-~]{1,128}")


class Push:
    """Configs and their delivery. `issuer` is the URL of the gateway, `tell` gets what operators should see."""

    def __init__(
        self,
        bus: Bus,
        files: Files,
        agents: list[Agent],
        store: PushStore,
        allowed: AllowList,
        signing: Signing,
        metrics: Metrics,
        issuer: str,
        tell: Callable[[Json], None],
    ) -> None:
        self._bus = bus
        self._files = files
        self._agents = {agent.name: agent for agent in agents}
        self._store = store
        self._allowed = allowed
        self._signing = signing
        self._metrics = metrics
        self._issuer = issuer
        self._tell = tell
        self._turn = asyncio.Semaphore(AT_A_TIME)
        self._turns = WeakValueDictionary[str, asyncio.Semaphore]()  # of callers
        self._following: dict[tuple[str, str], asyncio.Task[None]] = {}

    def start(self) -> None:
        """Go on with all configs, also with a store that was restored and is behind them."""
        for config in self._store.all():
            config.seq = min(config.seq, self._bus.newest)
            self._follow(config)

    async def stop(self) -> None:
        """End the delivery; the configs stay."""
        tasks = [*self._following.values()]
        for task in tasks:
            task.cancel()
        await asyncio.gather(*tasks, return_exceptions=True)

    def check(self, asked: Json) -> None:
        """Raise InvalidParamsError for a config that cannot be kept."""
        try:
            self._allowed.target(str(asked.get("url", "")))
        except Refused as error:
            raise fault("url", str(error)) from None
        about = asked.get("authentication") or {}
        scheme, credentials, token = about.get("scheme", ""), about.get("credentials", ""), asked.get("token", "")
        if scheme and not _SCHEME.fullmatch(scheme):
            raise fault("authentication.scheme", "must be the name of an HTTP authentication scheme")
        for name, value in (("authentication.credentials", credentials), ("token", token)):
            if value and not _VALUE.fullmatch(value):
                raise fault(name, "must be printable ASCII, at most 4096 characters")
        if asked.get("id") and not _ID.fullmatch(asked["id"]):
            raise fault("id", "must be 1 to 128 printable ASCII characters")

    def create(self, agent: Agent, view: TaskView, asked: Json, *, derived: bool = False) -> Config:
        """Keep a config, and deliver what happens in the task after `view`. `derived`: one without an id gets that of its URL, so
        that a repeated request creates it once. Raises InvalidParamsError."""
        task_id = view.task_id
        self.check(asked)
        fresh = digest("a2a-push", task_id, asked["url"]) if derived else uuid.uuid4().hex
        identity, about = str(asked.get("id") or fresh), asked.get("authentication") or {}
        known = self._store.get(task_id, identity)
        if known is not None and derived:
            return known
        if known is None:
            self._make_room(task_id)
        config = Config(identity, task_id, agent.name, asked["url"], asked.get("token", ""), seq=view.last_seq)
        config.scheme, config.credentials = about.get("scheme", ""), about.get("credentials", "")
        config.ended_ms = int(time.time() * 1000) if view.has_ended() else 0
        self._store.put(config)
        self._follow(config)
        return config

    def get(self, task_id: str, identity: str) -> Config:
        """One config. Raises TaskNotFoundError."""
        if (found := self._store.get(task_id, identity)) is None:
            raise TaskNotFoundError("no such push notification config")
        return found

    def of_task(self, task_id: str) -> list[Config]:
        """The configs of a task."""
        return self._store.of_task(task_id)

    def remove(self, task_id: str, identity: str) -> None:
        """Forget a config, if there is one."""
        if (task := self._following.pop((task_id, identity), None)) is not None:
            task.cancel()
        self._store.remove(task_id, identity)

    def _make_room(self, task_id: str) -> None:
        """Forget old configs of ended tasks, also a later one of the caller if it has no room. Raises InvalidParamsError."""
        before, caller = int(time.time() * 1000) - KEPT_MS, caller_part(task_id)
        for config in self._store.all():
            if config.ended_ms and config.ended_ms < before:
                self._store.remove(config.task_id, config.id)
        own = [config for config in self._store.all() if caller_part(config.task_id) == caller]
        is_full = len(own) >= MAX_OF_CALLER or len(self._store) >= MAX_CONFIGS
        ended = min((config for config in own if config.ended_ms), key=lambda config: config.ended_ms, default=None)
        if len(self._store.of_task(task_id)) >= MAX_OF_TASK or (is_full and ended is None):
            limits = f"a task has at most {MAX_OF_TASK}, a caller {MAX_OF_CALLER}, the gateway {MAX_CONFIGS}"
            raise InvalidParamsError(f"too many configs: {limits}")
        if is_full and ended is not None:
            self._store.remove(ended.task_id, ended.id)

    def _follow(self, config: Config) -> None:
        key = config.task_id, config.id
        if (former := self._following.pop(key, None)) is not None:
            former.cancel()
        if not config.ended_ms and config.agent in self._agents:
            self._following[key] = following = asyncio.create_task(self._deliver_all(config))
            following.add_done_callback(partial(self._unfollow, key))
            self._metrics.set("webhooks", len(self._following))

    def _unfollow(self, key: tuple[str, str], following: asyncio.Task[None]) -> None:
        if self._following.get(key) is following:
            del self._following[key]
        self._metrics.set("webhooks", len(self._following))

    async def _deliver_all(self, config: Config) -> None:
        """Deliver what happens in the task of a config, up to its end, which is kept, over failures of the daemon and the disk."""
        agent, backoff = self._agents[config.agent], Backoff(FIRST_PAUSE, LAST_PAUSE)
        while True:
            before = config.seq
            try:
                if not config.ended_ms:
                    with suppress(NotFound):
                        await self._deliver_from(config, agent)
                    config.ended_ms = int(time.time() * 1000)
                if self._store.get(config.task_id, config.id) is config:
                    self._store.put(config)
                return
            except (ClientError, OSError) as error:
                if isinstance(error, OSError):
                    why = error.strerror or str(error)
                    self._tell({"event": "push", "task": config.task_id, "result": "not_kept", "why": why})
                if config.seq > before:
                    backoff.reset()
                await asyncio.sleep(backoff.next())

    async def _deliver_from(self, config: Config, agent: Agent) -> None:
        work = await self._bus.call(self._bus.client.core.work(config.task_id))
        view, missed = await self._bus.replay(config.task_id, work, config.seq)
        if not await self._deliver(config, agent, view, missed):
            return
        async with aclosing(self._bus.follow(view, work.work_id, may_move=bool(agent.capability))) as batches:
            async for updates in batches:
                if not await self._deliver(config, agent, view, updates):
                    return

    async def _deliver(self, config: Config, agent: Agent, view: TaskView, updates: list[Json]) -> bool:
        """Deliver the updates of messages up to the last one of `view`; False when the webhook is given up."""
        for update in updates:
            body = json.dumps(await self._files.in_update(agent, view, update)).encode()
            if not await self._send(config, body):
                return False
        if view.last_seq > config.seq:
            config.seq = view.last_seq
            self._store.put(config)
        return True

    async def _send(self, config: Config, body: bytes) -> bool:
        backoff, deadline = Backoff(FIRST_PAUSE, LAST_PAUSE), time.monotonic() + GIVE_UP
        while True:
            problem = await self._attempt(config, body)
            if not problem:
                self._metrics.count("pushes_total", "delivered")
                return True
            late = time.monotonic() >= deadline
            self._metrics.count("pushes_total", "given_up" if late else "failed")
            self._tell(
                {"event": "push", "task": config.task_id, "result": "given_up" if late else "failed", "why": problem}
            )
            if late:
                return False
            await asyncio.sleep(backoff.next() * random.uniform(0.8, 1.2))  # noqa: S311

    async def _attempt(self, config: Config, body: bytes) -> str:
        """Send one notification: why that failed, empty if it did not."""
        proof = self._signing.token(self._issuer, config.url, config.task_id, hashlib.sha256(body).hexdigest())
        headers = {"Content-Type": "application/a2a+json", "Aghbus-Signature": proof}
        if config.token:
            headers["X-A2A-Notification-Token"] = config.token
        if config.scheme:
            headers["Authorization"] = f"{config.scheme} {config.credentials}".rstrip()
        try:
            async with self._turn_of(config), self._turn:
                status = await post(self._allowed, config.url, headers, body)
        except (Refused, OSError, h11.ProtocolError) as error:
            return str(error) or type(error).__name__
        return "" if 200 <= status < 300 else f"status {status}"

    def _turn_of(self, config: Config) -> asyncio.Semaphore:
        caller = caller_part(config.task_id)
        if (turn := self._turns.get(caller)) is None:
            turn = self._turns[caller] = asyncio.Semaphore(OF_CALLER)
        return turn


def required(push: Push | None) -> Push:
    """The notifications. Raises PushNotificationNotSupportedError where there are none."""
    if push is None:
        raise PushNotificationNotSupportedError
    return push
