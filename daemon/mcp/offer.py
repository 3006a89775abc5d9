"""What a server offers: tools, resources, prompts. The server itself knows none by name."""

from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from dataclasses import dataclass, field
from typing import Any, Protocol

from aghbus.daemon.mcp.call import ToolCall
from aghbus.daemon.mcp.client import Wake
from aghbus.daemon.mcp.rpc import Object

Perform = Callable[[ToolCall, Object], Awaitable[Object]]
"""Carries out a call with its arguments, and returns the result: `content`, and what goes with it. Raises RequestError."""


@dataclass(frozen=True, slots=True)
class Tool:
    """One tool. `definition` is its entry in `tools/list`."""

    name: str
    definition: Object
    perform: Perform


class ResourceTable(Protocol):
    """The resources by URI."""

    @property
    def listed(self) -> Sequence[Object]:
        """The entries of `resources/list`."""

    @property
    def templates(self) -> Sequence[Object]:
        """The entries of `resources/templates/list`."""

    async def read(self, uri: str, wake: Wake) -> Sequence[Object] | None:
        """The contents for a session of which `wake` says whose messages it gets; None for a URI that names nothing."""

    def can_watch(self, uri: str) -> bool:
        """Whether changes of that resource can be watched."""

    def changes(self, uris: frozenset[str], wake: Wake) -> AsyncIterator[str]:
        """The URIs of `uris` as they change, for a session as in `read`."""


@dataclass(frozen=True, slots=True)
class Prompt:
    """One prompt. `definition` is its entry in `prompts/list`; `get` returns the messages for given arguments."""

    definition: Object
    get: Callable[[ToolCall, Mapping[str, Any]], Awaitable[Object]]


class Tasks(Protocol):
    """Tasks (extension io.modelcontextprotocol/tasks), each by its id."""

    async def get(self, task_id: str) -> Object:
        """The task with its result or its open requests. Raises NotFound."""

    async def update(self, task_id: str, responses: Object) -> None:
        """Answer open requests of the task; unknown ones are ignored. Raises RequestError."""

    async def cancel(self, task_id: str) -> None:
        """Cancel the task, if it can be. Raises NotFound."""


@dataclass(frozen=True, slots=True)
class Offer:
    """All that one server offers. Without `tasks` the extension is not offered."""

    name: str
    version: str
    instructions: str
    tools: Mapping[str, Tool]
    resources: ResourceTable
    prompts: Mapping[str, Prompt]
    tasks: Tasks | None = None
    more: Mapping[str, Perform] = field(default_factory=dict)
    """Other methods by name, with their parameters as arguments."""
    capabilities: Object = field(default_factory=dict)
    """Of those other methods."""
