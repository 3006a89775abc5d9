"""Who calls: tokens of a file, JWTs of a provider, client certificates; tasks are those of their caller alone."""

import asyncio
import base64
import contextlib
import hmac
import http.client
import http.server
import json
import threading
import time
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric import rsa
from jwt.algorithms import RSAAlgorithm

from aghbus.gateways.a2a.callers import oidc
from tests.support.a2a_gateway import HEADERS, Gateway, certificate, received, serving_a2a
from tests.support.serving import WAIT, Bus

ANN, BOB = "ann-0123456789abcdef", "bob-0123456789abcdef"
CARD = "/.well-known/agent-card.json"


def open_task(gateway: Gateway, http: httpx.Client, name: str = "m1") -> httpx.Response:
    content: dict[str, Any] = {"message": {"messageId": name, "role": "ROLE_USER", "parts": [{"text": "hello"}]}}
    content["configuration"] = {"returnImmediately": True}
    return http.post(f"{gateway.url}/a2a/worker/message:send", json=content, headers=HEADERS)


def bearer(token: str) -> httpx.Client:
    return httpx.Client(headers={**HEADERS, "Authorization": f"Bearer {token}"}, timeout=WAIT)


@pytest.fixture
def callers(tmp_path: Path) -> Path:
    path = tmp_path / "callers"
    path.touch(0o600)
    path.write_text(f"# name and token\nann {ANN}\nbob@example.com {BOB}\n")
    return path


def test_each_caller_has_its_own_tasks(bus: Bus, callers: Path) -> None:
    options = ("--listen", "127.0.0.1:0", "--peer", "worker", "--callers", str(callers))
    with (
        serving_a2a(bus.home, *options) as gateway,
        bearer(ANN) as ann,
        bearer(BOB) as bob,
        bearer(ANN + "x") as wrong,
        httpx.Client(timeout=WAIT) as nobody,
    ):
        refused = [open_task(gateway, client) for client in (nobody, wrong)]
        assert [answer.status_code for answer in refused] == [401, 401]
        assert "Bearer" in refused[0].headers["www-authenticate"]
        one, two = (open_task(gateway, client).json()["task"] for client in (ann, bob))
        assert one["id"] != two["id"]
        base = f"{gateway.url}/a2a/worker"
        for method, path in (("GET", ""), ("POST", ":cancel"), ("POST", ":subscribe")):
            answer = bob.request(method, f"{base}/tasks/{one['id']}{path}")
            assert (answer.status_code, answer.json()["error"]["message"]) == (404, "Task not found")
        assert two["id"] not in [task["id"] for task in ann.get(f"{base}/tasks").json()["tasks"]]
        principal = received(bus, two["id"])["ext"]["aghbus.principal"]
        assert principal == {"name": "bob@example.com", "via": "a2a"}
        card = nobody.get(gateway.url + CARD).json()
        assert card["securitySchemes"]["bearer"]["httpAuthSecurityScheme"]["scheme"] == "bearer"
        assert card["capabilities"]["extendedAgentCard"] is True
        assert nobody.get(f"{base}/extendedAgentCard").status_code == 401
        assert ann.get(f"{base}/extendedAgentCard").json()["name"] == "worker"
        assert nobody.get(f"{gateway.url}/metrics").status_code == 401
        callers.write_text(f"ann {ANN}\n")
        assert [client.get(f"{base}/tasks").status_code for client in (ann, bob)] == [200, 401]
        callers.chmod(0o644)
        callers.write_text(f"ann {ANN}\n\n")
        assert ann.get(f"{base}/tasks").status_code == 401


OF_TASKS = ["", "/", "/tasks", "/tasks/x", "/message:send", "/message:stream", "/tasks/x:cancel", "/tasks/x:subscribe"]
OF_TASKS += ["/tasks/x/pushNotificationConfigs", "/tasks/x/files/work_x/a.txt", "/extendedAgentCard"]
OTHERS = ["/", "//", "*", "/metrics", "/.well-known/", "/.well-known/agent.json", f"/a2a/other{CARD}"]
OTHERS += ["/openapi.json", "/docs", "http://127.0.0.1/a2a"]


def variants(path: str) -> Iterator[str]:
    """Targets that lead to the same document where paths are made alike before they are compared."""
    bare = path.rstrip("/")
    yield from (bare + end for end in ("//", "/.", "/x/..", "%2F", "%20", "%00", ";x", "%3Fx", "%23", ".json", "\\"))
    yield from (f"{start}{bare}" for start in ("/", "/.", "/x/..", "/x/%2e%2e", "%2F"))
    yield from (f"{bare[:-1]}{end}" for end in (bare[-1].upper(), f"%{ord(bare[-1]):x}", f"%25{ord(bare[-1]):x}"))
    yield from (bare.upper(), bare.replace("/", "//"), bare.replace("/", "%2F"), f"/{bare[1:].replace('/', '%2f')}%2f")


def test_only_cards_and_keys_are_for_everybody(bus: Bus, callers: Path) -> None:
    public = ("/a2a", "/a2a/", CARD, "/.well-known/jwks.json", f"/a2a/worker{CARD}")
    others = {*OTHERS, *(f"/a2a/worker{path}" for path in OF_TASKS), *(f"{path}/" for path in public[2:])}
    others |= {each for path in public for each in variants(path)}
    reading, more = ("GET", "HEAD"), ("POST", "PUT", "DELETE", "OPTIONS", "get")
    options = ("--listen", "127.0.0.1:0", "--peer", "worker", "--callers", str(callers))
    with serving_a2a(bus.home, *options) as gateway:
        connection = http.client.HTTPConnection("127.0.0.1", gateway.port(), timeout=30)

        def status(method: str, target: str, **headers: str) -> int:
            connection.request(method, target, headers=headers)
            with connection.getresponse() as answer:
                answer.read()
            return answer.status

        with contextlib.closing(connection):
            served = [(method, f"{path}{query}") for method in reading for path in public for query in ("", "?x=/")]
            assert [each for each in served if status(*each) != 200] == []
            refused = [(method, path) for method in more for path in public]
            refused += [(method, path) for method in (*reading, *more) for path in others]
            assert [each for each in refused if status(*each) != 401] == []
            for headers in ({"Authorization": "Bearer "}, {"Authorization": f"Basic {ANN}"}, {"Upgrade": "websocket"}):
                assert status("GET", "/a2a/worker/tasks", **headers) == 401
            assert status("GET", "/a2a/worker/tasks", Authorization=f"Bearer {ANN}", **{"A2A-Version": "1.0"}) == 200


class Provider(http.server.BaseHTTPRequestHandler):
    """An OpenID provider with one key."""

    keys: dict[str, Any]
    asked, answers = threading.Event(), threading.Event()
    answers.set()

    def do_GET(self) -> None:
        self.asked.set()
        assert self.answers.wait(30)
        issuer = f"http://127.0.0.1:{self.server.server_address[1]}"  # type: ignore[index]
        found = self.keys if self.path == "/keys" else {"issuer": issuer, "jwks_uri": f"{issuer}/keys"}
        body = json.dumps(found).encode()
        self.send_response(200)
        self.send_header("Content-Length", str(len(body)))
        self.end_headers()
        self.wfile.write(body)

    def log_message(self, format: str, *args: object) -> None:
        pass


@pytest.fixture
def provider() -> Iterator[tuple[str, Any]]:
    """The issuer and its private key."""
    key = rsa.generate_private_key(65_537, 2048)
    public = json.loads(RSAAlgorithm.to_jwk(key.public_key()))
    Provider.keys = {"keys": [{**public, "kid": "one", "use": "sig", "alg": "RS256"}]}
    with http.server.ThreadingHTTPServer(("127.0.0.1", 0), Provider) as server:
        thread = threading.Thread(target=server.serve_forever)
        thread.start()
        yield f"http://127.0.0.1:{server.server_address[1]}", key
        server.shutdown()
        thread.join()


def signed_with_the_public_key(claims: dict[str, Any]) -> str:
    """A token of HS256, whose secret is the key that the provider publishes."""

    def encoded(content: bytes) -> bytes:
        return base64.urlsafe_b64encode(content).rstrip(b"=")

    head = {"alg": "HS256", "typ": "JWT", "kid": "one"}
    text = b".".join(encoded(json.dumps(part).encode()) for part in (head, claims))
    secret = json.dumps(Provider.keys["keys"][0]).encode()
    return b".".join((text, encoded(hmac.digest(secret, text, "sha256")))).decode()


def test_jwts_of_the_provider_name_callers(bus: Bus, provider: tuple[str, Any]) -> None:
    issuer, key = provider
    now = int(time.time())
    good = {"iss": issuer, "aud": "agents", "sub": "users/ann", "exp": now + 60}

    def token(algorithm: str = "RS256", secret: Any = key, kid: str = "one", **changes: Any) -> str:
        claims = {name: value for name, value in {**good, **changes}.items() if value is not None}
        return jwt.encode(claims, secret, algorithm=algorithm, headers={"kid": kid})

    another = rsa.generate_private_key(65_537, 2048)
    wrong = [
        token(exp=now - 60),
        token(exp=None),
        token(nbf=now + 90),
        token(aud="others"),
        token(aud=None),
        token(iss="https://example.com"),
        token(sub=None),
        token(secret=another),
        token(kid="two"),
        signed_with_the_public_key(good),
        token("none", None),
        "nonsense",
    ]
    options = ("--peer", "worker", "--oidc-issuer", issuer, "--oidc-audience", "agents")
    with serving_a2a(bus.home, "--listen", "127.0.0.1:0", *options) as gateway:
        for each in wrong:
            with bearer(each) as http:
                assert open_task(gateway, http).status_code == 401, each
        with bearer(token()) as http, bearer(token(aud=["x", "agents"], sub="ann")) as ann:
            task, other = (open_task(gateway, client).json()["task"] for client in (http, ann))
    principal = received(bus, task["id"])["ext"]["aghbus.principal"]
    hashed = "256db02cc52dd055fb9b6228ef0abd58"  # printf users/ann | sha256sum
    assert principal == {"name": f"h_{hashed}", "issuer": issuer, "via": "a2a"}
    assert received(bus, other["id"])["ext"]["aghbus.principal"] == {"name": "ann", "issuer": issuer, "via": "a2a"}


async def test_callers_of_known_keys_do_not_wait_for_the_provider(
    provider: tuple[str, Any], monkeypatch: pytest.MonkeyPatch
) -> None:
    """A caller that sends a token with an unknown key makes the gateway ask the provider."""
    monkeypatch.setattr(oidc, "AGAIN_SECONDS", 0.0)
    issuer, key = provider
    claims = {"iss": issuer, "aud": "agents", "sub": "ann", "exp": int(time.time()) + 60}
    known, unknown = (jwt.encode(claims, key, algorithm="RS256", headers={"kid": kid}) for kid in ("one", "two"))
    check = oidc.Oidc(issuer, "agents")
    assert await check.caller(known) is not None
    Provider.answers.clear()
    Provider.asked.clear()
    waiting = asyncio.create_task(check.caller(unknown))
    try:
        assert await asyncio.to_thread(Provider.asked.wait, 30)
        assert await asyncio.wait_for(check.caller(known), 5) is not None
    finally:
        Provider.answers.set()
    assert await waiting is None


def test_client_certificates_name_callers(bus: Bus, tmp_path: Path) -> None:
    authority, other_authority = certificate(tmp_path, "authority"), certificate(tmp_path, "other_authority")
    certificate(tmp_path, "server", authority=authority)
    certificate(tmp_path, "ann", authority=authority)
    certificate(tmp_path, "mallory", authority=other_authority)
    files = {name: str(tmp_path / name) for name in ("authority.crt", "server.crt", "server.key")}
    tls = ("--tls-cert", files["server.crt"], "--tls-key", files["server.key"], "--client-ca", files["authority.crt"])
    with serving_a2a(bus.home, "--listen", "127.0.0.1:0", "--peer", "worker", *tls) as gateway:
        assert gateway.url.startswith("https://")

        def client(name: str) -> httpx.Client:
            import ssl

            context = ssl.create_default_context(cafile=files["authority.crt"])
            if name:
                context.load_cert_chain(tmp_path / f"{name}.crt", tmp_path / f"{name}.key")
            return httpx.Client(verify=context, timeout=WAIT)

        with client("ann") as http:
            task = open_task(gateway, http).json()["task"]
            assert "mtls" in http.get(gateway.url + CARD).json()["securitySchemes"]
        for name in ("mallory", ""):
            with client(name) as http, pytest.raises(httpx.TransportError):
                open_task(gateway, http)
    assert received(bus, task["id"])["ext"]["aghbus.principal"]["name"] == "ann"


@pytest.mark.parametrize(
    ("options", "problem"),
    [
        (("--listen", "0.0.0.0:0"), "loopback"),
        (("--listen", "127.0.0.1:0", "--grpc", "0.0.0.0:1"), "loopback"),
        (("--listen", "0.0.0.0:0", "--callers", "FILE"), "in clear"),
        (("--listen", "127.0.0.1:0", "--callers", "FILE", "--allow-anonymous"), "excludes"),
        (("--listen", "127.0.0.1:0", "--oidc-issuer", "https://example.com"), "--oidc-audience"),
        (("--listen", "127.0.0.1:0", "--oidc-issuer", "http://example.com", "--oidc-audience", "x"), "https"),
        (("--listen", "127.0.0.1:0", "--callers", "OPEN"), "others may read"),
        (("--listen", "127.0.0.1:0", "--callers", "SHORT"), "16 characters"),
    ],
)
def test_unsafe_options_are_refused(bus: Bus, callers: Path, options: tuple[str, ...], problem: str) -> None:
    for name, mode, text in (("OPEN", 0o644, f"ann {ANN}\n"), ("SHORT", 0o600, "ann short\n")):
        (callers.parent / name).touch(mode)
        (callers.parent / name).write_text(text)
        (callers.parent / name).chmod(mode)
    names = {"FILE": str(callers), "OPEN": str(callers.parent / "OPEN"), "SHORT": str(callers.parent / "SHORT")}
    given = [names.get(option, option) for option in options]
    done = bus.home.ctl("--name", "ops", "a2a", "serve", "--peer", "worker", *given)
    assert done.returncode == 2
    assert problem in done.stderr.decode()


async def test_grpc_asks_for_the_same_credentials(bus: Bus, callers: Path) -> None:
    import grpc
    from a2a.types import a2a_pb2 as pb
    from a2a.types import a2a_pb2_grpc

    from tests.support.cluster import free_ports

    async def nothing() -> AsyncIterator[bytes]:
        await asyncio.Event().wait()
        yield b""

    address = f"127.0.0.1:{free_ports(1)[0]}"
    options = ("--grpc", address, "--peer", "worker", "--callers", str(callers))
    gateway = Gateway(bus.home, "--listen", "127.0.0.1:0", *options)
    await asyncio.to_thread(gateway.start)
    try:
        async with grpc.aio.insecure_channel(address) as channel:
            service: Any = a2a_pb2_grpc.A2AServiceStub(channel)  # type: ignore[no-untyped-call]
            version = ("a2a-version", "1.0")
            with pytest.raises(grpc.aio.AioRpcError) as denied:
                await service.ListTasks(pb.ListTasksRequest(), metadata=(version,))
            assert denied.value.code() == grpc.StatusCode.UNAUTHENTICATED
            with pytest.raises(grpc.aio.AioRpcError) as denied:  # though the message never comes
                await channel.stream_unary("/lf.a2a.v1.A2AService/SendMessage")(nothing(), timeout=20)
            assert denied.value.code() == grpc.StatusCode.UNAUTHENTICATED
            sent = (version, ("authorization", f"Bearer {ANN}"))
            assert (await service.ListTasks(pb.ListTasksRequest(), metadata=sent)).page_size == 50
            with pytest.raises(grpc.aio.AioRpcError) as old:
                await service.ListTasks(pb.ListTasksRequest(), metadata=sent[1:])
            assert old.value.code() == grpc.StatusCode.FAILED_PRECONDITION
    finally:
        await asyncio.to_thread(gateway.stop)
