"""Errors of the store.

AghbusError
├── StoreError              the store cannot be opened; what, why and a hint for the operator
│   ├── StoreLocked         another process uses it
│   ├── StoreTooNew         a newer version of this program wrote it
│   ├── StoreDamaged        the file is not a store, or its check failed
│   └── StoreUnopenable     the file system refuses, or an earlier version wrote it
└── RequestError
    └── Unavailable
        ├── StoreUnavailable    one write did not become durable, or a read failed: disk full, I/O error, closed
        └── InboxFull           the agent's inbox is at its capacity (spec section 5, Overload)
"""

from pathlib import Path

from aghbus.protocol.base.errors import AghbusError, Unavailable


class StoreError(AghbusError):
    """The store at `path` cannot be used. `cause` says why, `hint` what to do about it."""

    def __init__(self, path: Path, cause: str, *, hint: str) -> None:
        super().__init__(f"store {path}: {cause}")
        self.path = path
        self.cause = cause
        self.hint = hint


class StoreLocked(StoreError):
    """Another process uses the store. `pid` is the holder's, None when it left no readable note."""

    def __init__(self, path: Path, holder: str, pid: int | None) -> None:
        super().__init__(
            path,
            f"is in use by {holder}",
            hint="stop that daemon, or give this one its own name or store (--name)",
        )
        self.pid = pid


class StoreTooNew(StoreError):
    """The schema is of a later version than this program knows."""


class StoreDamaged(StoreError):
    """Not a store of this program, or its integrity check found damage."""


class StoreUnopenable(StoreError):
    """The file system refuses (permissions, a read-only or full disk), or the schema is of an earlier version."""


class StoreUnavailable(Unavailable):
    """The write did not become durable: nothing of it is in the store or in memory; or the file cannot be read. It may work
    later."""


class InboxFull(Unavailable):
    """`capacity` messages are in the inbox: the envelope is neither committed nor remembered (spec section 5,
    Overload)."""

    def __init__(self, capacity: int) -> None:
        super().__init__(f"the inbox is full: {capacity} messages", hint="read some: aghctl inbox next --ack")
        self.capacity = capacity
