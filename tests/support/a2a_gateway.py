"""`aghctl a2a serve` as a process, clients of the official SDK, and a worker whose steps a test decides."""

import contextlib
import functools
import json
import signal
import subprocess
import sys
import threading
import uuid
from collections.abc import AsyncIterator, Iterator
from pathlib import Path
from typing import Any

import grpc
import httpx
from a2a.client import A2ACardResolver, Client, ClientConfig, ClientFactory
from a2a.types import a2a_pb2 as pb
from google.protobuf.json_format import MessageToDict, ParseDict

from tests.support.daemons import Home, wait_for
from tests.support.serving import WAIT, Bus

BINDINGS = ("JSONRPC", "HTTP+JSON", "GRPC")
ENDED = ("TASK_STATE_COMPLETED", "TASK_STATE_FAILED", "TASK_STATE_CANCELED", "TASK_STATE_REJECTED")
HEADERS = {"A2A-Version": "1.0"}

# 5 seconds, which they wait by themselves, are not enough for a machine that is busy
get = functools.partial(httpx.get, timeout=WAIT)
post = functools.partial(httpx.post, timeout=WAIT)


class Gateway:
    """One gateway of the daemon `ops`."""

    def __init__(self, home: Home, *options: str, env: dict[str, str] | None = None) -> None:
        self.command = [sys.executable, "-m", "aghbus.cli", "--name", "ops", "-o", "jsonl", "a2a", "serve", *options]
        self.env = {**home.env, **(env or {})}
        self.events: list[dict[str, Any]] = []
        self.url = ""

    def start(self) -> None:
        self.process = subprocess.Popen(self.command, env=self.env, stdout=subprocess.PIPE, stderr=subprocess.PIPE)
        self.events = []
        self._reader = threading.Thread(target=self._read)
        self._reader.start()
        try:
            self.url = self.until("listening")["url"]
        except BaseException:
            self.stop(signal.SIGKILL)
            raise

    def _read(self) -> None:
        assert self.process.stdout is not None
        for line in self.process.stdout:
            self.events.append(json.loads(line))

    def until(self, event: str, **members: Any) -> dict[str, Any]:
        """The first such event."""
        found: list[dict[str, Any]] = []

        def there() -> bool:
            found[:] = [one for one in list(self.events) if one["event"] == event and members.items() <= one.items()]
            assert found or self.process.poll() is None, self.process.stderr and self.process.stderr.read()
            return bool(found)

        wait_for(there, WAIT, f"{event} {members}")
        return found[0]

    def stop(self, number: signal.Signals = signal.SIGTERM) -> int:
        if self.process.poll() is None:
            self.process.send_signal(number)
        code = self.process.wait(WAIT)
        self._reader.join(WAIT)
        for stream in (self.process.stdout, self.process.stderr):
            assert stream is not None
            stream.close()
        return code

    def port(self) -> int:
        return int(self.url.rpartition(":")[2])


@contextlib.contextmanager
def serving_a2a(home: Home, *options: str, env: dict[str, str] | None = None) -> Iterator[Gateway]:
    gateway = Gateway(home, *options, env=env)
    gateway.start()
    try:
        yield gateway
    finally:
        gateway.stop()


@contextlib.asynccontextmanager
async def sdk_client(
    url: str, binding: str, *, streaming: bool = False, token: str = "", verify: Any = True
) -> AsyncIterator[Client]:
    """A client of the SDK for the agent at `url`."""
    headers = {"Authorization": f"Bearer {token}"} if token else {}
    async with httpx.AsyncClient(timeout=30, headers=headers, verify=verify) as http:
        card = await A2ACardResolver(http, url).get_agent_card()
        config = ClientConfig(
            httpx_client=http,
            streaming=streaming,
            supported_protocol_bindings=[binding],
            grpc_channel_factory=grpc.aio.insecure_channel,
        )
        async with ClientFactory(config).create(card) as client:
            yield client


def message(text: str = "do it", **more: Any) -> pb.SendMessageRequest:
    """A request with one text; `more` are members of the message, in camelCase."""
    content = {"messageId": uuid.uuid4().hex, "role": "ROLE_USER", "parts": [{"text": text}], **more}
    return ParseDict({"message": content}, pb.SendMessageRequest())  # type: ignore[no-any-return]


def at_once(request: pb.SendMessageRequest) -> pb.SendMessageRequest:
    """The same request, answered before the end of the task."""
    request.configuration.return_immediately = True
    return request


def shown(event: Any) -> dict[str, Any]:
    """A message of the SDK as JSON."""
    return MessageToDict(event)  # type: ignore[no-any-return]


async def task_of(client: Client, request: pb.SendMessageRequest) -> dict[str, Any]:
    """The task that a request is answered with."""
    found = [shown(event) async for event in client.send_message(request)]
    return dict(found[0]["task"])


def received(bus: Bus, work_id: str) -> dict[str, Any]:
    """The opening that the worker's daemon has received, with its body and `ext`."""
    query = f"/v1/messages?work={work_id}&direction=in"
    wait_for(lambda: bus.worker.get(query)["messages"], WAIT, "the work to arrive")
    return dict(bus.worker.get(query)["messages"][0]["envelope"])


def step(bus: Bus, work_id: str, verb: str, **members: Any) -> None:
    """One step of the worker, which `ops` knows of afterwards."""
    received(bus, work_id)
    sent = bus.worker.post(f"/v1/works/{work_id}/{verb}", **members)
    query = f"/v1/messages?work={work_id}&direction=in&limit=1000"

    def arrived() -> bool:
        return any(one["id"] == sent["id"] for one in bus.ops.get(query)["messages"])

    wait_for(arrived, WAIT, f"{verb} to arrive")


def certificate(folder: Path, name: str, *, authority: tuple[Any, Any] | None = None, days: int = 1) -> tuple[Any, Any]:
    """A certificate and its key, as NAME.crt and NAME.key: of an authority, or by `authority` for 127.0.0.1. It is valid for so
    many days from now on; below 0 it has expired."""
    import datetime
    import ipaddress

    from cryptography import x509
    from cryptography.hazmat.primitives import hashes, serialization
    from cryptography.hazmat.primitives.asymmetric import ec
    from cryptography.x509.oid import NameOID

    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.datetime.now(datetime.UTC)
    issuer, signer = (subject, key) if authority is None else (authority[0].subject, authority[1])
    builder = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(issuer)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - datetime.timedelta(days=9))
        .not_valid_after(now + datetime.timedelta(days=days))
        .add_extension(x509.BasicConstraints(ca=authority is None, path_length=None), critical=True)
        .add_extension(x509.SubjectKeyIdentifier.from_public_key(key.public_key()), critical=False)
    )
    if authority is not None:
        names = x509.SubjectAlternativeName([x509.IPAddress(ipaddress.ip_address("127.0.0.1"))])
        issued_by = x509.AuthorityKeyIdentifier.from_issuer_public_key(authority[1].public_key())
        builder = builder.add_extension(names, critical=False).add_extension(issued_by, critical=False)
    made = builder.sign(signer, hashes.SHA256())
    (folder / f"{name}.crt").write_bytes(made.public_bytes(serialization.Encoding.PEM))
    path = folder / f"{name}.key"
    path.touch(0o600)
    form = serialization.PrivateFormat.PKCS8
    path.write_bytes(key.private_bytes(serialization.Encoding.PEM, form, serialization.NoEncryption()))
    return made, key
