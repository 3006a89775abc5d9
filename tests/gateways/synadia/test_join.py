"""`aghctl bridge synadia join`: works go to agents of their published host library; what happens at kills of each side."""

import asyncio
import contextlib
import json
import signal
import subprocess
import time
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest
from synadia_ai.agent_service import PromptStream
from synadia_ai.agents import Attachment, Envelope, ResponseChunk

from tests.support.daemons import ADMIT_ALL, Daemon, Home, wait_for
from tests.support.serving import Bus, EventsProcess
from tests.support.synadia import Raw, bridge, connected, host_process, hosting, in_thread, login, raw_agent

LEAK = "AKIA" + "QWERTYUIOPASDFGH"
JOIN = ("join", "--idle-timeout", "30s", "--drain", "1s")


class Net(Bus):
    """`ops`, who gives works, and `worker`, whose daemon the bridge uses."""

    def give(self, capability: str, text: str, **more: Any) -> str:
        """A new work for a capability."""
        wait_for(lambda: self.announced(capability), 30, f"{capability} to be announced")
        work_id: str = self.ops.post("/v1/works", to_capability=capability, text=text, **more)["work_id"]
        return work_id

    def announced(self, capability: str) -> bool:
        peers = self.ops.get("/v1/peers")["peers"]
        return any(capability in peer["card"]["capabilities"] for peer in peers)

    def ended(self, work_id: str) -> dict[str, Any]:
        """The work, once it has ended."""
        self.end_of(work_id)
        work: dict[str, Any] = self.ops.get(f"/v1/works/{work_id}")["work"]
        return work

    def prompts(self, agent: str) -> list[str]:
        """What the host process was prompted with."""
        path = self.home.root / f"{agent}.prompts"
        return path.read_text().splitlines() if path.exists() else []

    def file(self, work_id: str, name: str) -> bytes:
        done = self.home.ctl("--name", "ops", "artifact", "get", work_id, name, "-O", "-")
        assert done.returncode == 0, done.stderr
        return done.stdout


@pytest.fixture(scope="module")
def net(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Net]:
    home = Home(tmp_path_factory.mktemp("synadia"))
    with Daemon(home, "worker", *ADMIT_ALL) as worker, Daemon(home, "ops") as ops:
        net = Net(home, ops, worker)
        net.meet()
        yield net


@pytest.fixture(scope="module")
def joined(net: Net) -> Iterator[EventsProcess]:
    """For the agents of the tests in this process: a bridge for every agent would take the works of the others."""
    agents = (word for agent in ("writer", "failing", "long", "canceled", "raw") for word in ("--agent", agent))
    with bridge(net.home, "worker", *JOIN, *agents) as process:
        yield process


@contextlib.contextmanager
def host_and_bridge(net: Net, agent: str, *words: str) -> Iterator[tuple[subprocess.Popen[bytes], EventsProcess]]:
    """A host process, and a bridge that joins every agent."""
    with host_process(net.home, net.worker, agent) as host, bridge(net.home, "worker", *JOIN, *words) as process:
        yield host, process


async def test_a_work_is_a_prompt_with_its_progress_questions_files_and_end(net: Net, joined: EventsProcess) -> None:
    seen: list[Envelope] = []
    go = asyncio.Event()

    async def on_prompt(envelope: Envelope, stream: PromptStream) -> None:
        seen.append(envelope)
        for number in range(300):
            await stream.send(f"word {number}\n")
        await go.wait()
        answer = await stream.ask("Which branch?", timeout=30, attachments=[Attachment.from_bytes("why.txt", b"w")])
        made = [Attachment.from_bytes("../made it.txt", b"made"), Attachment.from_bytes("made it.txt", b"again")]
        await stream.send(ResponseChunk(text=f"answer {answer.prompt}", attachments=made))

    given = net.home.root / "given.txt"
    given.write_bytes(b"given")
    stored = net.home.ctl_json("--name", "ops", "artifact", "put", "work_files", str(given))
    artifacts = [{"name": "given.txt", "uri": stored["uri"]}, {"uri": "https://example.com/x"}]
    async with connected(login(net.home, net.worker)) as client, hosting(client, "writer", on_prompt):
        began = time.monotonic()
        work_id = await in_thread(lambda: net.give("synadia.writer", "write it", artifacts=artifacts))
        await in_thread(lambda: wait_for(lambda: net.traces(work_id), 30, "progress"))
        go.set()
        await in_thread(lambda: wait_for(lambda: net.ops.state_of(work_id) == "needs_input", 30, "the question"))
        seconds = time.monotonic() - began
        net.ops.post(f"/v1/works/{work_id}/say", message="main")
        work = await in_thread(lambda: net.ended(work_id))
    assert [each.prompt for each in seen] == ["write it\n[artifact 2: https://example.com/x]"]
    assert [(each.filename, each.to_bytes()) for each in seen[0].attachments or []] == [("given.txt", b"given")]
    assert seen[0].extras == {"aghbus": {"work_id": work_id, "from": "ops", "attempt": 1}}
    assert work["state"] == "completed"
    assert net.traces(work_id)[-1]["message"] == "".join(f"word {number}\n" for number in range(300)) + "answer main"
    assert [each["name"] for each in work["artifacts"]] == ["why.txt", "made_it.txt", "made_it_2.txt"]
    assert net.file(work_id, "made_it_2.txt") == b"again"
    traces = [(each["state"], each.get("message")) for each in net.traces(work_id)]
    asked = traces.index(("needs_input", f"Which branch?\n[why.txt: agh://artifacts/{work_id}/why.txt]"))
    reports = traces[:asked]
    assert 1 <= len(reports) <= seconds + 1, "300 chunks are at most one report a second"
    assert all(state == "working" and str(text).startswith("word ") for state, text in reports)


async def test_what_fails_there_fails_here_and_the_answer_so_far_is_kept(net: Net, joined: EventsProcess) -> None:
    async def on_prompt(envelope: Envelope, stream: PromptStream) -> None:
        await stream.send("so far")
        raise RuntimeError("not for others")

    async with connected(login(net.home, net.worker)) as client, hosting(client, "failing", on_prompt):
        work_id = await in_thread(lambda: net.give("synadia.failing", "x"))
        work = await in_thread(lambda: net.ended(work_id))
    assert (work["state"], work["message"]) == ("failed", "the agent: service error 500: handler error")
    assert net.file(work_id, "answer.txt") == b"so far"


async def test_names_of_files_are_harmless_and_what_looks_like_a_credential_is_replaced(
    net: Net, joined: EventsProcess
) -> None:
    seen: list[Envelope] = []

    async def on_prompt(envelope: Envelope, stream: PromptStream) -> None:
        seen.append(envelope)
        answer = await stream.ask(f"Is it {LEAK}?", timeout=30)
        await stream.send(f"{answer.prompt}: {LEAK}")

    given = net.home.root / "given.txt"
    given.write_bytes(b"given")
    stored = net.home.ctl_json("--name", "ops", "artifact", "put", "work_names", str(given))
    artifacts = [{"name": "../../etc/given\n.txt", "uri": stored["uri"]}]
    async with connected(login(net.home, net.worker)) as client, hosting(client, "writer", on_prompt):
        work_id = await in_thread(lambda: net.give("synadia.writer", "look", artifacts=artifacts))
        await in_thread(lambda: wait_for(lambda: net.ops.state_of(work_id) == "needs_input", 30, "the question"))
        net.ops.post(f"/v1/works/{work_id}/say", message="yes")
        work = await in_thread(lambda: net.ended(work_id))
    assert [each.filename for each in seen[0].attachments or []] == ["given_.txt"]
    assert (work["state"], work["message"]) == ("completed", "yes: [REDACTED]")
    assert [trace["message"] for trace in net.traces(work_id) if trace["state"] == "needs_input"] == [
        "Is it [REDACTED]?"
    ]


def chunk(kind: Any, data: Any) -> bytes:
    return json.dumps({"type": kind, "data": data}).encode()


END = b""
NO_JSON = "a chunk is not JSON in UTF-8, or has too many levels or digits"
INBOX = "_INBOX.agents.x"
MALFORMED: dict[str, tuple[list[Raw], str]] = {
    "text": ([b"hello", END], "malformed chunk JSON: Expecting value: line 1 column 1 (char 0)"),
    "bytes": ([b"\xff", END], NO_JSON),
    "levels": ([b"[" * 100_000, END], NO_JSON),
    "digits": ([b'{"type": "status", "data": ' + b"9" * 9_000 + b"}", END], NO_JSON),
    "list": ([b"[]", END], "chunk body must be a JSON object"),
    "no type": ([b'{"data": "x"}', END], "chunk missing string `type`"),
    "type": ([chunk(5, "x"), END], "chunk missing string `type`"),
    "data": ([chunk("response", 5), END], "`response` chunk `data` must be a string or object"),
    "response": ([chunk("response", {"text": None}), END], "`response` chunk `data.text` must be a string"),
    "status": ([chunk("status", {}), END], "`status` chunk `data` must be a string"),
    "files": (
        [chunk("response", {"text": "", "attachments": {}}), END],
        "`response` chunk `attachments` must be a list",
    ),
    "file": ([chunk("response", {"text": "", "attachments": [{"filename": 5}]}), END], "attachments: filename: "),
    "query": ([chunk("query", {"id": "1", "prompt": "x"}), END], "`query` chunk missing string `reply_subject`"),
    "subject": (
        [chunk("query", {"id": "1", "prompt": "x", "reply_subject": "$JS.API.STREAM.PURGE.x"}), END],
        "`query` chunk `reply_subject` must be an inbox: _INBOX. and words",
    ),
    "wildcard": (
        [chunk("query", {"id": "1", "prompt": "x", "reply_subject": "_INBOX.agents.>"}), END],
        "`query` chunk `reply_subject` must be an inbox: _INBOX. and words",
    ),
    "error": ([(END, {"Nats-Service-Error-Code": "x\x1b", "Nats-Service-Error": ""})], "service error x"),
    "long": (
        [*[chunk("response", "x" * 1_000_000)] * 17, END],
        "the answer of the agent is longer than 16777216 characters",
    ),
}


async def test_an_answer_that_breaks_a_rule_fails_its_work_and_names_it(net: Net, joined: EventsProcess) -> None:
    async with (
        connected(login(net.home, net.worker)) as client,
        raw_agent(client, "raw", lambda text: MALFORMED[text][0]),
    ):
        stray = await client.subscribe("$JS.API.STREAM.PURGE.x")
        works = {text: await in_thread(lambda text=text: net.give("synadia.raw", text)) for text in MALFORMED}  # type: ignore[misc]
        ended = {text: await in_thread(lambda work=work: net.ended(work)) for text, work in works.items()}  # type: ignore[misc]
        await client.flush()
        assert stray.pending_msgs == 0
    said = {text: (work["state"], work["message"].removeprefix("the agent: ")) for text, work in ended.items()}
    wrong = {text: one for text, one in said.items() if one[0] != "failed" or not one[1].startswith(MALFORMED[text][1])}
    assert wrong == {}


async def test_what_is_unknown_or_comes_after_the_end_is_ignored(net: Net, joined: EventsProcess) -> None:
    broken = {"text": "b", "attachments": [{"filename": "a.txt", "content": "?"}]}
    answers: list[Raw] = [chunk("new", 5), chunk("status", "?"), chunk("response", "a"), chunk("response", broken), END]
    more: list[Raw] = [
        chunk("response", "late"),
        b"late",
        chunk("query", {"id": "1", "prompt": "x", "reply_subject": INBOX}),
    ]
    async with (
        connected(login(net.home, net.worker)) as client,
        raw_agent(client, "raw", lambda _: [*answers, *more, END]),
    ):
        for text in ("one", "two"):
            work = await in_thread(lambda text=text: net.ended(net.give("synadia.raw", text)))  # type: ignore[misc]
            assert (work["state"], work["message"]) == ("completed", "ab\n[a.txt: not kept: not padded base64]")
            assert {trace["state"] for trace in net.traces(work["work_id"])} <= {"accepted", "working", "completed"}


async def test_a_record_that_cannot_be_read_is_told_and_ends_nothing(net: Net, joined: EventsProcess) -> None:
    def told() -> int:
        return sum(one["message"].startswith("agents cannot be found: ") for one in joined.seen("problem"))

    async with connected(login(net.home, net.worker)) as client:
        for info in (b"\xff", b"[" * 100_000):
            before = told()
            async with raw_agent(client, "unreadable", lambda _: [], info):
                await in_thread(lambda before=before: wait_for(lambda: told() > before, 30, "a problem"))  # type: ignore[misc]
        async with raw_agent(client, "raw", lambda _: [chunk("response", "a"), END], description="\ud800\x1b[31m"):
            work = await in_thread(lambda: net.ended(net.give("synadia.raw", "x")))
    assert (work["state"], work["message"]) == ("completed", "a")


async def test_agents_that_want_to_be_asked_elsewhere_than_agents_are_left(net: Net) -> None:
    wrong: list[dict[str, str]] = [{"status": "$JS.API.STREAM.DELETE.x"}, {"prompt": "agents.prompt.*.alice.repo"}]
    records = {f"wrong{number}": changed for number, changed in enumerate([*wrong, {"id": "a b"}])}
    agents = (word for agent in (*records, "right") for word in ("--agent", agent))
    async with connected(login(net.home, net.worker)) as client, contextlib.AsyncExitStack() as stack:
        for agent, changed in records.items():
            subjects = {verb: f"agents.{verb}.{agent}.alice.repo" for verb in ("prompt", "status")} | changed
            parts: dict[str, Any] = {
                "id": subjects.pop("id", "RAW"),
                "endpoints": [{"name": n, "subject": s} for n, s in subjects.items()],
            }
            await stack.enter_async_context(raw_agent(client, agent, lambda _: [], **parts))
        await stack.enter_async_context(raw_agent(client, "right", lambda _: []))
        process = stack.enter_context(bridge(net.home, "worker", *JOIN, *agents))
        await in_thread(lambda: process.until("announced", capability="synadia.right"))
        assert [event["agent"] for event in process.seen("found")] == ["right/alice/repo"]
        assert await in_thread(process.stop) == 0


async def test_a_long_answer_is_a_file(net: Net, joined: EventsProcess) -> None:
    text = "all work and no play\n" * 20_000

    async def on_prompt(envelope: Envelope, stream: PromptStream) -> None:
        await stream.send(text)

    async with connected(login(net.home, net.worker)) as client, hosting(client, "long", on_prompt):
        work_id = await in_thread(lambda: net.give("synadia.long", "x"))
        work = await in_thread(lambda: net.ended(work_id))
    assert work["state"] == "completed"
    assert net.traces(work_id)[-1]["message"] == text[:3_999] + "…"
    assert net.file(work_id, "answer.txt") == text.encode()


async def test_a_canceled_work_ends_here_and_the_next_one_is_taken(net: Net, joined: EventsProcess) -> None:
    began, go = asyncio.Event(), asyncio.Event()

    async def on_prompt(envelope: Envelope, stream: PromptStream) -> None:
        began.set()
        await (go.wait() if envelope.prompt == "first" else stream.send("done \ud800"))

    async with connected(login(net.home, net.worker)) as client, hosting(client, "canceled", on_prompt):
        work_id = await in_thread(lambda: net.give("synadia.canceled", "first"))
        await began.wait()
        net.ops.post(f"/v1/works/{work_id}/cancel")
        said = await in_thread(lambda: joined.until("canceled", work_id=work_id))
        assert said["message"] == "the agent is not told: its protocol has no way to"
        go.set()
        work = await in_thread(lambda: net.ended(net.give("synadia.canceled", "second")))
    assert (work["state"], work["message"]) == ("completed", "done ?")
    assert net.ops.state_of(work_id) == "canceled"


def test_an_agent_that_is_killed_fails_its_work_soon(net: Net) -> None:
    with host_and_bridge(net, "dying", "--idle-timeout", "12s") as (host, process):
        work_id = net.give("synadia.dying", "x")
        process.until("prompted", work_id=work_id)
        wait_for(lambda: net.prompts("dying"), 30, "the prompt")
        host.kill()
        work = net.ended(work_id)
    assert (work["state"], work["message"]) == (
        "failed",
        "the agent has gone, or its host was stopped, while it worked",
    )


@pytest.mark.parametrize("more", [(), ("--resend",)], ids=["fail", "resend"])
def test_after_a_kill_of_the_bridge_a_work_fails_or_is_prompted_again_as_asked(net: Net, more: tuple[str, ...]) -> None:
    agent = "again" if more else "once"
    with host_and_bridge(net, agent, *more) as (_, first):
        work_id = net.give(f"synadia.{agent}", "the work")
        wait_for(lambda: net.prompts(agent), 30, "the prompt")
        first.process.kill()
        first.ended()
        doctor = net.home.ctl("--name", "worker", "doctor", "-o", "json")
        rows = {row["check"]: row for row in json.loads(doctor.stdout)["checks"]}
        assert rows["bridge synadia join"]["state"] == "warn"
        assert rows["bridge synadia join"]["detail"] == "1 work of a process that has ended"
        (net.home.root / f"{agent}.go").touch()
        with bridge(net.home, "worker", *JOIN, *more) as second:
            second.until("recovered", work_id=work_id, phase="starting")
            work = net.ended(work_id)
            assert second.stop() == 0
    if more:
        assert (work["state"], work["message"]) == ("completed", "began\nended")
    else:
        assert work["state"] == "failed"
        assert work["message"].startswith("the bridge was restarted while the agent worked: it may have done its part")
    assert net.prompts(agent) == ["the work"] * (1 + len(more))
    wait_for(lambda: not net.announced(f"synadia.{agent}"), 30, "its capability to be withdrawn")


def test_what_ended_while_the_daemon_was_away_is_reported_once_also_after_a_kill_of_the_bridge(net: Net) -> None:
    with host_and_bridge(net, "away") as (_, first):
        work_id = net.give("synadia.away", "the work")
        wait_for(lambda: net.prompts("away"), 30, "the prompt")
        net.worker.kill()
        (net.home.root / "away.go").touch()
        journal = net.home.root / "state" / "aghbus" / "clients" / "worker" / "bridge-synadia"
        wait_for(lambda: "finished" in phases(journal), 30, "the end in the journal")
        first.process.kill()
        first.ended()
        net.worker.start()
        with bridge(net.home, "worker", *JOIN) as second:
            second.until("recovered", work_id=work_id, phase="finished")
            work = net.ended(work_id)
    assert (work["state"], work["message"]) == ("completed", "began\nended")
    assert net.prompts("away") == ["the work"]
    assert [each["state"] for each in net.traces(work_id)].count("completed") == 1


def test_another_bridge_that_gets_the_work_of_one_that_died_does_not_prompt_again(net: Net) -> None:
    with host_and_bridge(net, "two") as (_, first):
        work_id = net.give("synadia.two", "the work")
        wait_for(lambda: net.prompts("two"), 30, "the prompt")
        with bridge(net.home, "worker", *JOIN):
            first.process.kill()
            first.ended()
            journal = net.home.root / "state" / "aghbus" / "clients" / "worker" / "bridge-synadia"
            first_lines = [json.loads(path.read_bytes().splitlines()[0]) for path in journal.glob("*.jsonl")]
            (taken,) = [line for line in first_lines if line["item"]["message"]["work_id"] == work_id]
            net.worker.post(f"/v1/inbox/{taken['seq']}/nack", lease=taken["item"]["lease"], delay=0)  # as if it ran out
            work = net.ended(work_id)
    assert work["state"] == "failed"
    assert work["message"].startswith("the bridge was restarted while the agent worked: it may have done its part")
    assert net.prompts("two") == ["the work"]


def phases(journal: Path) -> set[str]:
    """The last phase of each job in a journal."""
    return {json.loads(path.read_bytes().splitlines()[-1])["phase"] for path in journal.glob("*.jsonl")}


def test_a_bridge_that_stops_ends_its_works_as_not_known(net: Net) -> None:
    with host_and_bridge(net, "stopped") as (_, process):
        work_id = net.give("synadia.stopped", "x")
        wait_for(lambda: net.prompts("stopped"), 30, "the prompt")
        process.process.send_signal(signal.SIGINT)
        work = net.ended(work_id)
        assert process.ended() == 130
    assert work["state"] == "failed"
    assert work["message"] == "the bridge was stopped while the agent worked: it may have done its part"


async def test_selected_agents_share_a_capability_and_those_of_our_own_bridge_are_left(net: Net) -> None:
    done: list[str] = []

    def on_prompt(name: str) -> Any:
        async def handle(envelope: Envelope, stream: PromptStream) -> None:
            done.append(name)
            await stream.send(name)

        return handle

    async with (
        connected(login(net.home, net.worker)) as client,
        hosting(client, "reviewer", on_prompt("a"), "a"),
        hosting(client, "reviewer", on_prompt("b"), "b"),
        hosting(client, "unasked", on_prompt("c")),
    ):
        with (
            bridge(net.home, "ops", "serve"),
            bridge(net.home, "worker", *JOIN, "--agent", "reviewer/alice", "--as", "code.review") as process,
        ):
            for name in "ab":
                await in_thread(lambda name=name: process.until("found", agent=f"reviewer/alice/{name}"))  # type: ignore[misc]
            for text in ("one", "two"):
                work = await in_thread(lambda text=text: net.ended(net.give("code.review", text)))  # type: ignore[misc]
                assert work["state"] == "completed"
            found = {event["agent"] for event in process.seen("found")}
            assert process.stop() == 0
    assert found == {"reviewer/alice/a", "reviewer/alice/b"}
    assert sorted(done) == ["a", "b"]


@pytest.mark.parametrize(
    ("words", "message"),
    [
        (("--as", "code.review"), "--as goes with one --agent"),
        (("--agent", "a b"), "--agent: must be AGENT, AGENT/OWNER or AGENT/OWNER/SESSION"),
        (("--agent", "a", "--as", "review"), "--as: must be words of letters, digits, '_' and '-' with dots"),
        (("--metrics", "9464"), "--metrics: must be HOST:PORT"),
    ],
)
def test_wrong_options_are_refused(home: Home, words: tuple[str, ...], message: str) -> None:
    done = home.ctl("bridge", "synadia", "join", *words)
    assert done.returncode == 2
    assert message in done.stderr.decode()
