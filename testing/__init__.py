"""What tests of an agent need: daemons of their own, and jobs without a daemon (docs/testing.md).

The names are loaded when they are first used.
"""

from __future__ import annotations

TYPE_CHECKING = False
if TYPE_CHECKING:
    from aghbus.testing.fake_job import FakeAsyncJob as FakeAsyncJob
    from aghbus.testing.fake_job import FakeJob as FakeJob
    from aghbus.testing.fake_job import Report as Report
    from aghbus.testing.peer import Peer as Peer
    from aghbus.testing.sandbox import Sandbox as Sandbox

__all__ = ["FakeAsyncJob", "FakeJob", "Peer", "Report", "Sandbox"]

_HOMES = {"Peer": "peer", "Sandbox": "sandbox"}


def __getattr__(name: str) -> object:
    if name in __all__:
        from importlib import import_module

        return getattr(import_module(f"aghbus.testing.{_HOMES.get(name, 'fake_job')}"), name)
    raise AttributeError(f"module {__name__!r} has no attribute {name!r}")


def __dir__() -> list[str]:
    return [*globals(), *__all__]
