"""What this daemon announces about itself: the active capability catalog, and the Peer Card made from it."""

from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.config.settings import Settings
from aghbus.daemon.state.catalog import Catalog
from aghbus.daemon.state.identity import Identity
from aghbus.protocol.agh.bodies import PeerCard
from aghbus.protocol.agh.discovery import build_card
from aghbus.protocol.agh.trust.trust import PROFILE


class OwnCard:
    """`catalog` is the active catalog, `problems` the reasons why a changed one is not."""

    def __init__(self, identity: Identity, settings: LiveSettings) -> None:
        self.catalog = Catalog()
        self.problems: tuple[str, ...] = ()
        self._identity = identity
        self._settings = settings
        self._made: tuple[Settings, Catalog, PeerCard] | None = None

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
