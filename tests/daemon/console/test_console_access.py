"""The console's listener: what a browser, another page and a process without a ticket get from it."""

import contextlib
import http.client
import json
import re
from collections.abc import Generator
from pathlib import Path
from typing import Any

import pytest

from aghbus.daemon.console.pages import FOLDER
from aghbus.daemon.console.sessions import TICKET_SECONDS, UNUSED_SECONDS, Sessions
from tests.support.daemons import Daemon, Home, HttpError, ops_and_worker, wait_for


class Browser:
    """Requests to the console as the page makes them."""

    def __init__(self, port: int, token: str = "") -> None:
        self.port = port
        self.headers = {"Sec-Fetch-Site": "same-origin"}
        if token:
            self.headers["Authorization"] = f"Bearer {token}"

    def ask(self, method: str, path: str, body: Any = None, **headers: str) -> tuple[int, Any, dict[str, str]]:
        client = http.client.HTTPConnection("127.0.0.1", self.port, timeout=30)
        try:
            sent = {**self.headers, **{name.replace("_", "-"): value for name, value in headers.items()}}
            payload = None if body is None else json.dumps(body)
            client.request(method, path, payload, sent | ({"Content-Type": "application/json"} if payload else {}))
            response = client.getresponse()
            content = response.read()
            fields = {name.lower(): value for name, value in response.getheaders()}
        finally:
            client.close()
        is_json = fields["content-type"] == "application/json"
        return response.status, json.loads(content) if is_json else content, fields


@pytest.fixture
def ops(home: Home) -> Generator[Daemon]:
    with Daemon(home, "ops") as daemon:
        yield daemon


def opened(daemon: Daemon, **asked: Any) -> Browser:
    """A tab that has used its ticket."""
    console = daemon.post("/v1/console", **asked)
    status, session, _ = Browser(console["port"]).ask("POST", "/session", {"ticket": console["ticket"]})
    assert status == 201, session
    assert session["write"] is asked.get("write", False)
    return Browser(console["port"], session["token"])


def test_a_ticket_opens_one_tab_once(ops: Daemon) -> None:
    console = ops.post("/v1/console")
    page = Browser(console["port"])
    assert page.ask("POST", "/session", {"ticket": console["ticket"]})[0] == 201
    assert page.ask("POST", "/session", {"ticket": console["ticket"]})[0] == 401
    assert page.ask("POST", "/session", {"ticket": "guessed"})[0] == 401
    assert page.ask("POST", "/session", {"ticket": console["ticket"], "more": 1})[0] == 400
    assert page.ask("POST", "/session", {"ticket": "x" * 8000})[0] == 413
    assert page.ask("GET", "/session")[0] == 405


def test_nothing_but_the_page_is_shown_without_a_session(ops: Daemon) -> None:
    port = ops.post("/v1/console")["port"]
    for path in ("/instances", "/instances/ops/v1/status", "/instances/ops/healthz", "/v1/status", "/metrics"):
        status, answer, _ = Browser(port).ask("GET", path)
        assert (status, answer["code"]) == (401, "unauthorized"), path
    assert Browser(port, "guessed").ask("GET", "/instances")[0] == 401
    status, content, headers = Browser(port).ask("GET", "/")
    assert status == 200 and b"<title>" in content
    assert "default-src 'self'" in headers["content-security-policy"]
    assert "frame-ancestors 'none'" in headers["content-security-policy"]
    assert headers["referrer-policy"] == "no-referrer" and "set-cookie" not in headers
    assert headers["cache-control"] == "no-store" and headers["x-content-type-options"] == "nosniff"


def test_the_page_and_the_api_are_refused_to_other_pages_and_names(ops: Daemon) -> None:
    page = opened(ops, write=True)
    for headers in (
        {"Host": "evil.example"},
        {"Host": "127.0.0.1.evil.example"},
        {"Origin": "http://evil.example"},
        {"Origin": "null"},
        {"Origin": f"https://127.0.0.1:{page.port}"},
        {"Origin": "http://127.0.0.1:1"},
        {"Sec_Fetch_Site": "cross-site"},
        {"Sec_Fetch_Site": "same-site"},
    ):
        status, answer, _ = page.ask("GET", "/instances/ops/v1/status", **headers)
        assert (status, answer["code"]) == (403, "forbidden"), headers
    assert page.ask("GET", "/instances/ops/v1/status", Origin=f"http://127.0.0.1:{page.port}")[0] == 200
    forwarded = {"Host": "localhost:9999", "Origin": "http://localhost:9999"}  # ssh -L 9999:127.0.0.1:PORT
    assert page.ask("GET", "/instances/ops/v1/status", **forwarded)[0] == 200
    assert page.ask("OPTIONS", "/instances/ops/v1/works", Origin="http://evil.example")[0] == 403


def test_it_only_reads_unless_it_was_opened_to_write(ops: Daemon) -> None:
    reader, writer = opened(ops), opened(ops, write=True)
    say = {"kind": "say", "to": "worker", "body": {"text": "hello"}, "thread_id": "thread_one"}
    status, answer, _ = reader.ask("POST", "/instances/ops/v1/messages", say)
    assert (status, answer["code"]) == (403, "forbidden") and "--write" in answer["hint"]
    assert reader.ask("PUT", "/instances/ops/v1/artifacts/work_1/a", {})[0] == 403
    status, answer, _ = reader.ask("POST", "/instances/ops/v1/whois", {"query": "test.run"})
    assert status == 200, answer
    status, answer, _ = writer.ask("POST", "/instances/ops/v1/messages", say)
    assert status == 201, answer
    for page in (reader, writer):  # nobody gets more rights by the page itself
        assert page.ask("POST", "/instances/ops/v1/console", {"write": True})[0] == 403


def test_all_instances_of_the_user_are_reached_with_their_streams(home: Home) -> None:
    with ops_and_worker(home) as (ops, worker):
        page = opened(ops)
        listed = page.ask("GET", "/instances")[1]["instances"]
        assert listed == [{"name": "ops", "running": True}, {"name": "worker", "running": True}]
        assert page.ask("GET", "/instances/worker/v1/status")[1]["peer_id"] == "worker"
        work = ops.post("/v1/works", to="worker", text="run the tests")["work_id"]
        wait_for(lambda: worker.state_of(work), 30, "the work")
        assert page.ask("GET", f"/instances/worker/v1/works/{work}")[1]["work"]["role"] == "target"
        assert page.ask("GET", "/instances/worker/v1/works?state=failed&limit=1")[1]["works"] == []
        assert page.ask("GET", "/instances/worker/v1/works/none")[0] == 404
        for name in ("ops", "worker"):
            with contextlib.closing(stream(page, f"/instances/{name}/v1/events?since=0")) as events:
                assert next(events)["message"]["work_id"] == work
        assert page.ask("GET", "/instances/nobody/v1/status")[0] == 503
        assert page.ask("GET", "/instances/..%2Fops/v1/status")[0] == 404
        worker.stop()
        assert page.ask("GET", "/instances")[1]["instances"][1] == {"name": "worker", "running": False}
        worker.start()


def test_a_tab_goes_on_after_kill_9(ops: Daemon) -> None:
    page = opened(ops, write=True)
    ops.kill()
    with pytest.raises(OSError):
        page.ask("GET", "/instances")
    ops.start()
    assert page.ask("GET", "/instances/ops/v1/status")[0] == 200
    assert ops.post("/v1/console")["port"] == page.port
    stored = (ops.store_path.parent / "console.json").read_text()
    assert page.headers["Authorization"].removeprefix("Bearer ") not in stored


def test_one_console_has_one_port(ops: Daemon) -> None:
    port = ops.post("/v1/console")["port"]
    with pytest.raises(HttpError) as refused:
        ops.post("/v1/console", port=port + 1 if port < 65_535 else port - 1)
    assert refused.value.status == 409
    assert ops.post("/v1/console", port=port)["port"] == port


def test_tickets_and_sessions_end(tmp_path: Path) -> None:
    now = 1_000.0
    sessions = Sessions(tmp_path / "console.json", lambda: now)
    late = sessions.ticket(write=False)
    now += TICKET_SECONDS
    assert sessions.begin(late, 80) is None and not sessions.is_used()
    begun = sessions.begin(sessions.ticket(write=True), 80)
    assert begun is not None
    token, _ = begun
    now += UNUSED_SECONDS - 1
    assert sessions.find(token, 80) is not None
    again = Sessions(tmp_path / "console.json", lambda: now)
    assert again.restore() == 80
    found = again.find(token, 80)
    assert found is not None and found.write
    now += UNUSED_SECONDS
    assert Sessions(tmp_path / "console.json", lambda: now).restore() is None
    assert not sessions.is_used()
    sessions.end()
    assert sessions.find(token, 80) is None and not (tmp_path / "console.json").exists()


@pytest.mark.parametrize("damaged", [b"", b"{", b'{"port": "x"}', b"\xff\xfe", b'{"port": 1, "sessions": [{}]}'])
def test_a_damaged_file_of_sessions_is_as_none(tmp_path: Path, damaged: bytes) -> None:
    (tmp_path / "console.json").write_bytes(damaged)
    assert Sessions(tmp_path / "console.json").restore() is None


def test_the_page_needs_nothing_from_elsewhere_and_no_inline_code() -> None:
    for path in FOLDER.rglob("*"):
        if path.suffix not in (".html", ".js", ".css") or "vendor" in path.parts:
            continue
        text = path.read_text()
        assert not re.search(r"innerHTML|outerHTML|insertAdjacentHTML|document\.write|\beval\(", text), path
        assert not re.search(r"\s(style|on[a-z]+)=\"", text), path
        foreign = re.findall(r"(?:src|href|url|from|import)\W{1,3}https?://[^\s\"']+", text)
        assert foreign == [], path


def test_the_page_loads_its_modules_at_once() -> None:
    page = (FOLDER / "index.html").read_text()
    modules = {f"/{path.relative_to(FOLDER)}" for path in FOLDER.rglob("*.js")} - {"/main.js"}
    assert sorted(re.findall(r'"modulepreload" href="(.+)"', page)) == sorted(modules)


def stream(page: Browser, path: str) -> Generator[Any]:
    """The events of a stream."""
    client = http.client.HTTPConnection("127.0.0.1", page.port, timeout=30)
    try:
        client.request("GET", path, headers=page.headers)
        response = client.getresponse()
        assert response.status == 200, response.read()
        while line := response.readline():
            if line.startswith(b"data:"):
                yield json.loads(line[5:])
    finally:
        client.close()
