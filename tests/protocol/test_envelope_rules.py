"""Each field of the envelope, and properties of valid envelopes of every kind."""

import json
from typing import Any, Final

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.protocol.agh.bodies import Capability, Greet, Receipt, Say, Trace, Whois
from aghbus.protocol.agh.envelope import parse
from aghbus.protocol.agh.errors import InvalidSurface, Malformed, ProtocolError
from aghbus.protocol.agh.limits import MAX_CARD_ENTRY_BYTES, MAX_LIST_ITEMS
from aghbus.protocol.agh.send import Draft, build, wire_document
from tests.support.wire import BODIES, CARD, CONVERSATION, DISCOVERY, NOW, A, B, documents, dump, envelope, wire

KINDS: Final = tuple(BODIES)
ROOM: Final = "direct_" + "0" * 32


def reason(document: dict[str, Any], now: int = NOW) -> str | None:
    try:
        parse(dump(document), now)
    except ProtocolError as error:
        return error.reason
    return None


def fault(document: dict[str, Any]) -> str:
    """The field that a refusal names."""
    with pytest.raises(ProtocolError) as caught:
        parse(dump(document), NOW)
    return caught.value.field


@given(documents())
def test_valid_envelopes_are_accepted_and_kept_completely(document: dict[str, Any]) -> None:
    raw = dump(document)
    parsed = parse(raw, NOW)
    assert parsed.raw == raw
    assert parsed.document() == document
    assert parsed.extensions() == (document.get("ext") or {})
    direct: dict[str, Any] = {
        "id": parsed.id,
        "workspace_id": parsed.workspace_id,
        "kind": parsed.kind,
        "channel": parsed.channel,
    }
    direct |= {"from": parsed.sender, "ts": parsed.ts}
    assert direct == {field: document[field] for field in direct}
    optional = ("to", "surface", "work_id", "reply_to", "trace_id", "causation_id", "expires_at")
    assert [getattr(parsed, field) for field in optional] == [document.get(field) for field in optional]
    assert parsed.container == (document.get("thread_id") or document.get("direct_id"))


@given(documents())
def test_null_and_absent_envelope_fields_are_equivalent(document: dict[str, Any]) -> None:
    stripped = {field: value for field, value in document.items() if value is not None}
    optional = ("to", "surface", "thread_id", "direct_id", "work_id", "reply_to", "trace_id", "causation_id")
    filled = dict.fromkeys([*optional, "expires_at", "proof", "ext"]) | stripped
    short, long = parse(dump(stripped), NOW), parse(dump(filled), NOW)
    assert msgspec.structs.replace(short, raw=b"") == msgspec.structs.replace(long, raw=b"")


NULLABLE: Final = {
    "greet": ["summary"],
    "whois": ["query", "peer_card"],
    "say": ["intent", "artifacts"],
    "receipt": ["reason_code", "detail"],
    "trace": ["message", "result", "artifact_refs"],
}


@pytest.mark.parametrize(("kind", "field"), [(kind, field) for kind, fields in NULLABLE.items() for field in fields])
def test_null_and_absent_body_fields_are_equivalent(kind: str, field: str) -> None:
    with_null = envelope(kind, body={**BODIES[kind], field: None}).body
    without = envelope(kind, body={key: value for key, value in BODIES[kind].items() if key != field}).body
    assert with_null == without


@pytest.mark.parametrize("field", ["display_name", "ext"])
def test_null_and_absent_card_fields_are_equivalent(field: str) -> None:
    assert envelope("greet", body={"peer_card": {**CARD, field: None}}).body == envelope("greet").body


def test_null_and_absent_capability_fields_are_equivalent() -> None:
    record = envelope("capability").document()["body"]["capability"]
    optional = (
        "version",
        "context_needed",
        "artifacts_expected",
        "execution_outline",
        "constraints",
        "examples",
        "requirements",
    )
    assert reason(wire("capability", body={"capability": {**record, **dict.fromkeys(optional)}})) is None


@given(documents())
def test_an_envelope_built_from_parsed_parts_is_equal(document: dict[str, Any]) -> None:
    parsed = parse(dump(document), NOW)
    fields = ("id", "workspace_id", "kind", "channel", "sender", "ts", "to", "surface", "container", "work_id")
    parts = {name: getattr(parsed, name) for name in (*fields, "reply_to", "trace_id", "causation_id", "expires_at")}
    built = build(Draft(**parts, body=document["body"], ext=parsed.extensions()), NOW)
    assert built == parse(built.raw, NOW)
    again = json.loads(built.raw)
    known = {field: value for field, value in document.items() if value is not None and field not in ("x_new", "proof")}
    if not known.get("ext"):
        known.pop("ext", None)
    assert {field: value for field, value in again.items() if value is not None} == known
    assert {"to", "proof"} <= set(again)
    assert list(again)[:2] == ["protocol", "id"]


def test_the_document_of_a_draft_omits_absent_fields_except_to_and_proof() -> None:
    draft = Draft(id="m", workspace_id="w", channel="c", kind="greet", sender=A, ts=NOW, body={})
    assert set(wire_document(draft)) == {
        "protocol",
        "id",
        "workspace_id",
        "kind",
        "channel",
        "from",
        "to",
        "ts",
        "body",
        "proof",
    }


class TestBodies:
    def test_each_kind_has_its_type(self) -> None:
        types = [type(envelope(kind).body) for kind in KINDS]
        assert types == [Greet, Whois, Say, Capability, Receipt, Trace]

    def test_card_lists_are_trimmed_and_without_blanks_in_their_order(self) -> None:
        card = {**CARD, "capabilities": [" b\u00a0", "", "\u3000", "a", "\x1fc"], "display_name": " Ops "}
        body = envelope("greet", body={"peer_card": card}).body
        assert isinstance(body, Greet)
        assert body.card.capabilities == ("b", "a", "\x1fc")  # U+001F is no white space of the protocol
        assert body.card.display_name == "Ops"
        assert set(body.card.to_wire()) >= {"profiles_supported", "artifacts_supported", "trust_modes_supported"}

    @pytest.mark.parametrize(
        "field", ["profiles_supported", "capabilities", "artifacts_supported", "trust_modes_supported"]
    )
    def test_a_card_list_may_be_empty_but_neither_absent_nor_null(self, field: str) -> None:
        assert reason(wire("greet", body={"peer_card": {**CARD, field: []}})) is None
        assert reason(wire("greet", body={"peer_card": {**CARD, field: None}})) == "malformed"
        missing = {key: value for key, value in CARD.items() if key != field}
        assert reason(wire("greet", body={"peer_card": missing})) == "malformed"

    def test_a_cards_entries_are_bounded_in_bytes(self) -> None:
        fits, over = "é" * (MAX_CARD_ENTRY_BYTES // 2), "é" * (MAX_CARD_ENTRY_BYTES // 2) + "x"
        for field in ("capabilities", "display_name"):
            for text, verdict in ((fits, None), (over, "malformed")):
                value = text if field == "display_name" else [text]
                assert reason(wire("greet", body={"peer_card": {**CARD, field: value}})) == verdict

    @pytest.mark.parametrize(("kind", "field"), [("say", "artifacts"), ("trace", "artifact_refs"), ("greet", "")])
    def test_lists_are_bounded_in_entries(self, kind: str, field: str) -> None:
        for size, verdict in ((MAX_LIST_ITEMS, None), (MAX_LIST_ITEMS + 1, "malformed")):
            body = (
                {**BODIES[kind], field: [1] * size} if field else {"peer_card": {**CARD, "capabilities": ["x"] * size}}
            )
            assert reason(wire(kind, body=body)) == verdict

    def test_a_whois_response_needs_reply_to_and_a_card_of_its_sender(self) -> None:
        body = {"type": "response", "peer_card": CARD}
        assert reason(wire("whois", body=body, reply_to="msg_q")) is None
        assert fault(wire("whois", body=body)) == "reply_to"
        assert fault(wire("whois", body={"type": "response"}, reply_to="msg_q")) == "body.peer_card"
        assert fault(wire("whois", body=body, reply_to="msg_q", sender="other")) == "body.peer_card.peer_id"

    def test_a_greet_has_no_receiver_even_with_an_escaped_kind(self) -> None:
        raw = dump(wire("greet", to=B))
        for spelt in (raw, raw.replace(b'"greet"', b'"gr\\u0065et"')):
            with pytest.raises(Malformed) as refused:
                parse(spelt, NOW)
            assert refused.value.field == "to"

    def test_a_cached_card_is_refused_from_another_sender(self) -> None:
        body = {"peer_card": CARD}
        first, again = (parse(dump(wire("greet", body=body)), NOW).body for _ in range(2))
        assert first == again
        assert fault(wire("greet", body=body, sender="other")) == "body.peer_card.peer_id"
        large = {**CARD, "capabilities": ["x" * 1_000] * 10}
        for _ in range(2):
            card = parse(dump(wire("greet", body={"peer_card": large})), NOW).body
            assert isinstance(card, Greet)
            assert card.card.capabilities == ("x" * 1_000,) * 10
            assert (
                fault(wire("greet", body={"peer_card": {**large, "display_name": 5}})) == "body.peer_card.display_name"
            )

    @pytest.mark.parametrize(
        ("kind", "last"),
        [
            ("greet", b'"peer_card":5,'),
            ("greet", b'"summary":5,'),
            ("say", b'"artifacts":5,"text":5,'),
            ("trace", b'"result":5,"state":5,'),
            ("whois", b'"query":5,"peer_card":5,'),
        ],
    )
    def test_the_last_of_duplicate_members_wins(self, kind: str, last: bytes) -> None:
        bodies: dict[str, dict[str, Any]] = {
            "greet": {"peer_card": CARD, "summary": "s"},
            "say": {"text": "t", "artifacts": [{"a": 1}]},
            "trace": {"state": "working", "result": {"a": 1}},
            "whois": {"type": "response", "query": "q", "peer_card": CARD},
        }
        raw = dump(wire(kind, body=bodies[kind], reply_to="msg_q"))
        twice = raw.replace(b'"body": {', b'"body": {' + last)
        assert twice != raw
        read = [msgspec.json.decode(msgspec.json.encode(parse(one, NOW).body)) for one in (raw, twice)]
        assert read[0] == read[1]

    @pytest.mark.parametrize("status", ["rejected", "duplicate", "expired", "unsupported"])
    def test_a_refusing_receipt_needs_a_registered_reason(self, status: str) -> None:
        for code, verdict in (("busy", None), (None, "malformed"), ("", "malformed"), ("no_such_code", "malformed")):
            assert reason(wire("receipt", body={"for_id": "m", "status": status, "reason_code": code})) == verdict

    def test_accepted_has_no_reason_and_canceled_may_have_one(self) -> None:
        assert reason(wire("receipt", body={"for_id": "m", "status": "accepted", "reason_code": "busy"})) == "malformed"
        for code in (None, "internal"):
            assert reason(wire("receipt", body={"for_id": "m", "status": "canceled", "reason_code": code})) is None

    @pytest.mark.parametrize("result", [1, "text", [1], True, {"a": 1}, None])
    def test_a_trace_takes_any_result(self, result: object) -> None:
        body = envelope("trace", body={"state": "completed", "result": result}).body
        assert isinstance(body, Trace)
        assert (None if body.result is None else msgspec.json.decode(body.result)) == result


class TestContainers:
    @pytest.mark.parametrize("kind", DISCOVERY)
    @pytest.mark.parametrize("field", ["surface", "thread_id", "direct_id"])
    def test_discovery_has_no_container(self, kind: str, field: str) -> None:
        assert reason(wire(kind, **{field: "thread"})) == "invalid_surface"
        assert reason(wire(kind, work_id="work_1")) == "malformed"

    @pytest.mark.parametrize("kind", CONVERSATION)
    def test_conversation_has_exactly_the_container_of_its_surface(self, kind: str) -> None:
        assert reason(wire(kind, surface="direct", thread_id=..., direct_id=ROOM)) is None
        for wrong in (
            {"surface": ...},
            {"surface": ""},
            {"surface": "Thread"},
            {"surface": 1},
            {"thread_id": ...},
            {"direct_id": ROOM},
            {"surface": "direct"},
            {"surface": "direct", "direct_id": ROOM},
            {"surface": "direct", "thread_id": ..., "direct_id": "direct_" + "G" * 32},
            {"thread_id": "thread_ab"},
            {"thread_id": "thread_abc\n"},
        ):
            assert reason(wire(kind, **wrong)) == "invalid_surface", wrong
        with pytest.raises(InvalidSurface):
            parse(dump(wire(kind, thread_id="")), NOW)

    @pytest.mark.parametrize("kind", ["receipt", "trace"])
    def test_receipt_and_trace_need_a_work(self, kind: str) -> None:
        assert reason(wire(kind, work_id=...)) == "malformed"
        assert reason(wire(kind, work_id=None)) == "malformed"

    @pytest.mark.parametrize("kind", ["say", "capability"])
    def test_say_and_capability_need_no_work(self, kind: str) -> None:
        assert reason(wire(kind, work_id=...)) is None

    @pytest.mark.parametrize("work_id", ["", " w", "w\u2003", "a/b", "a\\b", "a\x85b", "a\x7f", "é" * 65, "x" * 129])
    def test_invalid_work_ids_are_refused(self, work_id: str) -> None:
        assert reason(wire("say", work_id=work_id)) == "malformed"

    @pytest.mark.parametrize("work_id", ["w", "a b", "é" * 64, "x" * 128, "日本", "a.b*>"])
    def test_valid_work_ids_are_accepted(self, work_id: str) -> None:
        assert reason(wire("say", work_id=work_id)) is None


class TestFreshness:
    @pytest.mark.parametrize(
        ("age", "expires", "verdict"),
        [
            (300, None, None),
            (301, None, "expired"),
            (-300, None, None),
            (-301, None, "expired"),
            (-301, 1000, "expired"),
            (0, 0, "expired"),
            (0, 1, None),
            (301, 1, None),
            (7 * 86_400, 1, None),
            (7 * 86_400 + 1, 1, "expired"),
            (0, 10**12, None),
            (NOW - 1, None, "expired"),
        ],
    )
    def test_freshness_depends_on_age_and_expiry(self, age: int, expires: int | None, verdict: str | None) -> None:
        times = {"ts": NOW - age, "expires_at": None if expires is None else NOW + expires}
        assert reason(wire("say", **times)) == verdict

    @given(st.integers(-300, 700_000), st.none() | st.integers(1, 10**9), st.integers(0, 10**6))
    def test_fresh_until_is_the_first_expired_second(self, age: int, left: int | None, step: int) -> None:
        document = wire("say", ts=NOW - age, expires_at=None if left is None else NOW + left)
        if reason(document) is not None:
            return
        until = parse(dump(document), NOW).fresh_until
        assert until > NOW
        assert reason(document, until - 1) is None
        assert reason(document, until) == "expired"
        assert reason(document, until + step) == "expired"


class TestOrderOfChecks:
    """One envelope with faults of every step: each step's fault shows once those before it are mended (section 5)."""

    def test_the_first_failing_check_decides(self) -> None:
        faults: dict[str, Any] = {"id": " ", "kind": "direct", "ts": NOW - 400, "surface": "room", "body": {"text": ""}}
        faults["interaction_id"] = "x"
        seen = []
        for field, mended in (
            ("interaction_id", ...),
            ("id", "msg_1"),
            ("kind", "say"),
            ("ts", NOW),
            ("surface", "thread"),
            ("body", BODIES["say"]),
        ):
            seen.append(reason(wire("say", **faults)))
            faults[field] = mended
        assert seen == [
            "legacy_field_rejected",
            "malformed",
            "unsupported_kind",
            "expired",
            "invalid_surface",
            "malformed",
        ]
        assert reason(wire("say", **faults)) is None


@pytest.mark.parametrize(
    ("field", "bad"),
    [
        ("protocol", "agh-network/v1"),
        ("id", ""),
        ("id", "a\x1fb"),
        ("id", "é" * 129),
        ("workspace_id", "ws.a"),
        ("workspace_id", "ws a"),
        ("workspace_id", "ws>"),
        ("workspace_id", ""),
        ("channel", "Builders"),
        ("channel", "builders\n"),
        ("channel", "c" * 65),
        ("from", "-ops"),
        ("from", "ops@short"),
        ("from", "p" * 129),
        ("to", "a.b@" + "a" * 32),
        ("to", ""),
        ("ts", 0),
        ("ts", -5),
        ("reply_to", " x"),
        ("trace_id", ""),
        ("causation_id", "x" * 257),
        ("proof", []),
        ("ext", "x"),
        ("body", []),
    ],
)
def test_an_invalid_field_is_malformed_and_named(field: str, bad: object) -> None:
    assert reason(wire("say", **{field: bad})) == "malformed"
    assert fault(wire("say", **{field: bad})).partition(".")[0] == field


@pytest.mark.parametrize("field", ["protocol", "id", "workspace_id", "kind", "channel", "from", "ts", "body"])
def test_required_fields_are_required(field: str) -> None:
    with pytest.raises(Malformed):
        parse(dump(wire("say", **{field: ...})), NOW)
    with pytest.raises(Malformed):
        parse(dump(wire("say", **{field: None})), NOW)


def test_unknown_kind_is_unsupported_and_non_string_malformed() -> None:
    for kind in ("direct", "SAY", "", "say "):
        assert reason(wire("say", kind=kind)) == "unsupported_kind"
    others: tuple[object, ...] = (1, None, [], {}, True)
    for other in others:
        assert reason(wire("say", kind=other)) == "malformed"
