"""Target `adapters`: any text submitted in every format, and any envelope delivered."""

import json
from collections.abc import Iterator
from typing import Any, Final

import msgspec

from aghbus.protocol.agh.envelope import parse
from aghbus.protocol.agh.errors import ProtocolError
from aghbus.protocol.agh.send import Draft, build
from aghbus.protocol.base.errors import InvalidRequest
from aghbus.protocol.formats.derived_ids import same_json
from aghbus.protocol.formats.model import Adapter, AgentMap, Delivered, SubmitPlan
from aghbus.protocol.formats.registry import FORMATS, AdapterOptions, adapter_for
from aghbus.protocol.formats.strict_json import check_value
from tests.fuzz.oracles import NOW, any_json, dump, vector_lines
from tests.support.bridge_peer import CHANNEL, WORKSPACE, BridgePeer

ASKER: Final = "one-brain.ob-001"
DOER: Final = "macro-analyst.ma-001"
_adapters: dict[str, Adapter] = {}


def check(raw: bytes) -> None:
    """Check the invariants for any bytes. Raises AssertionError."""
    value = any_json(raw)
    for adapter in adapters().values():
        for opened in (False, True):
            _check_submit(adapter, raw, opened=opened)
        if value is not None:
            _check_carried(adapter, value)
        _check_native(adapter, raw)


def seeds() -> Iterator[bytes]:
    """The messages of the formats' own pages, and envelopes."""
    for case in vector_lines("seed_examples"):
        yield dump(case["value"])
    yield b'```json\n{"thought": "", "status": "success", "message": "done", "data": {"score": 0.9}}\n```'
    for case in vector_lines("kind_examples", "rules"):
        yield dump(case["envelope"])


def adapters() -> dict[str, Adapter]:
    """Every format's adapter with its default options."""
    if not _adapters:
        _adapters.update((name, adapter_for(name, AdapterOptions())) for name in FORMATS)
    return _adapters


def _peer(adapter: Adapter, us: str, other: str) -> BridgePeer:
    """The peer `us`; every agent name that is not a peer id maps to one of the two."""
    peer = BridgePeer(us, adapter, now=NOW, agents=AgentMap(own=us, other=other), target=other)
    peer.whole = False
    return peer


def pair(adapter: Adapter, *, opened: bool) -> tuple[BridgePeer, BridgePeer]:
    """The asker and the doer; `opened`: the asker has opened a work with the doer."""
    asker, doer = _peer(adapter, ASKER, DOER), _peer(adapter, DOER, ASKER)
    if opened:
        doer.receive(asker.say(_draft("say", {"text": "do it"}, work_id="work_1")))
    return asker, doer


def _check_submit(adapter: Adapter, raw: bytes, *, opened: bool) -> None:
    """The doer's agent submits: the envelopes are valid, and the asker's agent gets the same message."""
    asker, doer = pair(adapter, opened=opened)
    plan = doer.adapter.submit(raw, doer.context(), doer)
    _check_plan(plan, doer, raw)
    for draft in plan.drafts:
        try:
            envelope = doer.say(draft)
        except InvalidRequest as error:
            raise AssertionError(f"{adapter.name}: a draft that cannot be sent: {error}") from error
        doer.record(plan, [envelope])
        if envelope.to != asker.us:
            continue
        delivered = asker.receive(envelope)
        _check_delivered(delivered)
        if delivered.message is not None and f"{adapter.name}.message" in envelope.extensions():
            assert not delivered.native, (adapter.name, delivered.findings)
            assert same_json(delivered.message, plan.message), f"{adapter.name}: the message changed on the way"
    if plan.drafts:
        again = doer.adapter.submit(raw, doer.context(), doer)
        _check_plan(again, doer, raw)
        assert not {draft.id for draft in again.drafts} - {draft.id for draft in plan.drafts} or opened, adapter.name


def _check_carried(adapter: Adapter, value: Any) -> None:
    """A hostile peer puts any value where the message rides."""
    asker, doer = pair(adapter, opened=True)
    ext = {f"{adapter.name}.message": value, f"{adapter.name}.findings": value}
    for draft in (
        _draft("say", {"text": "x"}, work_id="work_2", ext=ext),
        _draft("say", {"text": "x"}, ext=ext),
        _draft("trace", {"state": "completed", "result": value, "message": "m"}, work_id="work_1", ext=ext),
    ):
        try:
            envelope = build(draft, NOW)
        except InvalidRequest:  # larger or deeper than an envelope may be
            continue
        _check_delivered(doer.receive(envelope))
    far = {**value, "x far": 2**60} if isinstance(value, dict) else [value, 2**60]
    unfit = _draft("say", {"text": "x"}, ext={f"{adapter.name}.message": far})
    try:
        delivered = doer.receive(build(unfit, NOW))
        assert delivered.native or delivered.message is None, "accepted a message that other parsers read differently"
        _check_delivered(delivered)
        answer = build(_draft("trace", {"state": "failed", "result": value}, back=True, work_id="work_1", ext=ext), NOW)
    except InvalidRequest:
        return
    _check_delivered(asker.receive(answer))


def _check_native(adapter: Adapter, raw: bytes) -> None:
    """Any envelope that the parser takes."""
    try:
        envelope = parse(raw, NOW)
    except ProtocolError:
        return
    us = envelope.to if envelope.to not in (None, envelope.sender) else "somebody-else"
    peer = _peer(adapter, us or "", envelope.sender)
    _check_delivered(peer.receive(envelope))
    _check_delivered(peer.receive(envelope))


def _check_plan(plan: SubmitPlan, peer: BridgePeer, raw: bytes) -> None:
    again = peer.adapter.submit(raw, peer.context(), peer)
    assert msgspec.json.encode(again) == msgspec.json.encode(plan), "the same message twice, two plans"
    assert not (plan.refused and plan.drafts), "refused, and sent all the same"
    assert plan.refused or not check_value(plan.message), "a message that not every reader can hold"
    assert all(draft.sender == peer.us for draft in plan.drafts)
    assert len({draft.id for draft in plan.drafts}) == len(plan.drafts)
    for finding in plan.findings:
        assert finding.path == "" or finding.path.startswith("/"), finding


def _check_delivered(delivered: Delivered) -> None:
    assert not check_value(delivered.message)
    json.dumps(delivered.message, allow_nan=False)
    for finding in delivered.findings:
        assert finding.path == "" or finding.path.startswith("/"), finding
        finding.message.encode()


def _draft(kind: str, body: dict[str, Any], *, back: bool = False, **more: Any) -> Draft:
    sender, to = (DOER, ASKER) if back else (ASKER, DOER)
    return Draft(
        id=f"msg_{kind}_{more.get('work_id')}",
        workspace_id=WORKSPACE,
        channel=CHANNEL,
        kind=kind,
        sender=sender,
        to=to,
        ts=NOW,
        surface="thread",
        container="thread_release_check",
        body=body,
        **more,
    )
