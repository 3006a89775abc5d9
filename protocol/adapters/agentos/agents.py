"""Which peer an AgentIdentifier names, and how a peer is written as one (adapters.md, agentos).

A configured name goes first: `agentId/instanceId`, then `agentId`. Else `agentId.instanceId` is the peer id, exactly as
written and only when agentId holds no dot, so that every peer id has one reading. An empty instanceId stands for none:
agentId alone is the peer id then.
"""

from aghbus.protocol.adapters.agentos.message import AgentIdentifier
from aghbus.protocol.adapters.common import error, warning
from aghbus.protocol.adapters.model import AgentMap, Finding
from aghbus.protocol.identifiers import is_peer


def peer_of(identity: AgentIdentifier, agents: AgentMap, path: str, *, own: bool = False) -> str | Finding:
    """The peer of an agent, or the error `agent_map` at `path`; `own` as for `AgentMap.peer_of`."""
    names = (f"{identity.agent_id}/{identity.instance_id}", identity.agent_id)
    for name in names:
        if name in agents.names:
            return agents.names[name]
    written = f"{identity.agent_id}.{identity.instance_id}" if identity.instance_id else identity.agent_id
    if "." not in identity.agent_id and is_peer(written):
        return written
    found = next((agents.found[name] for name in names if agents.found.get(name)), ())
    if len(found) == 1:
        return found[0]
    if found:
        return error(path, "agent_map", f"the agent {names[0]!r} is the name of {len(found)} peers")
    return agents.peer_of(names[0], path, own=own)


def identity_of(peer: str, agents: AgentMap) -> AgentIdentifier:
    """A peer as an agent: by its configured name, else its peer id cut at the first dot, else the peer id alone."""
    name = agents.name_of(peer)
    if name != peer:
        agent, slash, instance = name.partition("/")
        return AgentIdentifier(agent, instance) if slash else AgentIdentifier(name, peer)
    agent, _, instance = peer.partition(".")
    return AgentIdentifier(agent, instance) if instance else AgentIdentifier(peer, "")


def reads_back(identity: AgentIdentifier, peer: str, agents: AgentMap, path: str) -> tuple[Finding, ...]:
    """A warning when a message to this identity would not reach `peer`."""
    if peer_of(identity, agents, path) == peer:
        return ()
    return (warning(path, "agent_map", f"{peer} has no writing as an agent that leads back to it: configure a name"),)
