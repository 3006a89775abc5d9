"""`aghctl bridge synadia serve`: their published client finds our peers and prompts them; what happens at kills of each side."""

import asyncio
import contextlib
import json
import signal
import sys
import urllib.request
from collections.abc import AsyncIterator, Callable, Iterable, Iterator
from importlib.metadata import PackageNotFoundError
from typing import Any

import pytest
from nats.aio.msg import Msg
from synadia_ai.agents import Agent, Attachment, Envelope, ProtocolError, Query

from aghbus.client import UsageError
from aghbus.gateways.synadia import sdk
from tests.support.daemons import ADMIT_ALL, Daemon, Home, wait_for
from tests.support.serving import Bus, EventsProcess, Serve
from tests.support.synadia import Response, agent_of, bridge, connected, in_thread, login, prompted

ACTS = """
import json, os, pathlib, subprocess, sys, time
work, text = os.environ["AGH_WORK_ID"], json.load(sys.stdin)["text"]
with open("runs", "a") as runs:
    print(text, file=runs)
for line in text.splitlines():
    word, _, rest = line.partition(" ")
    if word == "say":
        print(rest, flush=True)
    elif word == "ask" and "AGH_ANSWER" not in os.environ:
        subprocess.run([sys.executable, "-m", "aghbus.cli", "work", "need-input", work, "--message", rest], check=True, stdout=2)
        sys.exit(0)
    elif word == "ask":
        print("answer:", os.environ["AGH_ANSWER"])
    elif word == "file":
        pathlib.Path(rest).write_bytes(b"content of " + rest.encode())
    elif word == "wait":
        while not pathlib.Path(rest).exists():
            time.sleep(0.02)
    elif word == "fail":
        print(rest, file=sys.stderr)
        sys.exit(3)
print("end")
"""


class Net:
    """`ops`, which the bridge uses, `worker`, whose works a command carries out, and the folder of the command."""

    def __init__(self, home: Home, ops: Daemon, worker: Daemon, serve: Serve) -> None:
        self.home, self.ops, self.worker, self.serve = home, ops, worker, serve
        self.folder = home.root

    def go(self, name: str) -> None:
        (self.folder / name).touch()

    def runs(self, text: str) -> int:
        """How often the command has begun with this text."""
        return (self.folder / "runs").read_text().splitlines().count(text.splitlines()[0])

    def opening(self, work_id: str) -> dict[str, Any]:
        found: dict[str, Any] = self.ops.get(f"/v1/messages?work={work_id}&direction=out")["messages"][0]["envelope"]
        return found

    def until_state(self, work_id: str, state: str) -> None:
        wait_for(lambda: self.ops.state_of(work_id) == state, 30, f"{work_id} to be {state}")


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    home = Home(tmp_path_factory.mktemp("synadia"))
    options = ("--capability", "test.run", *ADMIT_ALL)
    with Daemon(home, "worker", *options) as worker, Daemon(home, "ops", "--display-name", "Operations") as ops:
        bus = Bus(home, ops, worker)
        bus.meet()
        (home.root / "acts.py").write_text(ACTS)
        more = ("--concurrency", "4", "--heartbeat", "0.2s", "--artifact", "made*")
        serve = Serve(bus, home.root, *more, command=[sys.executable, "acts.py"])
        try:
            serve.until("ready")
            yield Net(home, ops, worker, serve)
        finally:
            serve.close()


@pytest.fixture(scope="module")
def served(net: Net) -> Iterator[EventsProcess]:
    options = ("--keepalive", "0.2s", "--answer-within", "8s", "--metrics", "127.0.0.1:0")
    with bridge(net.home, "ops", "serve", *options) as process:
        yield process


@contextlib.asynccontextmanager
async def worker_agent(net: Net, mark: str | None = None, owner: str = "ws_local") -> AsyncIterator[Agent]:
    async with connected(login(net.home, net.ops)) as client, agent_of(client, "worker", mark, owner) as agent:
        yield agent


def figures(served: EventsProcess) -> dict[str, float]:
    """Its metrics."""
    with urllib.request.urlopen(f"http://127.0.0.1:{served.until('metrics')['port']}/metrics", timeout=30) as answer:
        lines = answer.read().decode().splitlines()
    return {name: float(value) for name, value in (line.rsplit(" ", 1) for line in lines if line[0] != "#")}


def told(texts: Iterable[str]) -> list[str]:
    """The lines of a response but for the heartbeats of a command that starts slowly."""
    return [line for text in texts for line in text.splitlines() if not line.startswith("running for ")]


async def test_a_prompt_is_a_work_with_its_progress_questions_files_and_end(net: Net, served: EventsProcess) -> None:
    before = await in_thread(lambda: figures(served))
    async with worker_agent(net) as agent:
        assert (agent.agent, agent.owner, agent.session_name) == ("aghbus", "ws_local", "worker")
        text = "say one\nwait first\nfile made.txt\nask Which branch?"
        answer = Envelope(prompt="main", attachments=[Attachment.from_bytes("notes.txt", b"n")])
        prompting = asyncio.create_task(
            prompted(agent, text, ("../in put.txt", b"given"), answer=answer, on_work=lambda _: net.go("first"))
        )
        got = await prompting
    assert got.error == ""
    assert got.questions == ["Which branch?"]
    assert got.text.endswith(f"answer: main\n[notes.txt: agh://artifacts/{got.work_id}/notes.txt]\nend\n")
    assert got.files.keys() == {"result.json", "made.txt"}
    assert got.files["made.txt"] == b"content of made.txt"
    assert json.loads(got.files["result.json"])["exit_code"] == 0
    opening = net.opening(got.work_id)
    assert opening["body"]["text"] == text
    assert opening["ext"]["aghbus.principal"] == {"name": "anonymous", "via": "synadia"}
    stored = [artifact["name"] for artifact in net.ops.get(f"/v1/artifacts?work={got.work_id}")["artifacts"]]
    assert stored == ["in_put.txt", "made.txt", "notes.txt"]
    assert net.ops.state_of(got.work_id) == "completed"
    await in_thread(lambda: served.until("ended", work_id=got.work_id))
    after = await in_thread(lambda: figures(served))
    for counter in ('prompts_total{outcome="completed"}', "questions_total"):
        assert after[f"aghbus_synadia_{counter}"] == before.get(f"aghbus_synadia_{counter}", 0) + 1
    assert (after["aghbus_synadia_agents"], after["aghbus_synadia_running"]) == (1.0, 0.0)


async def test_an_answer_may_have_a_file_of_the_same_name_as_the_prompt(net: Net, served: EventsProcess) -> None:
    async with worker_agent(net) as agent:
        answer = Envelope(prompt="main", attachments=[Attachment.from_bytes("a.txt", b"second")])
        got = await prompted(agent, "ask Which file?", ("a.txt", b"first"), answer=answer)
    assert got.error == ""
    assert f"[a_2.txt: agh://artifacts/{got.work_id}/a_2.txt]" in got.text


async def test_progress_comes_while_the_work_runs(net: Net, served: EventsProcess) -> None:
    async with worker_agent(net) as agent:
        seen = asyncio.Event()
        prompting = asyncio.create_task(prompted(agent, "say halfway\nwait halfway.go"))
        while not prompting.done():
            await asyncio.sleep(0.05)
            if net.serve.seen("heartbeat", message="halfway"):
                net.go("halfway.go")
                seen.set()
        got = await prompting
    assert seen.is_set()
    assert told(got.texts)[0] == "halfway"
    assert got.text.endswith("halfway\nend\n")


@pytest.mark.parametrize("kind", ["response", "status"])
async def test_each_report_is_a_chunk_in_its_order_and_nothing_follows_the_end(net: Net, kind: str) -> None:
    got: list[tuple[str, Any]] = []
    end = asyncio.Event()
    form = "working: {}" if kind == "status" else "{}\n"
    reports = [(kind, form.format(word)) for word in ("one", "two")]

    async def on_message(message: Msg) -> None:
        found: dict[str, Any] = json.loads(message.data) if message.data else {"type": "end", "data": message.headers}
        got.append((found["type"], found["data"]))
        if got[-1] in reports:
            net.go(f"{kind}.{reports.index(got[-1])}")
        if not message.data:
            end.set()

    with bridge(net.home, "ops", "serve", "--peer", "worker", "--owner", kind, "--progress", kind) as process:
        async with worker_agent(net, owner=kind) as agent, connected(login(net.home, net.ops)) as client:
            inbox = client.new_inbox()
            await client.subscribe(inbox, cb=on_message)
            text = f"say one\nwait {kind}.0\nsay two\nwait {kind}.1"
            await client.publish(agent.prompt_subject, json.dumps({"prompt": text}).encode(), reply=inbox)
            await asyncio.wait_for(end.wait(), 30)
            assert process.stop() == 0
            await client.flush()
    work = next(data for _, data in got if str(data).startswith("aghbus.work "))
    last = [
        ("response", "one\ntwo\nend\n"),
        ("response", {"text": "", "attachments": got[-2][1]["attachments"]}),
        ("end", None),
    ]
    slow = ("ack", form.format("end"), form.format("running for ").rstrip())  # what may come of a command that is slow
    shown = [each for each in got if not str(each[1]).startswith(slow)]
    assert shown == [("status", work), *reports, *last]


async def test_a_prompt_that_wants_its_answer_elsewhere_than_in_an_inbox_gets_none(
    net: Net, served: EventsProcess
) -> None:
    async with worker_agent(net) as agent, connected(login(net.home, net.ops)) as client:
        stray = await client.subscribe("elsewhere")
        for subject in (agent.prompt_subject, agent.prompt_subject.replace(".prompt.", ".status.")):
            await client.publish(subject, b'{"prompt": "say elsewhere"}', reply="elsewhere")
        await client.flush()
        assert (await prompted(agent, "say here")).error == ""
        await client.flush()
        assert stray.pending_msgs == 0


@pytest.mark.parametrize("policy", ["keep", "cancel"])
async def test_an_answer_that_is_no_envelope_ends_the_prompt_and_says_why(net: Net, policy: str) -> None:
    answers = {
        b"": "zero-byte payload",
        b'{"prompt": 5}': "prompt Input should be a valid string",
        b"\xff": "not valid UTF-8",
    }
    with bridge(net.home, "ops", "serve", "--peer", "worker", "--owner", policy, "--on-caller-gone", policy) as process:
        async with worker_agent(net, owner=policy) as agent, connected(login(net.home, net.ops)) as client:
            for answer, why in answers.items():
                error = ""
                try:
                    async for chunk in agent.prompt("ask Which?", timeout=30):
                        if isinstance(chunk, Query):
                            await client.publish(chunk.reply_subject, answer)
                except ProtocolError as raised:
                    error = str(raised)
                assert error.startswith("service error 400: the question was not answered by an envelope: ")
                assert why in error
        assert process.stop() == 0
        works = {event["work_id"] for event in process.seen("prompted")}
    assert len(works) == len(answers)
    for work_id in works:
        await in_thread(
            lambda work_id=work_id: net.until_state(work_id, "needs_input" if policy == "keep" else "canceled")  # type: ignore[misc]
        )


async def test_what_fails_is_an_error_with_its_reason_and_text(net: Net, served: EventsProcess) -> None:
    long = "broken " * 60
    async with worker_agent(net) as agent:
        short = await prompted(agent, "fail no tests found")
        whole = await prompted(agent, f"fail {long}")
        blank = await prompted(agent, " ")
    assert short.error == f"service error 500: failed: no tests found [work {short.work_id}]"
    assert whole.error.startswith("service error 500: failed: broken broken")
    assert whole.error.endswith(f"... [work {whole.work_id}]")
    assert {*told(whole.texts)} == {long.strip()}  # a slow end shows it as progress before
    assert blank.error == "service error 400: prompt: must not be blank"


async def test_a_canceled_work_ends_the_prompt_also_during_a_question(net: Net, served: EventsProcess) -> None:
    def cancel(work_id: str) -> None:
        net.until_state(work_id, "needs_input")
        net.ops.post(f"/v1/works/{work_id}/cancel", message="not needed")

    async with worker_agent(net) as agent:
        work: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        prompting = asyncio.create_task(prompted(agent, "ask Go on?", on_work=work.set_result))
        await in_thread(lambda work_id=await work: cancel(work_id))  # type: ignore[misc]
        got = await prompting
    assert got.questions == ["Go on?"]
    assert got.error == f"service error 410: canceled: not needed [work {got.work_id}]"


async def test_a_question_may_be_answered_by_others_or_by_nobody(net: Net, served: EventsProcess) -> None:
    def say(work_id: str) -> None:
        net.until_state(work_id, "needs_input")
        net.ops.post(f"/v1/works/{work_id}/say", message="by the operator")

    async with worker_agent(net) as agent:
        work: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        prompting = asyncio.create_task(prompted(agent, "ask Who?", on_work=work.set_result))
        await in_thread(lambda work_id=await work: say(work_id))  # type: ignore[misc]
        answered = await prompting
        unanswered = await prompted(agent, "ask Nobody?")
    assert answered.text.endswith("answer: by the operator\nend\n")
    assert unanswered.error.startswith("service error 408: the question was not answered in time; the work work_")
    assert net.ops.state_of(unanswered.work_id) == "needs_input"


async def test_a_prompt_with_the_same_message_id_is_the_same_work(net: Net, served: EventsProcess) -> None:
    text = "say only once"
    async with worker_agent(net, "prompt-1") as agent:
        first, again = await prompted(agent, text), await prompted(agent, text)
        other = await prompted(agent, "say another")
    assert again.work_id == first.work_id
    for each in (first, again):
        assert told(each.texts)[-2:] == ["only once", "end"]  # a slow end shows lines as progress before
    assert net.runs(text) == 1
    assert other.error.startswith("service error 409: the work was not opened: ")


@pytest.mark.parametrize("policy", ["keep", "cancel"])
async def test_the_end_of_the_caller_is_noticed_and_the_work_kept_or_canceled(net: Net, policy: str) -> None:
    text = f"wait {policy}.go"
    more = ("--keepalive", "0.2s", "--capability", "test.run", "--on-caller-gone", policy)
    with bridge(net.home, "ops", "serve", *more) as process:
        async with connected(login(net.home, net.ops)) as client, agent_of(client, "test-run-") as agent:
            assert agent.metadata["aghbus_capability"] == "test.run"
            work: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            prompting = asyncio.create_task(prompted(agent, text, on_work=work.set_result))
            work_id = await work
        prompting.cancel()
        gone = await in_thread(lambda: process.until("caller_gone", work_id=work_id))
        assert gone["message"] == ("the work goes on" if policy == "keep" else "the work is canceled")
        if policy == "cancel":
            await in_thread(lambda: net.until_state(work_id, "canceled"))
        net.go(f"{policy}.go")
        if policy == "keep":
            await in_thread(lambda: net.until_state(work_id, "completed"))
        assert process.stop() == 0


async def killed(net: Net, text: str, kill: Callable[[], object], owner: str = "ws_local") -> Response:
    """The response to a prompt during whose work something is killed."""
    async with worker_agent(net, owner=owner) as agent:
        work: asyncio.Future[str] = asyncio.get_running_loop().create_future()
        prompting = asyncio.create_task(prompted(agent, text, on_work=work.set_result))
        await in_thread(lambda work_id=await work: net.until_state(work_id, "working"))  # type: ignore[misc]
        await in_thread(kill)
        net.go(text.split()[1])
        return await prompting


async def test_the_caller_gets_the_end_although_the_daemon_was_killed(net: Net, served: EventsProcess) -> None:
    def kill() -> None:
        net.ops.kill()
        net.ops.start()

    got = await killed(net, "wait daemon.go", kill)
    assert got.error == "", served.events[-6:]
    assert got.text.endswith("end\n")
    assert net.runs("wait daemon.go") == 1


async def test_the_work_goes_on_although_the_bridge_was_killed_and_the_prompt_again_gets_its_end(net: Net) -> None:
    with bridge(net.home, "ops", "serve", "--owner", "killed") as first:
        async with worker_agent(net, "prompt-3", "killed") as agent:
            work: asyncio.Future[str] = asyncio.get_running_loop().create_future()
            prompting = asyncio.create_task(prompted(agent, "wait bridge.go", on_work=work.set_result))
            work_id = await work
            await in_thread(lambda: net.until_state(work_id, "working"))
            first.process.kill()
            prompting.cancel()
    net.go("bridge.go")
    await in_thread(lambda: net.until_state(work_id, "completed"))
    with bridge(net.home, "ops", "serve", "--owner", "killed") as second:
        async with worker_agent(net, "prompt-3", "killed") as agent:
            again = await prompted(agent, "wait bridge.go")
        assert second.stop(signal.SIGINT) == 130
    assert again.work_id == work_id
    assert again.text.endswith("end\n")
    assert net.runs("wait bridge.go") == 1


async def test_a_caller_is_told_that_the_bridge_stops(net: Net) -> None:
    with bridge(net.home, "ops", "serve", "--peer", "worker", "--owner", "stopped") as process:
        got = await killed(net, "wait stop.go", process.stop, "stopped")
        assert process.ended() == 0
    assert got.error == f"service error 503: the bridge stops; the work {got.work_id} goes on"
    await in_thread(lambda: net.until_state(got.work_id, "completed"))


def test_a_missing_library_is_named_with_what_installs_it(monkeypatch: pytest.MonkeyPatch) -> None:
    def version(package: str) -> str:
        raise PackageNotFoundError(package)

    monkeypatch.setattr(sdk, "version", version)
    with pytest.raises(UsageError) as error:
        sdk.check()
    assert error.value.message == "not installed: synadia-ai-agents and synadia-ai-agent-service"
    assert error.value.hint == 'pip install "aghbus[synadia]"'
