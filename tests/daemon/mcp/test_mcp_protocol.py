"""Messages, headers and sessions of the Model Context Protocol, and what a client gets for wrong ones."""

import re
from collections.abc import Iterator
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.daemon.mcp.fence import MAX_CHARACTERS, Place, fence
from aghbus.daemon.mcp.rpc import RpcError, parse
from aghbus.protocol.base.text import escape
from tests.support.daemons import Daemon, Home
from tests.support.mcp_client import META, McpClient


@pytest.fixture(scope="module")
def daemon(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Daemon]:
    with Daemon(Home(tmp_path_factory.mktemp("mcp")), "ops") as daemon:
        yield daemon


@pytest.fixture
def client(daemon: Daemon) -> McpClient:
    return McpClient(daemon.socket_path)


@pytest.mark.parametrize(
    ("changed", "code"),
    [
        ({"Mcp-Method": "tools/list"}, -32020),
        ({"Mcp-Method": "TOOLS/CALL"}, -32020),
        ({"Mcp-Name": "whois"}, -32020),
        ({"Mcp-Name": "=?base64?cGVlcnM=?="}, None),  # "peers"
        ({"Mcp-Name": "=?base64?!?="}, -32020),
        ({"MCP-Protocol-Version": "2025-06-18"}, -32020),
    ],
)
def test_headers_must_repeat_the_body(client: McpClient, changed: dict[str, str], code: int | None) -> None:
    params: dict[str, Any] = {"name": "peers", "arguments": {}}
    headers = {**client.headers("tools/call", params), **changed}
    reply = client.post(client.message("tools/call", 1, params), headers)
    assert (reply.status, reply.last.get("error", {}).get("code")) == (200 if code is None else 400, code)


@pytest.mark.parametrize("missing", ["Mcp-Method", "Mcp-Name", "MCP-Protocol-Version"])
def test_no_header_may_be_missing(client: McpClient, missing: str) -> None:
    params: dict[str, Any] = {"name": "peers", "arguments": {}}
    headers = {name: value for name, value in client.headers("tools/call", params).items() if name != missing}
    reply = client.post(client.message("tools/call", 1, params), headers)
    assert (reply.status, reply.error["code"]) == (400, -32020)


def test_an_unknown_version_gets_the_known_ones(client: McpClient) -> None:
    message = client.message("tools/list", 1, {})
    message["params"]["_meta"][META + "protocolVersion"] = "2030-01-01"
    headers = {**client.headers("tools/list", {}), "MCP-Protocol-Version": "2030-01-01"}
    reply = client.post(message, headers)
    assert (reply.status, reply.error["code"]) == (400, -32022)
    assert reply.error["data"]["requested"] == "2030-01-01"
    assert {"2026-07-28", "2025-06-18"} <= set(reply.error["data"]["supported"])


def test_each_modern_request_says_what_its_client_can_do(client: McpClient) -> None:
    message = client.message("tools/list", 1, {})
    del message["params"]["_meta"][META + "clientCapabilities"]
    reply = client.post(message, client.headers("tools/list", {}))
    assert (reply.status, reply.error["code"]) == (400, -32602)


def test_an_unknown_method_is_404_for_modern_clients_only(client: McpClient) -> None:
    legacy = McpClient(client.socket, modern=False)
    legacy.open_session()
    modern_reply, legacy_reply = client.request("ping"), legacy.request("server/discover")
    assert (modern_reply.status, modern_reply.error["code"]) == (404, -32601)
    assert (legacy_reply.status, legacy_reply.error["code"]) == (200, -32601)
    assert legacy.request("ping").result == {}


def test_a_legacy_session_outlives_the_daemon_and_a_wrong_one_is_refused(daemon: Daemon) -> None:
    legacy = McpClient(daemon.socket_path, modern=False)
    assert legacy.open_session("2025-11-25").result["protocolVersion"] == "2025-11-25"
    assert legacy.request("initialize", protocolVersion="1999-01-01").result["protocolVersion"] == "2025-11-25"
    daemon.kill()
    daemon.start()
    assert legacy.request("tools/list").result["tools"]
    legacy.session = "1f.guess"
    assert legacy.request("tools/list").status == 404


@pytest.mark.parametrize(
    ("body", "code"),
    [
        (b"{", -32700),
        (b"\xff", -32700),
        (b"[]", -32600),
        (b'[{"jsonrpc":"2.0","id":1,"method":"ping"}]', -32600),
        (b'{"jsonrpc":"1.0","id":1,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":null,"method":"ping"}', -32600),
        (b'{"jsonrpc":"2.0","id":1}', -32600),
        (b'{"jsonrpc":"2.0","id":1,"method":"ping","params":[]}', -32600),
        (b"[" * 100_000, -32600),
    ],
)
def test_invalid_jsonrpc_messages_are_rejected(client: McpClient, body: bytes, code: int) -> None:
    reply = client.post(body, {})
    assert (reply.status, reply.error["code"]) == (400, code)
    assert "id" not in reply.last


def test_only_post_is_offered(daemon: Daemon) -> None:
    for method in ("GET", "DELETE"):
        with pytest.raises(Exception, match="405"):
            daemon.request(method, "/mcp")


def test_notifications_and_answers_that_nobody_awaits_are_taken(client: McpClient) -> None:
    assert client.post({"jsonrpc": "2.0", "method": "notifications/initialized"}, {}).status == 202
    assert client.post({"jsonrpc": "2.0", "id": "x", "result": {}}, {}).status == 202


@given(st.binary(max_size=200))
def test_any_bytes_are_a_message_or_refused(raw: bytes) -> None:
    try:
        parse(raw)
    except RpcError as error:
        assert error.code in (-32700, -32600)


TEXTS = st.text(max_size=300) | st.text(
    st.sampled_from("ab<>/-_|system ⟦⟧U+202E\\\t\r\n\u200d\u202e👩क\ufe0f"), max_size=60
)


@given(TEXTS, st.text(min_size=1, max_size=50))
def test_a_fence_encloses_any_text(text: str, sender: str) -> None:
    fenced = fence(text, sender=sender, trust="unverified")
    head, *lines, end = fenced.split("\n")
    delimiter = head[1:17]
    assert end == f"[{delimiter} end]"
    if "the agent in the first line," in head:
        assert as_sent(lines.pop(0)) == sender
    else:
        assert f"data from {sender}, unverified" in head
    assert as_sent("\n".join(lines)) == text  # nothing is lost, and nothing looks like something else
    hidden = re.sub("[\t\u200c\u200d\ufe00-\ufe0f\U000e0100-\U000e01ef]|\r$", "", fenced, flags=re.MULTILINE)
    assert all(escape(line) == line for line in hidden.split("\n"))  # nothing hides or reorders text
    assert fence(text, sender=sender, trust="unverified")[1:17] != delimiter


def as_sent(shown: str) -> str:
    """The text that is shown like this."""
    return re.sub(r"⟦U\+([0-9A-F]+)⟧", lambda found: chr(int(found[1], 16)), shown)


def test_a_long_text_is_cut_outside_its_fence() -> None:
    fenced = fence("x" * (MAX_CHARACTERS + 5), sender="ops", trust="verified", place=Place(7, 100))
    assert fenced.endswith(f"[cut: 5 more characters: `inbox` with seq=7, from={MAX_CHARACTERS + 100}]")
    assert fenced.count("x") == MAX_CHARACTERS + 1
