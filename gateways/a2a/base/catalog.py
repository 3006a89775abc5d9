"""What agents can do, as their Agent Cards show it: from the presence and the catalogs of peers, kept for half a minute."""

from __future__ import annotations

import asyncio
import time
from typing import Any, Final, NamedTuple

from aghbus.client import ClientError
from aghbus.gateways.a2a.base.bus import Agent, Bus
from aghbus.protocol.agh.discovery import BRIEF_KEY
from aghbus.protocol.formats.a2a.parts import Json

FRESH_SECONDS: Final = 30.0


class About(NamedTuple):
    """`card` has `display_name`, `summary` and `version` as far as known; `records` are those of capabilities, whole or brief."""

    card: Json
    records: list[Json]

    @property
    def skills(self) -> list[str]:
        """The ids of the capabilities."""
        return [str(record["id"]) for record in self.records]


class Catalog:
    """What is known of agents."""

    def __init__(self, bus: Bus) -> None:
        self._bus = bus
        self._known: dict[Agent, tuple[float, About]] = {}
        self._reading: dict[Agent, asyncio.Future[About]] = {}

    async def about(self, agent: Agent) -> About:
        """What is known now; a peer that does not answer keeps what it said before. Raises ClientError."""
        read, known = self._known.get(agent, (0.0, None))
        if known is not None and time.monotonic() < read + FRESH_SECONDS:
            return known
        if (reading := self._reading.get(agent)) is None:  # one asks for all who wait
            reading = self._reading[agent] = asyncio.ensure_future(self._read(agent))
            reading.add_done_callback(lambda _: self._reading.pop(agent))
        try:
            known = await asyncio.shield(reading)
        except ClientError:
            if known is None:
                raise
        self._known[agent] = time.monotonic(), known
        return known

    async def _read(self, agent: Agent) -> About:
        return await (self._of_peer(agent) if agent.peer else self._of_capability(agent.capability or ""))

    async def _of_peer(self, agent: Agent) -> About:
        answers = (await self._bus.call(self._bus.client.whois(to=agent.peer, first=True, catalog=True))).peers
        seen = (await self._bus.call(self._bus.client.peers(all=True))).peers
        entry = next((one for one in seen if agent.is_peer(one.peer_id)), None)
        card = dict(answers[0].card if answers else entry.card if entry else {})
        records = answers[0].capabilities if answers else None
        summary = (answers[0].summary if answers else None) or (entry.summary if entry else None)
        about = {"display_name": card.get("display_name"), "summary": summary, "version": entry and entry.version}
        return About(about, _records(records, card))

    async def _of_capability(self, capability: str) -> About:
        client = self._bus.client
        asked = client.whois(query=capability, catalog=True, capability_ids=[capability])
        for answer in (await self._bus.call(asked)).peers:
            for record in _records(answer.capabilities, answer.card):
                if record["id"] == capability:
                    return About({"display_name": capability, "summary": record.get("summary")}, [record])
        return About({"display_name": capability}, [{"id": capability}])


def _records(records: list[dict[str, Any]] | None, card: Json) -> list[Json]:
    """The records of a peer, else the brief ones of its card, else its bare ids."""
    ext = card.get("ext")
    brief = ext.get(BRIEF_KEY) if isinstance(ext, dict) else None
    names = [name for name in card.get("capabilities") or () if isinstance(name, str) and name]
    found = {name: {"id": name} for name in names}
    for listed in (brief, records):
        entries = [one for one in listed if isinstance(one, dict)] if isinstance(listed, list) else []
        found.update({one["id"]: one for one in entries if isinstance(one.get("id"), str) and one["id"]})
    return [*found.values()]
