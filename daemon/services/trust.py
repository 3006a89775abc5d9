"""The part of the daemon's service that is about trust; the node's service inherits it."""

from functools import cached_property

from aghbus.daemon.services.trust_explain import why
from aghbus.daemon.services.trust_rules import TrustChanges
from aghbus.daemon.state.context import Core
from aghbus.protocol.api import trust as trust_api
from aghbus.protocol.errors import NotFound


class TrustService:
    """Whom a running daemon listens to, and why."""

    _core: Core

    @cached_property
    def _changes(self) -> TrustChanges:
        return TrustChanges(self._core)

    async def trust_rules(self) -> trust_api.TrustRulesResponse:
        """The policy that holds now, rule by rule."""
        core = self._core
        return trust_api.TrustRulesResponse(
            mode=core.trust.now.mode,
            first_use="pin" if core.settings.trust.first_use == "pin" else "off",
            peer_id=core.us,
            key_id=None if core.signer is None else core.signer.key_id,
            rules=self._changes.rules(),
        )

    async def trust_change(
        self, verb: trust_api.TrustVerb, ask: trust_api.TrustChangeRequest
    ) -> trust_api.TrustChangeResponse:
        """One change; it holds for everything that is decided from now on."""
        return await self._changes.change(verb, ask)

    async def trust_why(self, message_id: str) -> trust_api.TrustExplainResponse:
        """What we thought of the messages of this id, and would think now."""
        cases = await why(self._core, message_id)
        if not cases:
            raise NotFound(
                f"no message {message_id} is stored here or in quarantine",
                hint="`aghctl messages list` and `aghctl quarantine` show what is",
            )
        return trust_api.TrustExplainResponse(cases=cases)
