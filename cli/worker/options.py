"""The options of a worker, fixed for the life of the process."""

from __future__ import annotations

import os
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any, Literal

import msgspec

from aghbus.cli.worker import confine
from aghbus.client.locate import locations
from aghbus.host.locations import FALLBACK_NAME
from aghbus.protocol.agh.bodies import asked_capability

TYPE_CHECKING = False
if TYPE_CHECKING:
    from aghbus.host.tracing import Tracing
    from aghbus.protocol.api.messages import Message

WithoutWork = Literal["run", "acknowledge", "leave"]
CAPABILITY = "{capability}"
"""Placeholder in the command line of `aghctl serve`."""


@dataclass(frozen=True, slots=True)
class CommandOptions:
    """The options of a worker that runs a command. Times are in seconds. `accept` maps `intent`, `from`, `kind` and `trust` to
    accepted values (no key: all values). `others`: also of peers that were not admitted.

    `queue` is the number of works that are left in the inbox while no slot is free; more are rejected. `rerun` runs a command again
    if its worker died. `max_jobs` is the number of jobs after which the worker exits. `pass_env` names further variables of
    the worker's environment for the command, `limits` its resource limits (confine.LIMITS).
    `answer_within` is how long a work waits for the answer to a question. `sandbox` confines the command; None: no sandbox.
    `tracing` exports a span for each run of the command; None: no traces. `without_work` says what becomes of messages without a
    work.
    """

    command: tuple[str, ...]
    capabilities: tuple[str, ...]
    concurrency: int
    time_limit: float
    grace: float
    heartbeat: float
    drain: float
    answer_within: float
    artifacts: tuple[str, ...]
    cwd: str
    accept: dict[str, frozenset[str]]
    others: bool
    queue: int
    rerun: bool
    max_jobs: int | None
    pass_env: frozenset[str]
    limits: Mapping[str, int]
    sandbox: confine.Sandbox | None
    tracing: Tracing | None = None
    without_work: WithoutWork = "acknowledge"

    def fits(self, message: Message) -> bool:
        """Whether `message`, which opens a work or is without one, matches `accept`."""
        found: dict[str, object] = {"from": message.sender, "kind": message.kind, "trust": message.trust}
        if "intent" in self.accept:
            found["intent"] = (msgspec.json.decode(message.envelope).get("body") or {}).get("intent")
        return all(found[name] in values for name, values in self.accept.items())

    @property
    def needs_capability(self) -> bool:
        """Whether a work has to name a capability: the command line has it, and several are served."""
        return len(self.capabilities) > 1 and any(CAPABILITY in word for word in self.command)

    @property
    def supervised(self) -> bool:
        """Whether the process that is started is not the command but bwrap, its parent."""
        return self.sandbox is not None and bool(self.sandbox.bubblewrap)

    def command_line(self, input_path: str, message: dict[str, Any], socket: str | None = None) -> list[str]:
        """The command line for the job that `message` opened and whose input is in the file `input_path`. `socket` is that of
        the daemon. Raises ValueError."""
        command, sandbox = self._filled(message), self.sandbox
        if sandbox is not None:
            paths = (self.command[0], input_path, *(_shown(socket) if socket and self.supervised else ()))
            sandbox = sandbox._replace(read=(*sandbox.read, *paths))
        return confine.launched(command, self.limits, sandbox)

    def _filled(self, message: dict[str, Any]) -> tuple[str, ...]:
        """The command with `CAPABILITY` replaced by the served capability that `message` names, else by the only one served.

        Raises ValueError when it names none of them, which a worker with other options has taken: no other text of a peer becomes
        an argument.
        """
        if not self.capabilities or not any(CAPABILITY in word for word in self.command):
            return self.command
        named = asked_capability(message["envelope"].get("body") or {}, self.capabilities)
        if named is None and len(self.capabilities) == 1:
            named = self.capabilities[0]
        if named not in self.capabilities:
            raise ValueError(f"the work names no capability that is served here, and the command line has {CAPABILITY}")
        return tuple(word.replace(CAPABILITY, named) for word in self.command)


def _shown(socket: str) -> tuple[str, ...]:
    """What has to be mounted for the daemon's socket: its folder, which has the new one when the daemon restarts, if there are
    only sockets of daemons in it."""
    folder = socket.rpartition("/")[0]
    path = folder if folder == locations(FALLBACK_NAME, os.environ).socket_dir else socket
    return (path,) if os.path.exists(path) else ()  # noqa: PTH110 - pathlib is slow to load
