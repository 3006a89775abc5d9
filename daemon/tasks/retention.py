"""Removing old envelopes and entries of the audit log at the start and then at a fixed interval, by age and size."""

import asyncio
from typing import Final

from aghbus.daemon.state.clock_changes import ClockChanges
from aghbus.daemon.state.context import DaemonContext
from aghbus.daemon.state.lanes import Lanes
from aghbus.daemon.state.trust_policy import LivePolicy
from aghbus.store.audit.pruning import sweep_audit
from aghbus.store.engine.database import Store
from aghbus.store.errors import StoreUnavailable
from aghbus.store.retention import RetentionPolicy, sweep

_INTERVAL: Final = 30.0  # seconds between two sweeps


class Retention:
    """Sweeps the store of one daemon; also flushes the log limiter."""

    def __init__(
        self, context: DaemonContext, store: Store, clock_changes: ClockChanges, trust: LivePolicy, lanes: Lanes
    ) -> None:
        self._store = store
        self._settings = context.settings
        self._identity = context.identity
        self._lanes = lanes
        self._clock_changes = clock_changes
        self._trust = trust
        self._counters = context.counters
        self._log_limiter = context.log_limiter

    async def run(self) -> None:
        """Sweep until cancelled."""
        while True:
            try:
                await self._sweep()
            except StoreUnavailable:
                self._counters.add("retention.interrupted")  # the next sweep continues
            self._log_limiter.flush()
            await asyncio.sleep(_INTERVAL)

    async def _sweep(self) -> None:
        bounds, log = self._settings.current.store, self._settings.current.audit
        now_ms = self._clock_changes.retention_now_ms()
        policy = RetentionPolicy(max_age=bounds.retention_age, max_bytes=bounds.retention_size, is_other=self._is_other)
        swept = await sweep(self._store, policy, now_ms)
        await sweep_audit(self._store, log.max_rows, log.max_age, now_ms)
        await self._trust.forget_unused(now_ms)
        self._counters.add("retention.sweeps")
        self._counters.add("retention.envelopes", swept.envelopes)

    def _is_other(self, peer: str) -> bool:
        return peer not in self._identity and not self._lanes.is_contact(peer)
