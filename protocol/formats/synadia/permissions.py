"""The subjects that the bridge needs on a broker with permissions (docs/adapters/synadia.md)."""

from typing import Final, Literal

from aghbus.protocol.formats.synadia.names import CAPABILITY_AGENT, PEER_AGENT

INBOXES: Final = "_INBOX.agents.>"
"""Where answers arrive, at both sides: the prefix that the libraries of the protocol use."""
_OWN: Final = (PEER_AGENT, CAPABILITY_AGENT)
_VERBS: Final = ("PING", "INFO", "STATS")
_WHO_AM_I: Final = "$SYS.REQ.USER.INFO"


def permissions(direction: Literal["serve", "join"]) -> tuple[list[str], list[str]]:
    """What the user of the bridge may publish, and subscribe to."""
    if direction == "serve":
        publish = [f"agents.hb.{agent}.*.*" for agent in _OWN]
        subscribe = [f"agents.{verb}.{agent}.*.*" for agent in _OWN for verb in ("prompt", "status")]
        subscribe += [f"$SRV.{verb}{rest}" for verb in _VERBS for rest in ("", ".agents", ".agents.*")]
    else:
        publish = ["agents.prompt.*.*.*", "agents.status.*.*.*", "$SRV.INFO.agents", "$SRV.PING.agents.*"]
        subscribe = ["agents.hb.*.*.*"]
    return [*publish, _WHO_AM_I, INBOXES], [*subscribe, INBOXES]
