"""The four formats by name. Adapters are imported on demand: most commands need at most one."""

from __future__ import annotations

from typing import TYPE_CHECKING, Final

import msgspec

from aghbus.protocol.base.errors import InvalidRequest

if TYPE_CHECKING:
    from aghbus.protocol.formats.agentos.adapter import AgentOsOptions
    from aghbus.protocol.formats.humaninloop.adapter import HumanInLoopOptions
    from aghbus.protocol.formats.model import Adapter
    from aghbus.protocol.formats.sacp.adapter import SacpOptions
    from aghbus.protocol.formats.sentient.adapter import SentientOptions

FORMATS: Final = ("sentient", "humaninloop", "agentos", "sacp")
"""In the order of adapters.md."""


class AdapterOptions(msgspec.Struct, frozen=True, kw_only=True):
    """The options of every format; None: its defaults."""

    sentient: SentientOptions | None = None
    humaninloop: HumanInLoopOptions | None = None
    agentos: AgentOsOptions | None = None
    sacp: SacpOptions | None = None


def adapter_for(name: str, options: AdapterOptions) -> Adapter:
    """The adapter of format `name`. Raises InvalidRequest for an unknown name or invalid options."""
    match name:
        case "sentient":
            from aghbus.protocol.formats.sentient.adapter import Sentient, SentientOptions

            return Sentient(options.sentient or SentientOptions())
        case "humaninloop":
            from aghbus.protocol.formats.humaninloop.adapter import HumanInLoop, HumanInLoopOptions

            return HumanInLoop(options.humaninloop or HumanInLoopOptions())
        case "agentos":
            from aghbus.protocol.formats.agentos.adapter import AgentOs, AgentOsOptions

            return AgentOs(options.agentos or AgentOsOptions())
        case "sacp":
            from aghbus.protocol.formats.sacp.adapter import Sacp, SacpOptions

            return Sacp(options.sacp or SacpOptions())
    raise InvalidRequest(f"{name}: is not a format", hint=f"one of {', '.join(FORMATS)}")
