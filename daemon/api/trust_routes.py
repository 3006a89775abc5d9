"""The routes of trust (docs/trust.md)."""

from typing import Any, Final

from aghbus.daemon.api.handlers import Call
from aghbus.daemon.api.queries import ById, Query
from aghbus.daemon.api.route import Route
from aghbus.daemon.api.service import Service
from aghbus.protocol.api import trust as trust_api


class ByTrustVerb(Query, frozen=True):
    """A change of whom we listen to."""

    verb: trust_api.TrustVerb


async def rules(service: Service, call: Call[Any, Any, Any]) -> trust_api.TrustRulesResponse:
    """Whom we listen to."""
    return await service.trust_rules()


async def change(
    service: Service, call: Call[ByTrustVerb, Any, trust_api.TrustChangeRequest]
) -> trust_api.TrustChangeResponse:
    """One rule more or less."""
    return await service.trust_change(call.path.verb, call.ask)


async def why(service: Service, call: Call[ById, Any, Any]) -> trust_api.TrustExplainResponse:
    """Every check of a message."""
    return await service.trust_why(call.path.id)


TRUST_ROUTES: Final = (
    Route("GET", "/v1/trust", "Whom we listen to", trust_api.TrustRulesResponse, rules),
    Route(
        "POST",
        "/v1/trust/{verb}",
        "Change whom we listen to",
        trust_api.TrustChangeResponse,
        change,
        parameters=ByTrustVerb,
        ask=trust_api.TrustChangeRequest,
        errors=("not_found", "conflict", "refused"),
    ),
    Route(
        "GET",
        "/v1/trust/why/{id}",
        "Why a message was listened to or refused",
        trust_api.TrustExplainResponse,
        why,
        parameters=ById,
        errors=("not_found",),
    ),
)
