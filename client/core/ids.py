"""Ids that are made before the first send, so that every repetition of a request is the same request."""

from __future__ import annotations

import hashlib
import os
import time

from aghbus.protocol.agh.identifiers import uuid7_hex
from aghbus.protocol.api.leases import ENTROPY_BYTES, lease_token


def new_id(prefix: str) -> str:
    """A new id, which sorts by its time."""
    return prefix + uuid7_hex(time.time_ns() // 1_000_000, os.urandom(10))


def new_lease() -> str:
    """A token for a lease of this process."""
    return lease_token(f"worker.{os.getpid()}", time.time_ns() // 1_000_000, os.urandom(ENTROPY_BYTES))


def derived_id(prefix: str, *parts: str) -> str:
    """The same id for the same `parts`, in every process."""
    return prefix + hashlib.sha256("\0".join(parts).encode()).hexdigest()[:32]
