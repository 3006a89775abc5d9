"""Cards, versions, limits and errors over HTTP."""

import asyncio
import subprocess
import sys
from pathlib import Path

import httpx
import jwt
import pytest
from a2a.types import a2a_pb2 as pb
from a2a.utils.signing import create_signature_verifier
from google.protobuf.json_format import ParseDict

from tests.support.a2a_gateway import HEADERS, Gateway, get, post, serving_a2a
from tests.support.serving import WAIT, Bus

CARD = "/.well-known/agent-card.json"
ASK = {"jsonrpc": "2.0", "id": 7, "method": "GetTask", "params": {"id": "work_unknown"}}


@pytest.fixture(scope="module")
def two(bus: Bus) -> object:
    with serving_a2a(bus.home, "--listen", "127.0.0.1:0", "--peer", "worker", "--capability", "test.run") as running:
        yield running


def test_the_card_shows_the_peer_and_is_signed(gateway: Gateway) -> None:
    card = get(gateway.url + CARD).json()
    assert [skill["id"] for skill in card["skills"]] == ["test.run"]
    bindings = [each["protocolBinding"] for each in card["supportedInterfaces"]]
    assert bindings == ["JSONRPC", "HTTP+JSON", "GRPC"]
    keys = jwt.PyJWKSet.from_dict(get(gateway.url + "/.well-known/jwks.json").json())
    verify = create_signature_verifier(lambda kid, jku: keys[str(kid)], ["EdDSA"])
    verify(ParseDict(card, pb.AgentCard()))
    card["skills"][0]["description"] = "Anything you like"
    with pytest.raises(Exception, match="signature"):
        verify(ParseDict(card, pb.AgentCard()))


def test_a_card_is_not_sent_again_to_who_has_it(gateway: Gateway) -> None:
    first = get(gateway.url + CARD)
    assert "max-age" in first.headers["cache-control"]
    again = get(gateway.url + CARD, headers={"If-None-Match": first.headers["etag"]})
    other = get(gateway.url + CARD, headers={"If-None-Match": '"another"'})
    assert (again.status_code, again.content, other.status_code) == (304, b"", 200)


async def test_many_who_ask_for_a_card_ask_its_peer_once(bus: Bus) -> None:
    with serving_a2a(bus.home, "--listen", "127.0.0.1:0", "--peer", "worker") as fresh:
        before = bus.worker.get("/v1/status")["counters"].get("whois.answered", 0)
        async with httpx.AsyncClient(timeout=30) as http:
            cards = await asyncio.gather(*(http.get(fresh.url + CARD) for _ in range(20)))
        assert {card.status_code for card in cards} == {200}
        assert bus.worker.get("/v1/status")["counters"]["whois.answered"] == before + 1


def test_several_agents_have_cards_of_their_own(two: Gateway) -> None:
    cards = get(two.url + "/a2a/").json()
    assert [card["name"] for card in cards] == ["worker", "test.run"]
    assert get(two.url + CARD).status_code == 404
    for card in cards:
        found = get(f"{card['supportedInterfaces'][0]['url']}{CARD}").json()
        assert found["skills"] == card["skills"]


def test_tasks_of_one_agent_are_not_those_of_another(two: Gateway) -> None:
    opened = {"message": {"messageId": "m1", "role": "ROLE_USER", "parts": [{"text": "hello"}]}}
    opened["configuration"] = {"returnImmediately": True}  # type: ignore[dict-item]
    with httpx.Client(headers=HEADERS, timeout=WAIT) as http:
        task = http.post(f"{two.url}/a2a/worker/message:send", json=opened).json()["task"]
        other = http.post(f"{two.url}/a2a/test.run/message:send", json=opened).json()["task"]
        assert task["id"] != other["id"]
        assert http.get(f"{two.url}/a2a/worker/tasks/{task['id']}").status_code == 200
        assert http.get(f"{two.url}/a2a/test.run/tasks/{other['id']}").status_code == 200
        assert http.get(f"{two.url}/a2a/test.run/tasks/{task['id']}").status_code == 404


@pytest.mark.parametrize("version", ["", "0.3", "2.0", "nonsense"])
def test_other_versions_are_refused(gateway: Gateway, version: str) -> None:
    headers = {"A2A-Version": version} if version else {}
    answer = post(f"{gateway.url}/a2a/worker", json=ASK, headers=headers).json()
    assert answer["error"]["code"] == -32009
    assert get(f"{gateway.url}/a2a/worker/tasks/x", headers=headers).status_code == 400


def test_the_version_may_be_a_parameter(gateway: Gateway) -> None:
    answer = post(f"{gateway.url}/a2a/worker?A2A-Version=1.0", json=ASK).json()
    assert answer["error"]["code"] == -32001


@pytest.mark.parametrize(
    ("parts", "code"),
    [
        ([{"text": "x", "mediaType": "application/x-unknown"}], -32005),
        ([], -32602),
        ([{"text": "  "}], -32602),
        ([{"text": "Authorization: Bearer " + "a1" * 12}], -32602),
        ([{"text": "x" * 1_100_000}], -32602),
    ],
)
def test_messages_that_cannot_be_sent_are_refused(gateway: Gateway, parts: list[dict[str, str]], code: int) -> None:
    message = {"messageId": f"m{len(str(parts))}", "role": "ROLE_USER", "parts": parts}
    ask = {**ASK, "method": "SendMessage", "params": {"message": message, "configuration": {"returnImmediately": True}}}
    answer = post(f"{gateway.url}/a2a/worker", json=ask, headers=HEADERS).json()
    assert answer["error"]["code"] == code, answer


def test_bodies_have_a_type_and_a_limit(bus: Bus) -> None:
    with serving_a2a(bus.home, "--listen", "127.0.0.1:0", "--peer", "worker", "--max-body", "65536") as small:
        rpc, rest = f"{small.url}/a2a/worker", f"{small.url}/a2a/worker/message:send"
        text = {**HEADERS, "Content-Type": "text/plain"}
        assert post(rpc, content='{"id":7}', headers=text).json()["error"]["code"] == -32005
        assert post(rest, content="{}", headers=text).status_code == 415
        assert post(rest, json={"x": "y" * 65_536}, headers=HEADERS).status_code == 413
        pieces = iter([b'{"x":"'] + [b"y" * 4096] * 20 + [b'"}'])
        kind = {**HEADERS, "Content-Type": "application/json"}
        assert post(rest, content=pieces, headers=kind).status_code == 413
        found = get(f"{small.url}/metrics").text
    assert 'aghbus_a2a_requests_total{code="413",method="POST"} 2.0' in found


@pytest.mark.parametrize(
    "body", [b"{", b'{"id":"\xff"}', b"[" * 100_000, b'{"jsonrpc":"2.0","id":1,"method":"GetTask","params":{"id":NaN}}']
)
def test_what_is_no_json_is_a_parse_error(gateway: Gateway, body: bytes) -> None:
    headers = {**HEADERS, "Content-Type": "application/json"}
    answer = post(f"{gateway.url}/a2a/worker", content=body, headers=headers).json()
    assert (answer["error"]["code"], answer["id"]) == (-32700, None)
    assert post(f"{gateway.url}/a2a/worker/message:send", content=body, headers=headers).status_code == 400


@pytest.mark.parametrize(
    ("headers", "status"),
    [
        ({"Origin": "https://example.com"}, 403),
        ({"Origin": "null"}, 403),
        ({"Host": "rebound.example.com"}, 403),
        ({"Host": "127.0.0.1.example.com:80"}, 403),
        ({"Host": "localhost:80"}, 200),
        ({"Host": "[::1]:80"}, 200),
    ],
)
def test_web_pages_reach_nothing_where_nobody_is_asked(gateway: Gateway, headers: dict[str, str], status: int) -> None:
    assert get(f"{gateway.url}/a2a/", headers=headers).status_code == status


def test_notifications_are_not_supported_without_an_allow_list(gateway: Gateway) -> None:
    ask = {**ASK, "method": "CreateTaskPushNotificationConfig", "params": {"taskId": "x", "url": "https://example.com"}}
    assert post(f"{gateway.url}/a2a/worker", json=ask, headers=HEADERS).json()["error"]["code"] == -32003


def test_doctor_names_the_gateway_of_an_instance(bus: Bus, gateway: Gateway) -> None:
    checks = bus.home.ctl_json("--name", "ops", "doctor")["checks"]
    (found,) = [row for row in checks if row["check"] == "a2a gateway"]
    assert found["state"] == "ok"


@pytest.mark.parametrize(("library", "options"), [("uvicorn", ()), ("grpc", ("--grpc", "127.0.0.1:1"))])
def test_missing_libraries_are_named(bus: Bus, tmp_path: Path, library: str, options: tuple[str, ...]) -> None:
    (tmp_path / "sitecustomize.py").write_text(f"import sys\nsys.modules[{library!r}] = None\n")
    command = [sys.executable, "-m", "aghbus.cli", "--name", "ops", "a2a", "serve", "--listen", "127.0.0.1:0", *options]
    env = {**bus.home.env, "PYTHONPATH": str(tmp_path)}
    done = subprocess.run([*command, "--peer", "worker"], env=env, capture_output=True, timeout=60, check=False)
    assert done.returncode == 2
    assert f"not installed: {library}" in done.stderr.decode()
    assert "hint: install the extra `a2a`" in done.stderr.decode()
