"""Greets and whois that their sender repeats: what was sent last is not decoded again, and is read as if it were."""

from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st
from msgspec import Raw

from aghbus.protocol.agh.envelope import parse
from aghbus.protocol.agh.errors import Malformed, ProtocolError, Undecodable
from aghbus.protocol.agh.latest_bodies import KnownBody, LatestBodies
from tests.support.wire import CARD, NOW, A, B, dump, envelope, judged, wire, with_unknown_member

_CARDS = st.sampled_from([CARD, {**CARD, "capabilities": []}, {**CARD, "peer_id": B}, {**CARD, "ext": {"a": 1}}])
_BODIES = st.one_of(
    st.builds(lambda card: {"peer_card": card}, _CARDS),
    st.builds(lambda card: {"type": "response", "peer_card": card}, _CARDS),
    st.builds(lambda query: {"type": "request", "query": query}, st.sampled_from(["", "one", "two"])),
)
_CHANGES: dict[str, st.SearchStrategy[Any]] = {
    "body": _BODIES,
    "sender": st.sampled_from([A, B]),
    "ext": st.sampled_from([..., None, {}, {"aghbus.instance": "1"}, {"aghbus.instance": "2"}, [], {"a": {"body": 1}}]),
    "reply_to": st.sampled_from([..., "msg_q"]),
    "proof": st.sampled_from([None, {}, {"sig": "x"}, 5]),
    "ts": st.sampled_from([NOW, NOW - 301]),
}


@given(st.lists(st.tuples(st.sampled_from(["greet", "whois"]), st.fixed_dictionaries(_CHANGES)), max_size=12))
def test_a_repeated_message_is_judged_as_one_that_is_decoded_completely(sent: list[tuple[str, dict[str, Any]]]) -> None:
    for kind, changes in sent:
        raw = dump(wire(kind, **changes))
        found = judged(raw)
        assert found == judged(raw) == judged(with_unknown_member(raw))
        if not isinstance(found, tuple):
            document = wire(kind, **changes)
            assert parse(raw, NOW).extensions() == (document.get("ext") or {})


@pytest.mark.parametrize("member", ["body", "ext", "proof"])
def test_out_of_range_number_is_refused_also_in_a_duplicate_member(member: str) -> None:
    raw = dump(wire("greet", ext={"a": 1}, proof=None))
    parse(raw, NOW)
    with pytest.raises(Undecodable):
        parse(raw.replace(b"{", b'{"%b": {"n": 1e999}, ' % member.encode(), 1), NOW)


def test_a_number_out_of_range_or_deep_nesting_in_a_proof_is_refused() -> None:
    raw = dump(wire("greet", ext={"a": 1}, proof={"n": 1}))
    parse(raw, NOW)
    for proof in (b'{"n": 1e999}', b'{"n": ' + b"[" * 200 + b"]" * 200 + b"}"):
        with pytest.raises(Undecodable):
            parse(raw.replace(b'{"n": 1}', proof), NOW)


def test_the_card_of_another_sender_is_refused_each_time() -> None:
    parse(dump(wire("greet")), NOW)
    for _ in range(2):
        with pytest.raises(Malformed):
            parse(dump(wire("greet", sender="other")), NOW)


def test_the_values_of_a_repeated_message_are_not_read_again() -> None:
    first, again = (envelope("greet", id=f"msg_{number}", ext={"a": 1}) for number in range(2))
    assert first.body is again.body
    assert envelope("greet", ext={"a": 2}).extensions() == {"a": 2}
    changed = envelope("greet", ext={"a": 1}, body={"peer_card": CARD, "summary": "new"})
    assert changed.body != first.body


def test_a_refused_message_has_a_document_only_if_all_of_it_was_decoded() -> None:
    """Then nothing has to be decoded to answer it; what was not decoded is decoded then."""
    raw = dump(wire("greet"))
    parse(raw, NOW)
    with pytest.raises(ProtocolError) as refused:
        parse(raw, NOW + 10_000)
    assert refused.value.document is None or refused.value.document == wire("greet")


def test_the_oldest_bodies_are_dropped_beyond_the_bound() -> None:
    latest = LatestBodies[int](max_bytes=10_000)

    def put(number: int, size: int) -> None:
        latest.put((f"p{number}", "greet", False), KnownBody(Raw(b"x" * size), Raw(b"{}"), number, {}))

    for number in range(100):
        put(number, 500)
    known = [number for number in range(100) if latest.get((f"p{number}", "greet", False)) is not None]
    assert known == list(range(91, 100))
    put(99, 600)
    put(100, 20_000)
    assert all(latest.get((f"p{number}", "greet", False)) is None for number in range(101))
