"""The settings of the bridge and of each foreign format."""

from typing import Annotated, Final

import msgspec

from aghbus.daemon.config.layers import Key
from aghbus.daemon.config.value_types import CARD_TEXT, FilePath, Switch, Text, Texts, choice
from aghbus.protocol.agh.identifiers import is_peer
from aghbus.protocol.base.text import has_control, is_blank, trim

_FILE: Final = FilePath()


def _is_agent_entry(text: str) -> bool:
    name, _, peer = text.rpartition("=")
    return not is_blank(name) and name == trim(name) and not has_control(name) and is_peer(peer)


_AGENT: Final = Text("NAME=PEER, an agent's name as its messages have it and a peer id", _is_agent_entry)
_PEER: Final = Text("a peer id", is_peer)


class BridgeSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Agents of foreign formats (docs/adapters/): the peers for the names in their messages."""

    agents: Annotated[
        tuple[str, ...], Key(Texts(_AGENT), "agent names and their peers", reload=True, flag="--bridge-agent")
    ] = ()
    lookup: Annotated[
        str,
        Key(
            choice("off", "display_name", "capability", "both"),
            "how a name that is neither in bridge.agents nor a peer id is looked up among present peers",
            reload=True,
        ),
    ] = "off"


class SentientSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Format sentient."""

    user: Annotated[str | None, Key(_PEER, "peer for messages to the agent `user`", reload=True)] = None
    memory_agent: Annotated[str | None, Key(_PEER, "peer that is notified of each chain that ended", reload=True)] = (
        None
    )
    final_agent: Annotated[
        str | None,
        Key(_PEER, "peer that gets the results of all branches together, if agents of branches name it", reload=True),
    ] = None
    log_root: Annotated[
        str | None, Key(_FILE, "folder for system/logs/YYYYMMDD.log; unset: no log files", reload=True)
    ] = None


class HumanInLoopSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Format humaninloop."""

    feature_root: Annotated[
        str | None,
        Key(CARD_TEXT, "prefix that paths of artifacts are relative to, unless the input names one", reload=True),
    ] = None
    apply_root: Annotated[
        str | None, Key(_FILE, "folder below which chains write artifacts; unset: they write none", reload=True)
    ] = None


class AgentOsSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Format agentos."""

    strict: Annotated[bool, Key(Switch(), "refuse message ids that are not UUIDs of version 4", reload=True)] = False
    manifest: Annotated[
        str | None, Key(_FILE, "file of known agent ids, a JSON list or one a line; unset: any", reload=True)
    ] = None


class SacpSettings(msgspec.Struct, frozen=True, kw_only=True):
    """Format sacp."""

    wire_thought: Annotated[
        bool, Key(Switch(), "include thoughts in messages; false: only our audit table has them", reload=True)
    ] = True
    guardrails: Annotated[
        str | None, Key(_FILE, "file of patterns, `name: pattern` a line, that withhold a message", reload=True)
    ] = None
