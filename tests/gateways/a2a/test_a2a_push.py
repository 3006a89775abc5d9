"""Push notifications to a webhook over HTTPS: in order, signed, repeated, over restarts, and nowhere else."""

import asyncio
import contextlib
import hashlib
import http.server
import json
import resource
import signal
import socket
import ssl
import threading
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from a2a.client import Client
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import A2AError, InternalError, InvalidParamsError

from aghbus.gateways.a2a.push.store import MAX_OF_CALLER, MAX_OF_TASK
from aghbus.gateways.a2a.push.webhook import AllowList, Refused
from aghbus.protocol.formats.a2a.ids import caller_part
from tests.support.a2a_gateway import Gateway, at_once, certificate, get, message, sdk_client, shown, step, task_of
from tests.support.daemons import wait_for
from tests.support.serving import WAIT, Bus


class Webhook:
    """A receiver over TLS on 127.0.0.1; it answers with `status`."""

    def __init__(self, folder: Path) -> None:
        authority = certificate(folder, "hook-authority")
        certificate(folder, "hook", authority=authority)
        self.authority = str(folder / "hook-authority.crt")
        self.status, self.got = 200, list[tuple[str, dict[str, str], bytes]]()
        receiver = self

        class Handler(http.server.BaseHTTPRequestHandler):
            def do_POST(self) -> None:
                body = self.rfile.read(int(self.headers["Content-Length"]))
                receiver.got.append((self.path, {name.lower(): value for name, value in self.headers.items()}, body))
                self.send_response(receiver.status)
                self.send_header("Location", "https://127.0.0.1:1/elsewhere")
                self.send_header("Content-Length", "0")
                self.end_headers()

            def log_message(self, format: str, *args: object) -> None:
                pass

        self.server = http.server.ThreadingHTTPServer(("127.0.0.1", 0), Handler)
        context = ssl.SSLContext(ssl.PROTOCOL_TLS_SERVER)
        context.load_cert_chain(folder / "hook.crt", folder / "hook.key")
        self.server.socket = context.wrap_socket(self.server.socket, server_side=True)
        self.host = f"127.0.0.1:{self.server.server_address[1]}"

    def texts(self, task_id: str) -> list[str]:
        """Status messages and artifacts that arrived for a task."""
        found = []
        for _, _, body in list(self.got):
            update = next(iter(json.loads(body).values()))
            if update["taskId"] == task_id:
                about = update.get("status", {}).get("message") or update.get("artifact") or {}
                found.append(about.get("artifactId") or about.get("parts", [{"text": ""}])[0]["text"])
        return found


async def got(gateway: Gateway, name: str) -> dict[str, Any]:
    """A well-known document of the gateway."""
    async with httpx.AsyncClient(timeout=WAIT) as http:
        return dict((await http.get(f"{gateway.url}/.well-known/{name}")).json())


def followed(gateway: Gateway) -> float:
    """The configs with something to deliver, now or later."""
    text = get(f"{gateway.url}/metrics").text
    return float(next(line for line in text.splitlines() if line.startswith("aghbus_a2a_webhooks ")).split()[1])


@pytest.fixture
def webhook(tmp_path: Path) -> Iterator[Webhook]:
    hook = Webhook(tmp_path)
    thread = threading.Thread(target=hook.server.serve_forever)
    thread.start()
    yield hook
    hook.server.shutdown()
    hook.server.server_close()
    thread.join()


async def test_what_happens_is_delivered_in_order_over_failures_and_kills(bus: Bus, webhook: Webhook) -> None:
    options = ("--listen", "127.0.0.1:0", "--peer", "worker", "--push-allow", webhook.host)
    gateway = Gateway(bus.home, *options, env={"SSL_CERT_FILE": webhook.authority})
    await asyncio.to_thread(gateway.start)
    try:
        request = at_once(message())
        config = request.configuration.task_push_notification_config
        config.url, config.token = f"https://{webhook.host}/hook?x=1", "from-the-client"
        config.authentication.scheme, config.authentication.credentials = "Bearer", "their-word"
        async with sdk_client(gateway.url, "JSONRPC") as client:
            task = await task_of(client, request)
            again = await task_of(client, request)
            assert again["id"] == task["id"]
        assert followed(gateway) == 1
        await asyncio.to_thread(step, bus, task["id"], "update", message="one")
        await asyncio.to_thread(wait_for, lambda: webhook.texts(task["id"]) == ["one"], WAIT, "one")
        webhook.status = 503
        await asyncio.to_thread(step, bus, task["id"], "update", message="two")
        await asyncio.to_thread(gateway.until, "push", result="failed", why="status 503")
        gateway.process.kill()
        await asyncio.to_thread(step, bus, task["id"], "complete", message="three", result={"ok": True})
        webhook.status = 200
        webhook.got = [entry for entry in webhook.got if b'"one"' in entry[2]]
        await asyncio.to_thread(gateway.stop)
        await asyncio.to_thread(gateway.start)
        wanted = ["one", "two", "result", "three"]
        await asyncio.to_thread(wait_for, lambda: webhook.texts(task["id"]) == wanted, WAIT, str(wanted))
        await asyncio.to_thread(wait_for, lambda: followed(gateway) == 0, WAIT, "the end of the delivery")
        keys = jwt.PyJWKSet.from_dict(await got(gateway, "jwks.json"))
    finally:
        await asyncio.to_thread(gateway.stop)
    path, headers, body = webhook.got[-1]
    assert path == "/hook?x=1"
    assert headers["content-type"] == "application/a2a+json"
    assert (headers["authorization"], headers["x-a2a-notification-token"]) == ("Bearer their-word", "from-the-client")
    proof = headers["aghbus-signature"]
    key = keys[jwt.get_unverified_header(proof)["kid"]]
    claims = jwt.decode(proof, key, algorithms=["EdDSA"], audience=config.url)
    assert claims["request_body_sha256"] == hashlib.sha256(body).hexdigest()


async def test_configs_are_created_read_and_removed(bus: Bus, webhook: Webhook) -> None:
    options = ("--listen", "127.0.0.1:0", "--peer", "worker", "--push-allow", webhook.host)
    gateway = Gateway(bus.home, *options, env={"SSL_CERT_FILE": webhook.authority})
    await asyncio.to_thread(gateway.start)
    try:
        second = await asyncio.to_thread(bus.home.ctl, *gateway.command[3:], timeout=30)
        assert second.returncode == 2
        assert b"another gateway" in second.stderr
        async with sdk_client(gateway.url, "HTTP+JSON") as client:
            assert (await got(gateway, "agent-card.json"))["capabilities"]["pushNotifications"]
            task = await task_of(client, at_once(message()))
            url = f"https://{webhook.host}/"
            asked = pb.TaskPushNotificationConfig(task_id=task["id"], id="mine", url=url)
            made = await client.create_task_push_notification_config(asked)
            assert (made.id, made.url) == ("mine", asked.url)
            named: dict[str, Any] = {"task_id": task["id"], "id": "mine"}
            found = await client.get_task_push_notification_config(pb.GetTaskPushNotificationConfigRequest(**named))
            assert shown(found) == shown(made)
            ask = pb.ListTaskPushNotificationConfigsRequest(task_id=task["id"])
            assert len((await client.list_task_push_notification_configs(ask)).configs) == 1
            for _ in range(2):
                await client.delete_task_push_notification_config(pb.DeleteTaskPushNotificationConfigRequest(**named))
            assert not (await client.list_task_push_notification_configs(ask)).configs
            with pytest.raises(A2AError):
                await client.get_task_push_notification_config(pb.GetTaskPushNotificationConfigRequest(**named))
            for wrong in ("https://example.com/", "http://example.com/", "https://127.0.0.1:1/"):
                asked = pb.TaskPushNotificationConfig(task_id=task["id"], url=wrong)
                with pytest.raises(A2AError, match="url"):
                    await client.create_task_push_notification_config(asked)
    finally:
        await asyncio.to_thread(gateway.stop)
    assert webhook.got == []


def two_callers(folder: Path, first: str, second: str) -> str:
    """A file of callers, whose tokens are `a` and `b`, 16 times each."""
    path = folder / "callers"
    path.touch(0o600)
    path.write_text(f"{first} {'a' * 16}\n{second} {'b' * 16}\n")
    return str(path)


@contextlib.contextmanager
def silent() -> Iterator[str]:
    """The address of a receiver that takes connections, and never answers."""
    with socket.create_server(("127.0.0.1", 0), backlog=1000) as server:
        yield f"127.0.0.1:{server.getsockname()[1]}"


async def test_slow_webhooks_of_one_caller_do_not_keep_back_those_of_another(
    bus: Bus, webhook: Webhook, tmp_path: Path
) -> None:
    callers = two_callers(tmp_path, "ann", "bob")
    options = ("--listen", "127.0.0.1:0", "--peer", "worker", "--push-allow", "127.0.0.1:*", "--callers", callers)
    gateway = Gateway(bus.home, *options, env={"SSL_CERT_FILE": webhook.authority})
    await asyncio.to_thread(gateway.start)
    try:
        with silent() as slow:
            async with sdk_client(gateway.url, "JSONRPC", token="a" * 16) as ann:
                for _ in range(8):
                    task = await task_of(ann, at_once(message()))
                    for _ in range(10):
                        asked = pb.TaskPushNotificationConfig(task_id=task["id"], url=f"http://{slow}/")
                        await ann.create_task_push_notification_config(asked)
                    await asyncio.to_thread(step, bus, task["id"], "complete", message="done")
            async with sdk_client(gateway.url, "JSONRPC", token="b" * 16) as bob:
                task = await task_of(bob, at_once(message()))
                asked = pb.TaskPushNotificationConfig(task_id=task["id"], url=f"https://{webhook.host}/")
                await bob.create_task_push_notification_config(asked)
                await asyncio.to_thread(step, bus, task["id"], "complete", message="mine")
                await asyncio.to_thread(wait_for, lambda: webhook.texts(task["id"]) == ["mine"], 10, "mine")
    finally:
        await asyncio.to_thread(gateway.stop)


async def test_positions_that_are_ahead_of_a_restored_store_are_set_back(bus: Bus, webhook: Webhook) -> None:
    options = ("--listen", "127.0.0.1:0", "--peer", "worker", "--push-allow", webhook.host)
    gateway = Gateway(bus.home, *options, env={"SSL_CERT_FILE": webhook.authority})
    await asyncio.to_thread(gateway.start)
    try:
        async with sdk_client(gateway.url, "JSONRPC") as client:
            task = await task_of(client, at_once(message()))
            asked = pb.TaskPushNotificationConfig(task_id=task["id"], url=f"https://{webhook.host}/")
            await client.create_task_push_notification_config(asked)
        await asyncio.to_thread(gateway.stop)
        for path in stored(bus).glob("*.json"):
            path.write_text(json.dumps({**json.loads(path.read_text()), "seq": 1_000_000_000}))
        await asyncio.to_thread(gateway.start)
        await asyncio.to_thread(step, bus, task["id"], "complete", message="after it")
        await asyncio.to_thread(wait_for, lambda: webhook.texts(task["id"]) == ["after it"], WAIT, "after it")
    finally:
        await asyncio.to_thread(gateway.stop)


def stored(bus: Bus) -> Path:
    """The folder in which the gateway keeps its configs."""
    return bus.home.root / "state" / "aghbus" / "clients" / "ops" / "a2a-serve" / "push"


async def test_a_caller_has_a_thousand_configs_and_another_one_its_own(
    bus: Bus, webhook: Webhook, tmp_path: Path
) -> None:
    callers = two_callers(tmp_path, "carl", "dana")
    options = ("--listen", "127.0.0.1:0", "--peer", "worker", "--push-allow", webhook.host, "--callers", callers)
    gateway = Gateway(bus.home, *options, env={"SSL_CERT_FILE": webhook.authority})
    files = [stored(bus) / f"{number}.json" for number in range(MAX_OF_CALLER - 1)]
    await asyncio.to_thread(gateway.start)

    async def create(client: Client, task: dict[str, Any]) -> pb.TaskPushNotificationConfig:
        asked = pb.TaskPushNotificationConfig(task_id=task["id"], url=f"https://{webhook.host}/")
        return await client.create_task_push_notification_config(asked)

    try:
        async with sdk_client(gateway.url, "JSONRPC", token="a" * 16) as client:
            first, second = [await task_of(client, at_once(message())) for _ in range(2)]
        await asyncio.to_thread(gateway.stop)
        # of tasks of an agent that is not served now, whose end is not looked for
        for number, path in enumerate(files):
            task_id = f"{caller_part(first['id'])}_{number // MAX_OF_TASK}"
            config = {"id": str(number), "task_id": task_id, "agent": "away", "url": f"https://{webhook.host}/"}
            path.write_text(json.dumps(config))
        await asyncio.to_thread(gateway.start)
        async with (
            sdk_client(gateway.url, "JSONRPC", token="a" * 16) as carl,
            sdk_client(gateway.url, "JSONRPC", token="b" * 16) as dana,
        ):
            last = await create(carl, first)
            for task in (first, second):
                with pytest.raises(InvalidParamsError, match=r"too many configs: .* a caller 1000, the gateway 10000"):
                    await create(carl, task)
            await create(dana, await task_of(dana, at_once(message())))
            named: dict[str, Any] = {"task_id": first["id"], "id": last.id}
            await carl.delete_task_push_notification_config(pb.DeleteTaskPushNotificationConfigRequest(**named))
            await create(carl, second)
            with pytest.raises(InvalidParamsError):
                await create(carl, second)
    finally:
        await asyncio.to_thread(gateway.stop)
        for path in files:
            path.unlink(missing_ok=True)


async def test_over_a_full_disk_nothing_is_lost_and_what_was_delivered_is_kept_once_there_is_room(
    bus: Bus, webhook: Webhook
) -> None:
    options = ("--listen", "127.0.0.1:0", "--peer", "worker", "--push-allow", webhook.host)
    gateway = Gateway(bus.home, *options, env={"SSL_CERT_FILE": webhook.authority})

    def room(octets: int) -> None:
        """How much the gateway can write into a file."""
        resource.prlimit(gateway.process.pid, resource.RLIMIT_FSIZE, (octets, resource.RLIM_INFINITY))

    def not_kept() -> list[dict[str, Any]]:
        return [event for event in list(gateway.events) if event.get("result") == "not_kept"]

    def of_task() -> list[dict[str, Any]]:
        found = [json.loads(path.read_text()) for path in stored(bus).glob("*.json")]
        return [config for config in found if config["task_id"] == task["id"]]

    await asyncio.to_thread(gateway.start)
    try:
        async with sdk_client(gateway.url, "JSONRPC") as client:
            task = await task_of(client, at_once(message()))
            asked = pb.TaskPushNotificationConfig(task_id=task["id"], url=f"https://{webhook.host}/")
            await client.create_task_push_notification_config(asked)
            room(0)
            with pytest.raises(InternalError, match="cannot be stored now: try again later"):
                await client.create_task_push_notification_config(asked)
        texts = list[str]()
        for verb in [*["update"] * 5, "complete"]:  # a pause that doubled each time would be 16 s before the last one
            texts.append(str(len(texts)))
            await asyncio.to_thread(step, bus, task["id"], verb, message=texts[-1])
            await asyncio.to_thread(wait_for, lambda: webhook.texts(task["id"]) == texts, 14, str(texts))
        await asyncio.to_thread(wait_for, lambda: len(not_kept()) > len(texts), WAIT, "the end not to be kept")
        assert [*stored(bus).glob("*.new")] == []
        room(resource.RLIM_INFINITY)
        await asyncio.to_thread(wait_for, lambda: ["ended_ms" in one for one in of_task()] == [True], WAIT, "the end")
        await asyncio.to_thread(gateway.stop, signal.SIGKILL)
        await asyncio.to_thread(gateway.start)
    finally:
        await asyncio.to_thread(gateway.stop)
    assert webhook.texts(task["id"]) == texts


@pytest.mark.parametrize(
    "url",
    [
        "http://hooks.example.com/",
        "https://other.example.com/",
        "https://hooks.example.com:8443/",
        "https://user:word@hooks.example.com/",
        "https://hooks.example.com/#part",
        "https://hooks.example.com.evil.org/",
        "https://[::1]/",
        "https://hooks.example.com/\r\nX: y",
        "ftp://hooks.example.com/",
        "",
    ],
)
def test_urls_that_are_not_allowed_are_refused(url: str) -> None:
    with pytest.raises(Refused):
        AllowList(["hooks.example.com"]).target(url)


@pytest.mark.parametrize(
    "host", [".example.com", "a..example.com", f"{'a' * 64}.com", "a b.com", "[::1%eth0]", "a%00.com"]
)
def test_hosts_that_nobody_can_look_up_are_refused(host: str) -> None:
    with pytest.raises(Refused):
        AllowList(["*"]).target(f"https://{host}/")


def test_long_urls_are_refused() -> None:
    AllowList(["*"]).target("https://example.com/" + 2000 * "x")
    with pytest.raises(Refused):
        AllowList(["*"]).target("https://example.com/" + 2048 * "x")


@pytest.mark.parametrize(
    "host",
    [
        *(
            "127.0.0.1",
            "10.1.2.3",
            "192.168.0.1",
            "172.16.0.1",
            "169.254.169.254",
            "100.64.0.1",
            "0.0.0.0",
            "224.0.0.1",
        ),
        *("[::1]", "[::]", "[fe80::1]", "[fd00::1]", "[::ffff:127.0.0.1]", "[64:ff9b::7f00:1]", "[2002:7f00:1::]"),
        *("2130706433", "127.1", "0x7f.1", "localhost"),
    ],
)
async def test_private_addresses_are_refused_however_they_are_written(host: str) -> None:
    allowed = AllowList(["*"])
    with pytest.raises((Refused, OSError)):
        await allowed.address(allowed.target(f"https://{host}/"))


async def test_an_address_that_is_named_may_be_private() -> None:
    allowed = AllowList(["127.0.0.1:8443", "[::1]:8443", "hooks.example.com"])
    assert await allowed.address(allowed.target("https://127.0.0.1:8443/x")) == "127.0.0.1"
    assert await allowed.address(allowed.target("https://[::1]:8443/x")) == "::1"
    with pytest.raises(Refused):
        allowed.target("https://127.0.0.1/x")


def test_a_receiver_on_this_host_that_is_named_may_have_plain_http() -> None:
    allowed = AllowList(["127.0.0.1:*", "10.0.0.5:*", "localhost:9000"])
    assert not allowed.target("http://127.0.0.1:8001/x").tls
    assert not allowed.target("http://localhost:9000/").tls
    for url in ("http://10.0.0.5:8001/", "http://localhost:9001/", "http://127.0.0.2/"):
        with pytest.raises(Refused):
            allowed.target(url)
    with pytest.raises(Refused):
        AllowList(["*"]).target("http://127.0.0.1/")
