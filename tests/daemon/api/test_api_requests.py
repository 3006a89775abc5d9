"""Requests: routing, parsing, and what a refused one gets."""

import json
import logging

import msgspec
import pytest

from aghbus.daemon.base.logs import JsonFormatter
from aghbus.protocol.api.base import EmptyRequest
from aghbus.protocol.api.messages import SendRequest
from aghbus.protocol.api.operations import OPERATIONS
from aghbus.protocol.api.queries import InboxQuery, LimitQuery, PeersQuery, Query, RoomsQuery, WorksQuery
from aghbus.protocol.base.errors import InvalidRequest, NotFound, Refused, RequestError, Unavailable
from tests.support.api_harness import BODY_LIMIT, Api
from tests.support.api_simulator import message


async def test_every_response_forbids_caching_and_content_sniffing(api: Api) -> None:
    for target in ("/healthz", "/v1/status", "/nowhere", "/v1/peers?x=1", "/openapi.json"):
        reply = await api.get(target)
        assert reply.headers["content-type"] == "application/json"
        assert reply.headers["x-content-type-options"] == "nosniff"
        assert reply.headers["cache-control"] == "no-store"
        assert "server" not in reply.headers


async def test_health_and_readiness(api: Api) -> None:
    assert (await api.get("/healthz")).json == {"alive": True}
    assert (await api.get("/readyz")).status == 200
    api.node.ready = False
    reply = await api.get("/readyz")
    assert reply.status == 503
    assert reply.json == {"ready": False, "broker": False, "subscriptions": True, "store": True}
    assert (await api.get("/healthz")).status == 200


async def test_status_calls_its_operation(api: Api) -> None:
    assert (await api.get("/v1/status")).json["problems"] == []
    assert api.node.names() == ["GET /v1/status"]


@pytest.mark.parametrize(
    ("target", "query"),
    [
        ("/v1/peers", PeersQuery()),
        ("/v1/peers?capability=test.run&channel=ops&all=1", PeersQuery(capability="test.run", channel="ops", all=True)),
        ("/v1/peers?all=false", PeersQuery()),
        ("/v1/works", WorksQuery()),
        (
            "/v1/works?state=working&state=submitted&role=target&peer=a&channel=b&limit=1000",
            WorksQuery(states=frozenset({"working", "submitted"}), role="target", peer="a", channel="b", limit=1000),
        ),
        ("/v1/threads?limit=1", RoomsQuery(limit=1)),
        ("/v1/directs?channel=c", RoomsQuery(channel="c")),
        ("/v1/inbox?state=dead", InboxQuery(states=frozenset({"dead"}))),
        ("/v1/quarantine?limit=5", LimitQuery(limit=5)),
        ("/v1/peers?capability=null", PeersQuery(capability="null")),
        ("/v1/peers?capability=%c3%a9+x", PeersQuery(capability="é x")),
    ],
)
async def test_query_reaches_the_operation_typed(api: Api, target: str, query: Query) -> None:
    assert (await api.get(target)).status == 200
    assert api.node.calls == [(f"GET {target.partition('?')[0]}", (query,))]


async def test_messages_query_maps_every_filter(api: Api) -> None:
    target = (
        "/v1/messages?since=4&limit=7&last=1&kind=say&kind=trace&work=w&thread=t&direct=d&peer=p&channel=c"
        "&direction=in&direction=out"
    )
    assert (await api.get(target)).status == 200
    (query,) = api.node.calls[0][1]
    assert (query.since, query.limit, query.last) == (4, 7, True)
    assert query.kinds == {"say", "trace"}
    assert query.directions == {"in", "out"}
    assert (query.work_id, query.thread_id, query.direct_id, query.peer, query.channel) == ("w", "t", "d", "p", "c")


async def test_message_id_may_hold_any_character(api: Api) -> None:
    api.node.stored["a/b c?%é\n"] = message(3, "a/b c?%é\n")
    reply = await api.get("/v1/messages/a%2Fb%20c%3F%25%C3%A9%0A")
    assert reply.status == 200
    assert reply.json["id"] == "a/b c?%é\n"
    assert (await api.get("/v1/messages/a/b")).status == 404


@pytest.mark.parametrize(
    ("target", "message_start"),
    [
        ("/v1/peers?who=1", "who: is not known"),
        ("/v1/status?verbose=1", "verbose: is not known"),
        ("/v1/works?limit=0", "limit: must be 1 to 1000"),
        ("/v1/works?limit=1001", "limit: must be 1 to 1000"),
        ("/v1/works?limit=ten", "limit: expected `int`"),
        ("/v1/messages?since=-1", "since: must be 0 to "),
        ("/v1/messages?since=9223372036854775808", "since: must be 0 to "),
        ("/v1/messages?kind=greeting", "kind: invalid enum value"),
        ("/v1/works?state=done", "state: invalid enum value"),
        ("/v1/works?role=boss", "role: invalid enum value"),
        ("/v1/works?role=null", "role: invalid value 'null'"),
        ("/v1/events?since=null", "since: invalid value 'null'"),
        ("/v1/works?role=target&role=target", "role: is given more than once"),
        ("/v1/works/w?wait=soon", "wait: must be 0 to 600 seconds, or a text such as 30s, 5m, 1h30m"),
        ("/v1/works/w?wait=11m", "wait: must be 0 to 600 seconds"),
        ("/v1/works/w?wait=nan", "wait: must be 0 to 600 seconds"),
        ("/v1/works/w?wait=1e-3&before=0", "before: must be 1 to "),
        ("/v1/peers?all=perhaps", "all: expected `bool`"),
        ("/v1/peers?all", "query: is not `name=value`"),
        ("/v1/peers?channel=%ff", "query: is not percent-encoded UTF-8"),
        ("/v1/messages/%ff", "path: is not percent-encoded UTF-8"),
        ("/v1/peers?" + "&".join(["channel=a"] * 65), "query: is not"),
    ],
)
async def test_bad_query_names_field_and_rule(api: Api, target: str, message_start: str) -> None:
    reply = await api.get(target)
    assert reply.status == 400
    assert reply.json["code"] == "invalid_request"
    assert reply.json["message"].startswith(message_start)
    assert api.node.calls == []


async def test_choices_are_in_the_hint(api: Api) -> None:
    hint = (await api.get("/v1/works?role=boss")).json["hint"]
    assert hint == "one of initiator, target, observer"
    hint = (await api.post("/v1/works/w1/frobnicate")).json["hint"]
    assert "need-input" in hint


async def test_posts_reach_their_operations_typed(api: Api) -> None:
    reply = await api.post("/v1/messages", {"kind": "say", "body": {"text": "hi"}, "to": "ops", "expires_in": 60})
    assert reply.status == 201
    assert (reply.json["kind"], reply.json["to"], reply.json["state"]) == ("say", "ops", "queued")
    assert (await api.post("/v1/works", {"to": "ops", "text": "run"})).status == 201
    assert (await api.post("/v1/works/w%2F1/need-input", {"message": "which?"})).status == 201
    assert (await api.post("/v1/whois", {"query": "test.run", "wait": 0.5})).status == 200
    assert api.node.names() == [
        "POST /v1/messages",
        "POST /v1/works",
        "POST /v1/works/{id}/{verb}",
        "POST /v1/whois",
    ]
    (sent,) = api.node.calls[0][1]
    assert isinstance(sent, SendRequest)
    assert (sent.body, sent.expires_in) == ({"text": "hi"}, 60.0)
    assert api.node.calls[2][1][:2] == ("w/1", "need-input")
    assert api.node.calls[3][1][0].wait == 0.5


@pytest.mark.parametrize(
    ("method", "target", "body", "field", "seconds"),
    [
        ("POST", "/v1/messages", {"kind": "say", "body": {}, "expires_in": "1h30m"}, "expires_in", 5400),
        ("POST", "/v1/works", {"to": "p", "text": "t", "accept_within": "5m"}, "accept_within", 300),
        ("POST", "/v1/works", {"to": "p", "text": "t", "progress_within": "0"}, "progress_within", 0),
        ("POST", "/v1/works/w1/update", {"message": "5m", "expires_in": "7d"}, "expires_in", 604_800),
        ("POST", "/v1/whois", {"wait": "500ms"}, "wait", 0.5),
        ("POST", "/v1/inbox/next", {"visibility": "12h"}, "visibility", 43_200),
        ("POST", "/v1/inbox/7/lease", {"lease": "lease-of-mine", "visibility": "90s"}, "visibility", 90),
        ("POST", "/v1/inbox/7/nack", {"lease": "lease_a", "delay": "1.5"}, "delay", 1.5),
        ("GET", "/v1/works/w1?wait=1m30s", None, "wait", 90),
        ("GET", "/v1/works/w1?wait=2.5", None, "wait", 2.5),
        ("GET", "/v1/works/w1?wait=1e-3", None, "wait", 0.001),
        ("GET", "/v1/chains/runs/r1?wait=1m", None, "wait", 60),
    ],
)
async def test_a_duration_is_a_number_of_seconds_or_a_text(
    api: Api, method: str, target: str, body: dict[str, object] | None, field: str, seconds: float
) -> None:
    await (api.get(target) if method == "GET" else api.post(target, body))
    given = api.node.calls[0][1][-1]
    assert getattr(given, field) == seconds
    assert isinstance(getattr(given, field), float)
    assert getattr(given, "message", "5m") == "5m"  # which is no duration


def test_every_fraction_of_a_request_is_a_duration() -> None:
    """So no duration of a new request takes numbers only."""
    for operation in OPERATIONS:
        for form in (operation.takes.query, operation.takes.request or EmptyRequest):
            _, components = msgspec.json.schema_components([form])
            for name, rule in components[form.__name__]["properties"].items():
                kinds = rule.get("anyOf", [rule])
                assert all(kind.get("format") == "seconds" for kind in kinds if kind.get("type") == "number"), name


async def test_inbox_verbs(api: Api) -> None:
    assert (await api.post("/v1/inbox/next")).json["item"]["lease"] == "lease_a"
    assert (await api.post("/v1/inbox/7/ack", {"lease": "lease_a"})).status == 200
    assert (await api.post("/v1/inbox/7/nack", {"delay": 1.5, "error": "busy"})).status == 200
    assert (await api.post("/v1/inbox/7/requeue")).status == 200
    assert api.node.names() == [
        "POST /v1/inbox/next",
        "POST /v1/inbox/{seq}/ack",
        "POST /v1/inbox/{seq}/nack",
        "POST /v1/inbox/{seq}/requeue",
    ]
    assert api.node.calls[3][1] == (7,)
    assert api.node.calls[2][1][1].delay == 1.5
    refused = await api.post("/v1/inbox/7/ack", {"lease": "old"})
    assert (refused.status, refused.json["code"]) == (409, "conflict")
    assert (await api.post("/v1/inbox/0/ack")).json["message"].startswith("seq: must be 1 to ")
    assert (await api.post("/v1/inbox/seven/ack")).status == 400


async def test_one_capability(api: Api) -> None:
    assert (await api.get("/v1/capabilities/test.run")).json["summary"] == "runs"
    assert (await api.get("/v1/capabilities/none")).status == 404
    assert (await api.get("/v1/capabilities")).status == 200


@pytest.mark.parametrize(
    ("target", "body", "message_start"),
    [
        ("/v1/messages", b"{", "body: is not valid JSON"),
        ("/v1/messages", b"\xff\xfe", "body: is not valid JSON"),
        ("/v1/messages", b'{"kind":"\xff","body":{}}', "body: is not valid JSON"),
        ("/v1/messages", b'{"kind":"\\ud800","body":{}}', "body: is not valid JSON"),
        ("/v1/messages", b"[]", "body: expected `object`"),
        ("/v1/messages", b"", "kind: is required"),
        ("/v1/messages", b'{"kind":"say"}', "body: is required"),
        ("/v1/messages", b'{"kind":"say","body":[]}', "body: expected `object`"),
        ("/v1/messages", b'{"kind":"say","body":{},"two":1}', "two: is not known"),
        ("/v1/messages", b'{"kind":"say","body":{},"to":5}', "to: expected `str | null`"),
        ("/v1/messages", b'{"kind":"say","body":{},"direct":"yes"}', "direct: expected `bool`"),
        ("/v1/messages", b'{"kind":"say","body":{},"expires_in":0.5}', "expires_in: must be 1 to 604800"),
        ("/v1/messages", b'{"kind":"say","body":{},"expires_in":1e999}', "expires_in: must be 1 to 604800 seconds, or"),
        ("/v1/messages", b'{"kind":"say","body":{"a":' + b"[" * 50_000, "body: is nested too deeply"),
        ("/v1/whois", b'{"wait":61}', "wait: must be 0 to 60"),
        ("/v1/whois", b'{"wait":-1}', "wait: must be 0 to 60"),
        ("/v1/whois", b'{"capability_ids":["a",2]}', "capability_ids[1]: expected `str`"),
        ("/v1/inbox/next", b'{"wait":301}', "wait: must be 0 to 300"),
        ("/v1/inbox/next", b'{"visibility":0}', "visibility: must be 1 to 43200"),
        ("/v1/inbox/1/nack", b'{"delay":-1}', "delay: must be 0 to 604800"),
        ("/v1/inbox/1/requeue", b'{"x":1}', "x: is not known"),
        (
            "/v1/works",
            b'{"to":"p","accept_within":"5 min"}',
            "accept_within: must be 0 to 604800 seconds, or a text such",
        ),
        ("/v1/works", b'{"to":"p","progress_within":"8d"}', "progress_within: must be 0 to 604800 seconds, or a text"),
        (
            "/v1/works",
            b'{"to":"p","expires_in":true}',
            "expires_in: must be 1 to 604800 seconds, or a text such as 30s",
        ),
        ("/v1/works", b'{"to":5,"accept_within":"5m"}', "to: expected `str | null`"),
        ("/v1/works", b'{"to":"p","accept_within":"5m"', "accept_within: must be"),
        ("/v1/whois", b'{"wait":""}', "wait: must be 0 to 60 seconds, or a text such as 30s, 5m, 1h30m"),
        ("/v1/whois", b'["wait"]', "body: expected `object`"),
    ],
)
async def test_bad_body_names_field_and_rule(api: Api, target: str, body: bytes, message_start: str) -> None:
    reply = await api.request("POST", target, body, {"content-type": "application/json"})
    assert reply.status == 400
    assert reply.json["code"] == "invalid_request"
    assert reply.json["message"].startswith(message_start)
    assert api.node.calls == []


@pytest.mark.parametrize("kind", ["application/json", "Application/JSON; charset=utf-8", None])
async def test_json_or_no_content_type_is_accepted(api: Api, kind: str | None) -> None:
    headers = {} if kind is None else {"content-type": kind}
    assert (await api.request("POST", "/v1/whois", b"{}", headers)).status == 200


async def test_other_content_types_are_415(api: Api) -> None:
    for kind in ("text/plain", "application/x-www-form-urlencoded", "application/json-seq"):
        reply = await api.request("POST", "/v1/whois", b"{}", {"content-type": kind})
        assert (reply.status, reply.json["code"]) == (415, "unsupported_media_type")
        assert "connection" not in reply.headers  # closing on the body that it is still sending would be a reset
    assert api.node.calls == []


async def test_unknown_path_and_wrong_method(api: Api) -> None:
    for target in ("/", "/v1", "/v1/", "/v2/status", "/v1/status/", "/v1/messages/", "/v1/works/w/accept/now", "//x"):
        reply = await api.get(target)
        assert (target, reply.status, reply.json["code"]) == (target, 404, "unknown_path")
    reply = await api.request("DELETE", "/v1/messages")
    assert (reply.status, reply.headers["allow"]) == (405, "GET, POST")
    assert (await api.get("/v1/inbox/next")).headers["allow"] == "POST"
    assert (await api.request("PUT", "/v1/works/w1")).headers["allow"] == "GET"
    assert (await api.request("OPTIONS", "/v1/status")).status == 405


@pytest.mark.parametrize(
    ("failure", "status", "code"),
    [
        (InvalidRequest("to: is required", hint="name a peer"), 400, "invalid_request"),
        (NotFound("work: is not known"), 404, "not_found"),
        (Refused("work: is not known here", code="not_found"), 404, "not_found"),
        (Refused("not our part"), 409, "refused"),
        (Refused("closed", code="work_closed"), 409, "work_closed"),
        (Refused("container", code="work_container_mismatch"), 409, "work_container_mismatch"),
        (Refused("actor", code="actor_not_allowed"), 409, "actor_not_allowed"),
        (Refused("transition", code="invalid_transition"), 409, "invalid_transition"),
        (InvalidRequest("id: other content", code="conflict"), 409, "conflict"),
        (Refused("policy", code="something_new"), 409, "something_new"),
        (Unavailable("store: cannot write"), 503, "unavailable"),
        (Unavailable("store: is full", code="store_full"), 503, "store_full"),
    ],
)
async def test_status_of_the_daemons_errors(api: Api, failure: RequestError, status: int, code: str) -> None:
    api.node.failure = failure
    reply = await api.post("/v1/messages", {"kind": "say", "body": {}})
    assert (reply.status, reply.json["code"]) == (status, code)
    assert reply.json["message"] == failure.message
    assert reply.json["hint"] == failure.hint


async def test_unexpected_error_is_an_incident(api: Api, caplog: pytest.LogCaptureFixture) -> None:
    api.node.failure = KeyError("secret detail")
    with caplog.at_level(logging.ERROR, "aghbus"):
        reply = await api.get("/v1/status")
    assert (reply.status, reply.json["code"]) == (500, "internal")
    assert b"secret detail" not in reply.body
    number = reply.json["message"].rpartition(" ")[2]
    (line,) = [json.loads(JsonFormatter().format(record)) for record in caplog.records]
    assert (line["msg"], line["incident"], line["path"]) == ("request failed", number, "/v1/status")
    assert line["traceback"].endswith("KeyError: 'secret detail'")
    api.node.failure = None
    assert (await api.get("/v1/status")).status == 200


async def test_control_characters_are_escaped_in_messages(api: Api) -> None:
    reply = await api.get("/v1/works?role=%1b%5b31m%e2%80%ae")
    assert reply.status == 400
    assert "\x1b" not in reply.json["message"]
    assert "\u202e" not in reply.json["message"]
    assert "\\x1b[31m\\u202e" in reply.json["message"]


async def test_long_input_is_not_echoed_whole(api: Api) -> None:
    reply = await api.post("/v1/messages", {"kind": "say", "body": {}, "x" * 50_000: 1})
    assert reply.status == 400
    assert len(reply.body) < 4_000


async def test_body_over_the_limit_is_413(api: Api) -> None:
    padding = b'{"query":"' + b"x" * (BODY_LIMIT - 12) + b'"}'
    assert len(padding) == BODY_LIMIT
    assert (await api.request("POST", "/v1/whois", padding)).status == 200
    reply = await api.request("POST", "/v1/whois", padding + b" ")
    assert (reply.status, reply.json["code"]) == (413, "too_large")
    assert str(BODY_LIMIT) in reply.json["message"]
    assert reply.headers["connection"] == "close"
    assert api.node.names() == ["POST /v1/whois"]
