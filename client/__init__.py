"""The client of a daemon's local API: docs/client.md.

`Client` blocks, `AsyncClient` is for asyncio, `Worker` handles works. Their modules are loaded when a name of this package is first
used, because `aghctl` imports the package at every start and needs none of them.
"""

# ruff: noqa: F403, F405 - the names are given once, in `__all__`
from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from aghbus.client.core.core import WorkTimeout as WorkTimeout
    from aghbus.client.core.refusals import *
    from aghbus.client.errors import ClientError as ClientError
    from aghbus.client.errors import ConnectionLost as ConnectionLost
    from aghbus.client.errors import RefusedByDaemon as RefusedByDaemon
    from aghbus.client.errors import Unexpected as Unexpected
    from aghbus.client.errors import Unreachable as Unreachable
    from aghbus.client.errors import UsageError as UsageError
    from aghbus.client.http import Endpoint as Endpoint
    from aghbus.client.work.clients import AsyncClient as AsyncClient
    from aghbus.client.work.clients import Client as Client
    from aghbus.client.work.execution import current_job as current_job
    from aghbus.client.work.handle import AsyncWorkHandle as AsyncWorkHandle
    from aghbus.client.work.handle import WorkHandle as WorkHandle
    from aghbus.client.work.handlers import PayloadError as PayloadError
    from aghbus.client.work.handlers import ResultError as ResultError
    from aghbus.client.work.handlers import Retry as Retry
    from aghbus.client.work.job import AsyncJob as AsyncJob
    from aghbus.client.work.job import Job as Job
    from aghbus.client.work.job import JobCanceled as JobCanceled
    from aghbus.client.work.worker import Worker as Worker
    from aghbus.protocol.api.inbox import InboxItem as InboxItem
    from aghbus.protocol.api.messages import Event as Event
    from aghbus.protocol.api.messages import Message as Message
    from aghbus.protocol.api.peers import Peer as Peer
    from aghbus.protocol.api.works import WaitReason as WaitReason
    from aghbus.protocol.api.works import Work as Work

__all__ = [
    "ActorNotAllowed",
    "AsyncClient",
    "AsyncJob",
    "AsyncWorkHandle",
    "BadRequest",
    "Client",
    "ClientError",
    "Conflict",
    "ConnectionLost",
    "Endpoint",
    "Event",
    "Forbidden",
    "HeadTooLarge",
    "InboxItem",
    "Internal",
    "InvalidRequest",
    "InvalidTransition",
    "Job",
    "JobCanceled",
    "LeaseLost",
    "Message",
    "MessageRefused",
    "MethodNotAllowed",
    "NotFound",
    "PayloadError",
    "Peer",
    "Refused",
    "RefusedByDaemon",
    "RequestTimeout",
    "ResultError",
    "Retry",
    "SecretLike",
    "TargetTooLong",
    "TooLarge",
    "Unauthorized",
    "Unavailable",
    "Unexpected",
    "UnknownPath",
    "Unreachable",
    "UnsupportedMediaType",
    "UsageError",
    "WaitReason",
    "Work",
    "WorkClosed",
    "WorkContainerMismatch",
    "WorkHandle",
    "WorkTimeout",
    "Worker",
    "current_job",
]

_HOMES = (
    *("client.work.clients", "client.work.job", "client.work.worker", "client.work.handlers", "client.work.execution"),
    *("client.work.handle", "client.core.refusals", "client.errors", "client.http"),
    *("protocol.api.inbox", "protocol.api.messages", "protocol.api.peers", "protocol.api.works"),
)


def __getattr__(name: str) -> object:
    if name in __all__:
        from importlib import import_module

        for home in _HOMES:
            if (found := getattr(import_module(f"aghbus.{home}"), name, None)) is not None:
                globals()[name] = found
                return found
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
