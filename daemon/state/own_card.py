"""What this daemon announces about itself: the active capability catalog, and the Peer Card made from it."""

import math

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.config.layers import Problem
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.config.settings import Settings
from aghbus.daemon.state.catalog import Catalog, CatalogError
from aghbus.daemon.state.identity import Identity
from aghbus.protocol.agh.bodies import PeerCard
from aghbus.protocol.agh.discovery import Record, build_card
from aghbus.protocol.agh.limits import MAX_LIST_ITEMS
from aghbus.protocol.agh.trust.trust import PROFILE


class OwnCard:
    """`problems` are the reasons why a changed catalog is not used."""

    def __init__(self, identity: Identity, settings: LiveSettings, clock: Clock) -> None:
        self.problems: tuple[str, ...] = ()
        self._identity = identity
        self._settings = settings
        self._clock = clock
        self._configured = Catalog()
        self._announced: dict[str, tuple[float, Record]] = {}  # by id: until when (monotonic)
        self._merged = self._configured
        self._ends = math.inf  # when the first of the announced ones does
        self._made: tuple[Settings, Catalog, PeerCard] | None = None

    @property
    def catalog(self) -> Catalog:
        """The operator's catalog with what processes announce; the same object as long as nothing in it changes."""
        if self._clock.monotonic() >= self._ends:
            self._merge()
        return self._merged

    @catalog.setter
    def catalog(self, configured: Catalog) -> None:
        """Replace the operator's catalog, which goes before what processes announce under the same id."""
        self._configured = configured
        self._merge()

    def announce(self, record: Record, expires_in: float) -> bool:
        """Announce a record for `expires_in` seconds more, 0 withdraws it. Returns whether the catalog changes by that.

        Raises CatalogError if the operator's catalog has another record with its id, or it were too many.
        """
        mine = next((one for one in self._configured.records if one.id == record.id), record)
        if mine.digest != record.digest:
            raise CatalogError([Problem(record.id, "catalog", "has another record of the operator")])
        before = self.catalog
        if record.id not in self._announced and len(before.records) >= MAX_LIST_ITEMS and expires_in:
            raise CatalogError([Problem(record.id, "catalog", f"has {MAX_LIST_ITEMS} records already")])
        self._announced[record.id] = self._clock.monotonic() + expires_in, record
        self._merge()
        return self._merged is not before

    def announced_for(self, capability_id: str) -> float | None:
        """Seconds for which a capability is still announced by a process; None for one of the operator's."""
        end, _ = self._announced.get(capability_id, (None, None))
        return None if end is None else end - self._clock.monotonic()

    def _merge(self) -> None:
        now, configured = self._clock.monotonic(), self._configured
        self._announced = {name: one for name, one in self._announced.items() if one[0] > now}
        self._ends = min((end for end, _ in self._announced.values()), default=math.inf)
        own = {record.id for record in configured.records}
        records = (*configured.records, *(one for _, one in self._announced.values() if one.id not in own))
        known = {record.id for record in records}
        merged = Catalog(records, tuple(name for name in configured.claims if name not in known), configured.path)
        if merged != self._merged:
            self._merged = merged

    def card(self) -> PeerCard:
        """Our Peer Card; the same object as long as nothing in it changes."""
        settings, catalog = self._settings.current, self.catalog
        if self._made is None or self._made[0] is not settings or self._made[1] is not catalog:
            self._made = settings, catalog, self._make(settings, catalog)
        return self._made[2]

    def _make(self, settings: Settings, catalog: Catalog) -> PeerCard:
        signed = self._identity.signer is not None
        return build_card(
            self._identity.self_id,
            display_name=settings.display_name,
            capabilities=catalog.claims,
            catalog=catalog.records,
            profiles=tuple(dict.fromkeys((*settings.profiles, PROFILE))) if signed else settings.profiles,
            artifacts=settings.artifacts_supported,
            trust_modes=_trust_modes(settings, signed=signed),
        )


def _trust_modes(settings: Settings, *, signed: bool) -> tuple[str, ...]:
    """The profiles that we send and accept (specification, section 8, the last rule)."""
    if not signed:
        return ("unverified",)
    return ("verified",) if settings.trust.mode == "require" else ("unverified", "verified")
