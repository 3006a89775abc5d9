"""Matching of whois requests, and the brief and rich capability lists (spec section 2)."""

import re
from collections.abc import Container, Sequence
from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from aghbus.protocol.agh.bodies import Greet, PeerCard
from aghbus.protocol.agh.capability_digest import capability_digest
from aghbus.protocol.agh.limits import PROTOCOL
from aghbus.protocol.base.text import shorten, trim

BRIEF_KEY: Final = "agh.capabilities_brief"
INCLUDE_KEY: Final = "agh.include"
FILTER_KEY: Final = "agh.capability_ids"
CATALOG_KEY: Final = "agh.capability_catalog"
CATALOG: Final = "capability_catalog"
TASK_WRITE: Final = "task.write"
"""A capability that other implementations accept in signed cards only: they refuse a greet without a proof that has it."""
SUMMARY_KEY: Final = "aghbus.summary"  # in ext of a whois response: what the greets of the peer have as summary
LAST_ANSWER_KEY: Final = (
    "aghbus.last_answer"  # in ext of a whois response: true if the next may be left out, for its limit
)
VERSION_KEY: Final = "aghbus.version"  # in ext of greets and whois responses: the version of the sender's daemon
INSTANCE_KEY: Final = "aghbus.instance"
"""In ext of greets and of answers to whois: the start of the daemon in Unix milliseconds (13 digits, 0 with `take_over`), `-`, and
16 random hexadecimal digits. It also announces acknowledgements (protocol/agh/delivery/acks.py)."""
COPY_KEY: Final = "aghbus.copy"
"""Beside it: a MAC by which a copy of the store recognizes the other one. Without a copy nobody can make a daemon give way."""
MAX_SUMMARY_CHARS: Final = 1_024  # of a peer's summary that are kept

_VERSION: Final = re.compile(r"[0-9A-Za-z.+-]{1,32}").fullmatch


class Record(msgspec.Struct, frozen=True):
    """One capability of a catalog: `document` is the full record as sent on the wire, digest included."""

    id: str
    summary: str
    digest: str
    document: dict[str, Any]


def matches(query: str, card: PeerCard) -> bool:
    """Exact match, after trimming, on peer id, display name, capability, profile, artifact type or trust mode.

    An empty query matches every peer.
    """
    wanted = trim(query)
    if not wanted:
        return True
    return (
        wanted in (card.peer_id, card.display_name)
        or wanted in card.capabilities
        or wanted in card.profiles_supported
        or wanted in card.artifacts_supported
        or wanted in card.trust_modes_supported
    )


def should_answer(query: str, to: str | None, card: PeerCard) -> bool:
    """Whether we answer: always for a directed request, if `query` matches `card` for a broadcast."""
    return to is not None or matches(query, card)


def build_card(
    peer_id: str,
    *,
    display_name: str | None = None,
    capabilities: Sequence[str] = (),
    catalog: Sequence[Record] = (),
    profiles: Sequence[str] = (PROTOCOL,),
    artifacts: Sequence[str] = ("capability",),
    trust_modes: Sequence[str] = ("unverified",),
) -> PeerCard:
    """Our own card: the ids of `catalog` in its order, then the ids in `capabilities` that are not in the catalog.

    With a catalog, the brief has one entry for each of these ids, in the same order; the summary of a bare id is the id.
    """
    summaries = {record.id: record.summary for record in catalog}
    summaries |= {name: name for name in capabilities if name not in summaries}
    return PeerCard(
        peer_id=peer_id,
        display_name=display_name,
        profiles_supported=tuple(profiles),
        capabilities=tuple(summaries),
        artifacts_supported=tuple(artifacts),
        trust_modes_supported=tuple(trust_modes),
        ext={BRIEF_KEY: [{"id": name, "summary": text} for name, text in summaries.items()]} if catalog else None,
    )


def wants_catalog(ext: dict[str, Any]) -> bool:
    """Whether a whois request asks for full capability records; unknown entries of the list are ignored."""
    include = ext.get(INCLUDE_KEY)
    return isinstance(include, list) and CATALOG in include


def is_reference_card(card: PeerCard) -> bool:
    """Whether this is a card as the Go reference makes it (May 2026): no trust modes, and a brief of each capability."""
    brief = (card.ext or {}).get(BRIEF_KEY, [])
    briefed = tuple(entry.get("id") for entry in brief if isinstance(entry, dict)) if isinstance(brief, list) else None
    lists = card.profiles_supported, card.artifacts_supported, card.trust_modes_supported
    return lists == ((PROTOCOL,), ("capability",), ()) and briefed == card.capabilities and "@" not in card.peer_id


def rich_response(card: PeerCard, catalog: Sequence[Record], ext: dict[str, Any]) -> tuple[PeerCard, dict[str, Any]]:
    """The card and the envelope's `ext` of the response to a request with `ext`.

    Without `agh.include` the response has no catalog. With `agh.capability_ids` the records, and the card's capabilities and
    brief, are filtered; unknown ids give empty lists. Ids are trimmed. A filter that is not a list is an empty one. A bare id
    beside the catalog has a record without a description: other implementations drop a catalog that lacks an id of the card.
    """
    if not wants_catalog(ext):
        return card, {}
    if FILTER_KEY in ext:
        given = ext[FILTER_KEY]
        wanted = {trim(name) for name in given if isinstance(name, str)} if isinstance(given, list) else set()
        card = _filtered(card, wanted)
    documents = {record.id: record.document for record in catalog}
    records = [documents.get(name) or _undescribed(name) for name in card.capabilities] if catalog else []
    return card, {CATALOG_KEY: {"capabilities": records}}


def _undescribed(name: str) -> dict[str, Any]:
    document = {"id": name, "summary": name, "outcome": "not described"}
    return {**document, "digest": capability_digest(document)}


def _filtered(card: PeerCard, wanted: Container[str]) -> PeerCard:
    """Our own card with the wanted capabilities alone."""
    names = tuple(name for name in card.capabilities if name in wanted)
    if card.ext is None:
        return msgspec.structs.replace(card, capabilities=names)
    brief = [entry for entry in card.ext[BRIEF_KEY] if entry["id"] in wanted]
    return msgspec.structs.replace(card, capabilities=names, ext={**card.ext, BRIEF_KEY: brief})


def summary_of(body: object, ext: dict[str, Any]) -> str | UnsetType | None:
    """The sender's summary in a greet, or in the `ext` of a whois response, cut to MAX_SUMMARY_CHARS.

    UNSET in a response without one.
    """
    said = body.summary if isinstance(body, Greet) else ext.get(SUMMARY_KEY, UNSET)
    if isinstance(said, str):
        return shorten(said, MAX_SUMMARY_CHARS) or None
    return None if isinstance(body, Greet) else UNSET


def version_of(ext: dict[str, Any]) -> str:
    """The version of the sender's daemon, "" if it names none: it is older than 0.1.0."""
    said = ext.get(VERSION_KEY)
    return said if isinstance(said, str) and _VERSION(said) else ""
