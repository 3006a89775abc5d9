"""Agent Cards of peers and capabilities: what presence and catalogs know, as A2A 1.0 has it."""

from collections.abc import Iterable, Mapping
from typing import Any, Final

import msgspec

from aghbus.protocol.formats.a2a.parts import Json
from aghbus.protocol.formats.derived_ids import canonical, digest

PROTOCOL_VERSION: Final = "1.0"
INPUT_MODES: Final = (
    *("text/plain", "text/markdown", "text/html", "text/csv", "application/json", "application/xml", "application/pdf"),
    *(
        "application/zip",
        "application/octet-stream",
        "image/png",
        "image/jpeg",
        "image/webp",
        "audio/mpeg",
        "audio/wav",
    ),
    "video/mp4",
)
"""Media types of parts that every agent takes; a part of another one is refused."""
OUTPUT_MODES: Final = ("text/plain", "application/json", "application/octet-stream")
MAX_EXAMPLES: Final = 20

_GENERAL: Final = {
    "id": "work",
    "name": "Work",
    "description": "Takes a task as text, with files and data, and reports on it.",
    "tags": ["aghbus"],
}


class Listener(msgspec.Struct, frozen=True, kw_only=True):
    """What all cards of one gateway have in common. `bindings`: protocol binding and URL, where `{agent}` is the agent's name."""

    bindings: tuple[tuple[str, str], ...]
    schemes: dict[str, Json] = msgspec.field(default_factory=dict)
    has_push: bool = False
    input_modes: tuple[str, ...] = INPUT_MODES


def card_of(
    name: str,
    listener: Listener,
    about: Mapping[str, Any],
    records: Iterable[Mapping[str, Any]],
    *,
    extended: bool = False,
) -> Json:
    """The card of the agent `name`. `about` has `display_name`, `summary` and `version` as far as they are known; `records` are
    those of its capabilities, whole or brief. `extended`: for a caller that was authenticated, with the whole records."""
    skills = [_skill(record, extended=extended) for record in records if record.get("id")] or [_GENERAL]
    description = str(about.get("summary") or f"{name}, a peer on the AGH Network")
    card: Json = {
        "name": str(about.get("display_name") or name),
        "description": description,
        "version": str(about.get("version") or "1"),
        "supportedInterfaces": [
            _interface(binding, url.replace("{agent}", name), name) for binding, url in listener.bindings
        ],
        "capabilities": {
            "streaming": True,
            "pushNotifications": listener.has_push,
            "extendedAgentCard": bool(listener.schemes),
        },
        "defaultInputModes": [*listener.input_modes],
        "defaultOutputModes": [*OUTPUT_MODES],
        "skills": skills,
    }
    if listener.schemes:
        card["securitySchemes"] = listener.schemes
        card["securityRequirements"] = [{"schemes": {scheme: {"list": []}}} for scheme in listener.schemes]
    return card


def etag(card: Json) -> str:
    """The entity tag of a card: weak, because a signature may differ."""
    unsigned = {name: value for name, value in card.items() if name != "signatures"}
    return f'W/"{digest(canonical(unsigned))}"'


def _interface(binding: str, url: str, name: str) -> Json:
    made: Json = {"url": url, "protocolBinding": binding, "protocolVersion": PROTOCOL_VERSION}
    return {**made, "tenant": name} if binding == "GRPC" else made


def _skill(record: Mapping[str, Any], *, extended: bool) -> Json:
    identity, summary = str(record["id"]), str(record.get("summary") or record["id"])
    outcome = record.get("outcome")
    description = f"{summary}\n\nOutcome: {outcome}" if outcome else summary
    if extended:
        lists = {
            name: _texts(record, name)
            for name in ("context_needed", "artifacts_expected", "constraints", "requirements")
        }
        described = [
            f"{name.replace('_', ' ').capitalize()}: {'; '.join(texts)}" for name, texts in lists.items() if texts
        ]
        description = "\n\n".join([description, *described])
    skill: Json = {
        "id": identity,
        "name": summary if len(summary) <= 80 else identity,
        "description": description,
        "tags": [part for part in identity.split(".") if part] or [identity],
    }
    if examples := _texts(record, "examples")[:MAX_EXAMPLES]:
        skill["examples"] = examples
    return skill


def _texts(record: Mapping[str, Any], name: str) -> list[str]:
    value = record.get(name)
    return [entry for entry in value if isinstance(entry, str) and entry] if isinstance(value, list) else []
