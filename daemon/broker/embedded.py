"""The embedded broker: one nats-server for all daemons of one user on a machine, used when no NATS server is named.

A joining daemon takes `election.lock`, holds `members.lock` shared for its life, and then finds the running broker or starts one
under a guard process (guard.py). The guard stops the server when the last member has left, even if it was killed with SIGKILL.
When the server dies, the guard ends, the members lose their link and join again. When the guard dies, the server keeps running:
members check `guard.lock` each second, and one starts a new guard, which adopts the server.

The locks, which the kernel keeps, are authoritative: `guard.lock` is held by a living guard, `server.lock` by the living
server, and its text is that server's pid. `broker.json` is only used when it agrees with them. This module signals no process.
"""

import asyncio
import contextlib
import json
import logging
import os
import sys
from pathlib import Path

from aghbus.daemon.base.logs import event
from aghbus.daemon.broker.binary import find_binary
from aghbus.daemon.broker.directory import BrokerError, BrokerFolder
from aghbus.daemon.broker.probe import ProbeFailed, probe
from aghbus.daemon.nats.options import NatsOptions
from aghbus.host.file_lock import FileLock, is_locked

__all__ = ["BrokerError", "EmbeddedBroker"]

_log = logging.getLogger("aghbus.broker")

_GUARD = Path(__file__).with_name("guard.py")
_PATIENCE = 35.0  # seconds; another daemon's whole start fits in (15 s, twice when the old port is taken)
_GUARD_CHECK = 1.0  # seconds between two checks of guard.lock
_RETRY = 0.05  # seconds between two checks of a broker that is starting or stopping
# What guard and server keep of the starter's environment: the starter's secrets must not outlive it there.
_KEPT_ENVIRONMENT = ("PATH", "HOME", "TMPDIR", "LANG", "TZ", "LD_LIBRARY_PATH", "GOMAXPROCS", "GOMEMLIMIT")


class EmbeddedBroker:
    """This daemon's membership in the shared broker."""

    def __init__(
        self,
        broker_dir: Path,
        *,
        binary: Path | None = None,
        patience: float = _PATIENCE,
    ) -> None:
        """`broker_dir` is shared by all daemons of the user; `binary` is nats-server if it is not to be searched for.

        `patience` is how many seconds to wait for others that start or stop.
        """
        self._folder = BrokerFolder(broker_dir)
        self._binary = binary
        self._patience = patience
        self._election = FileLock(self._folder.election_lock)
        self._membership = FileLock(self._folder.members_lock)
        self._turn = asyncio.Lock()
        self._port = 0  # of the broker that was reached last
        self._watcher: asyncio.Task[None] | None = None

    async def join(self) -> NatsOptions:
        """Ensures that a guarded broker runs, and returns how to reach it; to be called again after every loss.

        Raises BrokerError. Membership begins with the first call, even one that fails, and lasts until `leave`.
        """
        async with self._turn:
            await self._ensure()
            if self._watcher is None:
                self._watcher = asyncio.create_task(self._watch_guard(), name="broker-guard-check")
            return NatsOptions(servers=(f"nats://127.0.0.1:{self._port}",), token=self._folder.token())

    async def leave(self) -> None:
        """Ends the membership; the guard stops the broker if this was the last member. May be called twice."""
        if self._watcher is not None:
            self._watcher.cancel()
            with contextlib.suppress(asyncio.CancelledError):
                await self._watcher
            self._watcher = None
        async with self._turn:
            if self._membership.held and is_locked(self._folder.server_lock) and not is_locked(self._folder.guard_lock):
                # without a guard, the server would outlive the last member
                with contextlib.suppress(BrokerError):
                    await self._ensure()
            self._membership.release()

    async def _ensure(self) -> None:
        """One election: become a member, then find, adopt or start the broker."""
        self._folder.prepare()
        await self._take(self._election, shared=False, what="election.lock")
        try:
            # a guard that is just stopping the broker holds it, for as long as nats-server takes to end
            await self._take(self._membership, shared=True, what="members.lock")
            self._port = await self._find_or_start()
        finally:
            self._election.release()

    async def _take(self, lock: FileLock, *, shared: bool, what: str) -> None:
        path = self._folder.path / what
        try:
            taken = await lock.lock(shared=shared, timeout=self._patience)
        except OSError as error:
            raise BrokerError(
                "lock the broker", f"{path}: {error.strerror}", "check the folder's permissions"
            ) from error
        if not taken:
            raise BrokerError(
                "lock the broker",
                f"{path} has been locked by another process for more than {self._patience:g} s",
                "find it with `fuser`; it is an unresponsive daemon or guard process",
            )

    async def _find_or_start(self) -> int:
        """Checks and repairs until a guarded broker answers, and returns its port; a failed start raises immediately."""
        loop = asyncio.get_running_loop()
        deadline = loop.time() + self._patience
        token = self._folder.token()
        while True:
            trouble = "it is starting or stopping"
            guarded = is_locked(self._folder.guard_lock)
            alive = is_locked(self._folder.server_lock)
            if alive:
                try:
                    port = await self._find(token)
                    if guarded:
                        return port
                except ProbeFailed as error:
                    trouble = str(error)
            if loop.time() > deadline:
                raise BrokerError(
                    "reach the embedded broker",
                    trouble,
                    f"its server is process {self._folder.server_pid()}; stop that",
                )
            if not guarded:
                await self._run_guard(token, adopt=alive)
            else:
                await asyncio.sleep(_RETRY)

    async def _find(self, token: str) -> int:
        """Probes the living server, and returns its port; ProbeFailed when its port is not known yet or it does not answer."""
        pid = self._folder.server_pid()
        record = self._folder.record()
        port = record.port if record is not None and record.pid == pid else self._folder.port_of(pid)
        if port is None:
            raise ProbeFailed("its port is not known")
        await probe(port, token)
        return port

    async def _run_guard(self, token: str, *, adopt: bool) -> None:
        """Starts a guard, with a new server or (`adopt`) for the running one, and waits for its answer."""
        arguments = ["adopt"]
        if not adopt:
            binary = await asyncio.to_thread(find_binary, self._binary)
            facts = {"path": str(binary.path), "version": binary.version, "sha256": binary.sha256}
            level = logging.WARNING if binary.origin == "path" else logging.INFO  # neither configured nor locked
            event(_log, level, "broker binary chosen", origin=binary.origin, **facts)
            self._folder.write_config(token)
            record = self._folder.record()
            arguments = ["start", str(binary.path), str(self._port or (record.port if record else -1))]
        answer = await _start_guard([sys.executable, "-I", "-S", str(_GUARD), str(self._folder.path), *arguments])
        if "port" in answer:
            what = "broker adopted" if adopt else "broker started"
            event(_log, logging.INFO, what, port=answer["port"], guard_pid=answer["pid"])
        elif not adopt:
            raise BrokerError(
                "start nats-server", str(answer.get("error")), f"the whole log is {self._folder.log_file}"
            )
        else:
            # the server ended meanwhile, or was stopped because its folder was replaced: the next check starts a new one
            event(_log, logging.WARNING, "broker not adopted", cause=answer.get("error"))

    async def _watch_guard(self) -> None:
        """Replaces a guard that died; the connection is not affected."""
        while True:
            await asyncio.sleep(_GUARD_CHECK)
            if is_locked(self._folder.guard_lock):
                continue
            try:
                async with self._turn:
                    await self._ensure()
            except Exception as error:  # the next check may succeed
                event(_log, logging.WARNING, "broker has no guard", cause=str(error))


async def _start_guard(command: list[str]) -> dict[str, object]:
    """Runs the guard's starter, which ends as soon as the guard has written its one JSON line."""
    environment = {name: os.environ[name] for name in _KEPT_ENVIRONMENT if name in os.environ}
    try:
        starter = await asyncio.create_subprocess_exec(
            *command,
            stdin=asyncio.subprocess.DEVNULL,
            stdout=asyncio.subprocess.PIPE,
            stderr=asyncio.subprocess.PIPE,
            env=environment,
            start_new_session=True,
        )
    except OSError as error:
        raise BrokerError("start the broker's guard", f"{command[0]}: {error.strerror}", "") from error
    try:
        out, errors = await starter.communicate()
    except asyncio.CancelledError:
        # the guard keeps running, and stops with the last member
        with contextlib.suppress(ProcessLookupError):
            starter.kill()
        await starter.communicate()
        raise
    try:
        answer = json.loads(out)
    except ValueError:
        answer = {"error": errors.decode("utf-8", "replace").strip() or "no output from the guard process"}
    return answer if isinstance(answer, dict) else {"error": "invalid response from the guard process"}
