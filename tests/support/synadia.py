"""The bridge to Synadia's agents as a process, and clients and hosts of their published libraries."""

import asyncio
import contextlib
import json
import subprocess
import sys
from collections.abc import AsyncIterator, Awaitable, Callable, Iterator
from pathlib import Path
from typing import Any

import nats
from nats.aio.client import Client as NatsClient
from nats.aio.msg import Msg
from synadia_ai.agent_service import AgentService, PromptStream
from synadia_ai.agents import (
    Agent,
    Agents,
    Attachment,
    Envelope,
    PromptExtras,
    PromptInterceptorContext,
    ProtocolError,
    Query,
    ResponseChunk,
    StatusChunk,
)

from tests.support.daemons import Daemon, Home
from tests.support.serving import EventsProcess

HOST = Path(__file__).with_name("synadia_host.py")
OWNER = "alice"


@contextlib.contextmanager
def bridge(home: Home, name: str, *words: str) -> Iterator[EventsProcess]:
    """`aghctl --name NAME bridge synadia …`, once it is ready; killed at the end if it still runs."""
    process = EventsProcess(home, home.root, "--name", name, "bridge", "synadia", *words, "-o", "jsonl")
    try:
        process.until("ready")
        yield process
    finally:
        process.close()


def login(home: Home, daemon: Daemon) -> dict[str, Any]:
    """How to connect to the embedded broker of the home."""
    token = (home.root / "state" / "aghbus" / "broker" / "token").read_text().strip()
    return {"servers": daemon.get("/v1/status")["broker"]["url"], "token": token}


@contextlib.asynccontextmanager
async def connected(options: dict[str, Any]) -> AsyncIterator[NatsClient]:
    client = await nats.connect(**options)
    try:
        yield client
    finally:
        await client.close()


class Response:
    """What a caller got for a prompt; `error` if it ended with one."""

    def __init__(self) -> None:
        self.texts: list[str] = []
        self.statuses: list[str] = []
        self.files: dict[str, bytes] = {}
        self.questions: list[str] = []
        self.error = ""

    @property
    def text(self) -> str:
        return "".join(self.texts)

    @property
    def work_id(self) -> str:
        return next(
            status.removeprefix("aghbus.work ") for status in self.statuses if status.startswith("aghbus.work ")
        )


class _Marked:
    """Sends each prompt with this `Nats-Msg-Id`."""

    def __init__(self, mark: str) -> None:
        self._mark = mark

    async def before_prompt(self, ctx: PromptInterceptorContext) -> PromptExtras:
        return PromptExtras(headers={"Nats-Msg-Id": self._mark})


@contextlib.asynccontextmanager
async def agent_of(
    client: NatsClient, session: str, mark: str | None = None, owner: str = "ws_local"
) -> AsyncIterator[Agent]:
    """The agent with a session that begins so, found by their client."""
    agents = Agents(nc=client, interceptors=[] if mark is None else [_Marked(mark)])
    try:
        found: list[Agent] = []
        for _ in range(100):
            agents_there = await agents.discover(stall=0.2)
            found = [each for each in agents_there if each.session_name.startswith(session) and each.owner == owner]
            if found:
                break
        yield found[0]
    finally:
        await agents.close()


async def prompted(
    agent: Agent,
    text: str,
    *files: tuple[str, bytes],
    answer: str | Envelope | None = None,
    on_work: Callable[[str], object] = lambda work_id: None,
) -> Response:
    """The whole response to a prompt. A question gets `answer`. `on_work` gets the id of the work."""
    got = Response()
    attachments = [Attachment.from_bytes(*each) for each in files]
    try:
        async for chunk in agent.prompt(text, attachments=attachments or None, timeout=40):
            if isinstance(chunk, ResponseChunk):
                got.texts.append(chunk.text)
                got.files |= {each.filename: each.to_bytes() for each in chunk.attachments or []}
            elif isinstance(chunk, StatusChunk):
                got.statuses.append(chunk.status)
                if chunk.status.startswith("aghbus.work "):
                    on_work(got.work_id)
            else:
                assert isinstance(chunk, Query)
                got.questions.append(chunk.prompt)
                if answer is not None:
                    await chunk.reply(answer)
    except ProtocolError as error:
        got.error = str(error)
    return got


@contextlib.asynccontextmanager
async def hosting(
    client: NatsClient,
    agent: str,
    on_prompt: Callable[[Envelope, PromptStream], Awaitable[None]],
    session: str = "repo",
    **options: Any,
) -> AsyncIterator[AgentService]:
    """An agent of theirs in this process."""
    service = AgentService(agent=agent, owner=OWNER, session_name=session, nc=client, **options)
    service.on_prompt(on_prompt)
    await service.start()
    try:
        yield service
    finally:
        await service.stop()


Raw = bytes | tuple[bytes, dict[str, str]]
"""A message of an agent: its bytes, or these and headers."""


@contextlib.asynccontextmanager
async def raw_agent(
    client: NatsClient, agent: str, answers: Callable[[str], list[Raw]], info: bytes | None = None, **parts: Any
) -> AsyncIterator[dict[str, Any]]:
    """An agent without a library: a prompt gets these messages, and who looks for agents gets `info`, or the record with other
    `parts` that this yields."""
    end = f"{agent}.{OWNER}.repo"
    record = {
        "type": "io.nats.micro.v1.info_response",
        "name": "agents",
        "id": f"RAW{agent}",
        "version": "1.0.0",
        "description": "raw",
        "metadata": {"agent": agent, "owner": OWNER, "protocol_version": "0.3"},
        "endpoints": [{"name": verb, "subject": f"agents.{verb}.{end}"} for verb in ("prompt", "status")],
        **parts,
    }
    beat = {"agent": agent, "owner": OWNER, "instance_id": record["id"], "ts": "2026-01-01T00:00:00Z", "interval_s": 30}

    async def on_info(message: Msg) -> None:
        await message.respond(json.dumps(record).encode() if info is None else info)

    async def on_status(message: Msg) -> None:
        await message.respond(json.dumps(beat).encode())

    async def on_prompt(message: Msg) -> None:
        for each in answers(json.loads(message.data)["prompt"]):
            data, headers = each if isinstance(each, tuple) else (each, None)
            await client.publish(message.reply, data, headers=headers)

    listening = {"$SRV.INFO.agents": on_info, f"agents.status.{end}": on_status, f"agents.prompt.{end}": on_prompt}
    subscriptions = [await client.subscribe(subject, cb=callback) for subject, callback in listening.items()]
    await client.flush()
    try:
        yield record
    finally:
        for one in subscriptions:
            await one.unsubscribe()
        await client.flush()


@contextlib.contextmanager
def host_process(home: Home, daemon: Daemon, agent: str) -> Iterator[subprocess.Popen[bytes]]:
    """An agent of theirs as a process: it writes each prompt into the file AGENT.prompts, and answers once AGENT.go exists."""
    where = login(home, daemon)
    command = [sys.executable, str(HOST), where["servers"], where["token"], agent, OWNER]
    process = subprocess.Popen(command, cwd=home.root, stdout=subprocess.PIPE)
    assert process.stdout is not None
    try:
        assert process.stdout.readline() == b"up\n"
        yield process
    finally:
        process.kill()
        process.wait(10)
        process.stdout.close()


async def in_thread(work: Callable[[], Any]) -> Any:
    """What `work` returns, while the loop goes on."""
    return await asyncio.get_running_loop().run_in_executor(None, work)
