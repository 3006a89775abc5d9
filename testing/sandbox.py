"""A sandbox for daemons: folders and an embedded broker of their own."""

from __future__ import annotations

import os
import time
from collections.abc import Callable, Mapping, Sequence
from types import TracebackType

from aghbus.client.api import Api
from aghbus.client.errors import ClientError, Unexpected, UsageError
from aghbus.testing.folders import Folders
from aghbus.testing.peer import STOP_SECONDS, Peer
from aghbus.testing.processes import interrupts_deferred

TYPE_CHECKING = False
if TYPE_CHECKING:
    from typing import Self

START_SECONDS = 30.0
"""For daemons and their broker to be ready; a second on an idle machine."""
BROKER_SECONDS = 5.0
"""For a broker to accept a daemon, after the first failed attempt: a wrong address must not take half a minute."""
PRESENCE_SECONDS = 5.0
"""For daemons to know each other; milliseconds, unless their options keep them apart."""
POLL_INTERVAL = 0.01
"""Seconds between two looks at a condition."""


class Sandbox:
    """Daemons that share an embedded broker, apart from those of the user. Leaving the context stops all of them.

    Their state and logs are in `folder`, which remains; without one in a temporary folder, which is removed. When this process
    dies, its daemons and the temporary folder go, too.

    >>> with Sandbox() as sandbox:
    ...     ops, worker = sandbox.peers("ops", "worker", capabilities={"worker": ["test.run"]})
    ...     print(ops.client().whois("test.run").peers)
    """

    def __init__(self, folder: str | os.PathLike[str] | None = None) -> None:
        self._folders = Folders(folder)
        self._peers: dict[str, Peer] = {}

    def __enter__(self) -> Self:
        return self

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        self.close()

    def peers(
        self, *names: str, capabilities: Mapping[str, Sequence[str]] | None = None, options: Sequence[str] = ()
    ) -> tuple[Peer, ...]:
        """Start daemons, which know each other and the earlier ones of the sandbox when this returns; in the order of `names`.

        `capabilities` of each by its name; `options` of `aghd run` for all of them. Raises UsageError, and Unexpected with the end
        of its log when a daemon does not start.
        """
        announced = capabilities or {}
        for name in announced:
            if name not in names:
                raise UsageError(f"capabilities: {name} is not one of the peers {', '.join(names)}")
        for name in names:
            if name in self._peers or names.count(name) > 1:
                raise UsageError(f"names: {name} is there already", "start a stopped peer with `start`")
        started = []
        for name in names:
            words = [word for one in announced.get(name, ()) for word in ("--capability", one)]
            self._peers[name] = Peer(name, [*options, *words], self._folders, self._until_ready)
            self._peers[name].launch()
            started.append(self._peers[name])
        self._until_ready(started)
        return tuple(started)

    def _until_ready(self, peers: Sequence[Peer]) -> None:
        """Wait until the daemons are ready and all that run know each other.

        Raises Unexpected when one exits, or the time is over; with the code `broker_unreachable` when its broker refuses it.
        """
        for peer in peers:
            if not eventually(_Start(peer).is_ready, START_SECONDS):
                hint = f"its log is {peer.log}"
                raise Unexpected(f"the daemon {peer.name} was not ready within {START_SECONDS:.0f} s", hint)
        running = [peer for peer in self._peers.values() if not peer.problem()]
        eventually(lambda: _know_each_other(running), PRESENCE_SECONDS)

    def close(self) -> None:
        """Stop workers, daemons and broker. Remove the temporary folder."""
        try:
            for step in (Peer.stop_workers, Peer.terminate, Peer.wait):
                for peer in self._peers.values():
                    step(peer)
            eventually(lambda: not self._folders.has_broker(), STOP_SECONDS)
        finally:
            self._folders.remove()


class _Start:
    """The start of one daemon."""

    def __init__(self, peer: Peer) -> None:
        self._peer = peer
        self._failed_at = 0.0

    def is_ready(self) -> bool:
        """Whether the daemon is ready. Raises Unexpected when it does not start, or its broker refuses it for long."""
        if problem := self._peer.problem():
            raise Unexpected(f"the daemon {self._peer.name} did not start: {problem}", f"its log is {self._peer.log}")
        try:
            status = Api(self._peer.endpoint, START_SECONDS).get("/v1/status")
        except ClientError:
            return False
        why, now = status["broker"]["last_error"], time.monotonic()
        if why and status["broker"]["state"] != "up":
            self._failed_at = self._failed_at or now
            if now - self._failed_at > BROKER_SECONDS:
                raise Unexpected(
                    f"the broker cannot be used: {why}", f"its log is {self._peer.log}", "broker_unreachable"
                )
        return bool(status["ready"])


def _know_each_other(peers: Sequence[Peer]) -> bool:
    apis = [Api(peer.endpoint, START_SECONDS) for peer in peers]
    ids = {str(api.get("/v1/status")["peer_id"]) for api in apis}
    return all(ids <= {peer["peer_id"] for peer in api.get("/v1/peers")["peers"]} for api in apis)


def eventually(condition: Callable[[], bool], timeout: float) -> bool:
    """Poll `condition`; whether it became true within `timeout` seconds."""
    deadline = time.monotonic() + timeout
    while True:
        with interrupts_deferred():
            if condition():
                return True
        if time.monotonic() > deadline:
            return False
        time.sleep(POLL_INTERVAL)
