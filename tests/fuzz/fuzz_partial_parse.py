"""Target `partial_parse`: partial parsing of refused bytes, and the receipt to their sender."""

from collections.abc import Iterator
from typing import Any

from aghbus.protocol.agh.effects import Quarantine, Queue, Requeue
from aghbus.protocol.agh.envelope import KINDS, OPENING_KINDS, parse
from aghbus.protocol.agh.errors import Expired, Malformed, ProtocolError, UnsupportedKind
from aghbus.protocol.agh.identifiers import direct_id
from aghbus.protocol.agh.lifecycle import WorkView
from aghbus.protocol.agh.partial_parse import identity, partial_parse
from aghbus.protocol.agh.receipt_target import ReceiptTarget, source_of
from aghbus.protocol.agh.receive import Receiver, StoredState, refuse
from tests.fuzz import fuzz_parse
from tests.fuzz.oracles import NOW, dump, only, reading, same, vector_lines
from tests.support.wire import legible

_US = "patch-worker"


def check(raw: bytes) -> None:
    """Check the invariants for any bytes. Raises AssertionError."""
    document = reading(raw) or {}
    us = _text(document, "to") or _US
    joined = frozenset({(_text(document, "workspace_id"), _text(document, "channel"))})
    source = partial_parse(legible(raw), us, joined)
    assert partial_parse(legible(raw), us, frozenset()) is None, "a channel that was not joined was answered"
    _identity_is_that_of_the_document(raw, document)
    if source is not None:
        _source_is_what_was_received(source, document, us)
    try:
        envelope = parse(raw, NOW)
    except ProtocolError as error:
        for found in {type(error): error, Malformed: Malformed("any"), Expired: Expired("any")}.values():
            _answered_at_most_once(found, source, us, joined)
        return
    if source is not None and envelope.sender != us and envelope.surface == "thread":
        assert source == source_of(envelope), "partial_parse and parse differ for a valid envelope"


def seeds() -> Iterator[bytes]:
    """The vectors, those that are refused first."""
    for case in vector_lines("envelopes", "rules"):
        if not case["accept"]:
            yield dump(case["envelope"])
    yield from fuzz_parse.seeds()


def _identity_is_that_of_the_document(raw: bytes, document: dict[str, Any]) -> None:
    message_id, sender = identity(legible(raw))
    assert message_id in ("", document.get("id")) and sender in ("", document.get("from"))


def _source_is_what_was_received(source: ReceiptTarget, document: dict[str, Any], us: str) -> None:
    for field in ("id", "workspace_id", "channel", "kind", "work_id", "surface"):
        assert same(getattr(source, field), document[field]), field
    assert source.sender == document["from"] and document["to"] == us
    assert source.kind in OPENING_KINDS or source.kind not in KINDS
    if source.surface == "direct":
        assert source.container == direct_id(source.workspace_id, source.channel, source.sender, us)


def _answered_at_most_once(
    error: ProtocolError, source: ReceiptTarget | None, us: str, joined: frozenset[tuple[str, str]]
) -> None:
    receiver = Receiver(self_id=us, now=NOW, mint=lambda: "msg_minted", channels=joined)
    for view in (StoredState(), StoredState(work=_work_of(source, us))) if source is not None else (StoredState(),):
        effects = refuse(error, source, view, receiver)
        assert isinstance(effects[0], Quarantine) and effects[0].reason == error.reason
        assert only(effects[1:], Queue, Requeue), "a refusal changes nothing and reaches no agent"
        fuzz_parse.check_refusals_come_last(effects)
        for effect in effects:
            if isinstance(effect, Queue):
                assert source is not None and source.sender != us
                fuzz_parse.check_answer(effect, us, source.sender)
                assert effect.envelope.container == source.container
                assert view.work is None or isinstance(error, Expired | UnsupportedKind), "an open work was failed"


def _work_of(source: ReceiptTarget | None, us: str) -> WorkView | None:
    if source is None or source.sender == us:
        return None
    return WorkView(
        workspace_id=source.workspace_id,
        channel=source.channel,
        work_id=source.work_id,
        surface=source.surface,
        container=source.container,
        initiator=source.sender,
        target=us,
        state="working",
        opening_id=source.id,
    )


def _text(document: dict[str, Any], field: str) -> str:
    value = document.get(field)
    return value if isinstance(value, str) else ""
