"""What most parts of a daemon use, and what itself uses no part."""

import logging
from dataclasses import dataclass, field
from functools import partial
from typing import Final

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.base.logs import EventLimiter
from aghbus.daemon.base.metrics import Counters
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.state.identity import Identity

_LOG_LINES_PER_MINUTE: Final = 6  # of one kind


@dataclass(frozen=True, slots=True)
class DaemonContext:
    """`log_limiter` writes the log lines that other peers can provoke."""

    settings: LiveSettings
    identity: Identity
    clock: Clock = field(default_factory=Clock)
    counters: Counters = field(default_factory=Counters)
    log_limiter: EventLimiter = field(
        default_factory=partial(EventLimiter, logging.getLogger("aghbus.node"), _LOG_LINES_PER_MINUTE)
    )
