"""Maps AgentIdentifiers to peers and back (adapters.md, agentos).

Configured names come first: `agentId/instanceId`, then `agentId`. Otherwise `agentId.instanceId` is the peer id, unchanged and
only if agentId contains no dot, so that every peer id has one interpretation. With an empty instanceId, agentId alone is the
peer id.
"""

from aghbus.protocol.agh.identifiers import is_peer
from aghbus.protocol.formats.agentos.message import AgentIdentifier
from aghbus.protocol.formats.common import error, warning
from aghbus.protocol.formats.model import AgentMap, Finding


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
    """The identifier of a peer: its configured name, else its peer id split at the first dot, else the peer id alone."""
    name = agents.name_of(peer)
    if name != peer:
        agent, slash, instance = name.partition("/")
        return AgentIdentifier(agent, instance) if slash else AgentIdentifier(name, peer)
    agent, _, instance = peer.partition(".")
    return AgentIdentifier(agent, instance) if instance else AgentIdentifier(peer, "")


def reads_back(identity: AgentIdentifier, peer: str, agents: AgentMap, path: str) -> tuple[Finding, ...]:
    """A warning when the identifier does not map back to `peer`."""
    if peer_of(identity, agents, path) == peer:
        return ()
    return (warning(path, "agent_map", f"{peer} has no agent identifier that maps back to it: configure a name"),)
