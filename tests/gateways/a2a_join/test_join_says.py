"""What the initiator says while a joined agent works: it is a message to the task, sent once, or the initiator learns of it."""

import signal
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemons import wait_for
from tests.support.joining import AgentProcess, Join, agent, phases
from tests.support.serving import WAIT, Bus


@pytest.fixture(scope="module")
def deaf(tmp_path_factory: pytest.TempPathFactory) -> Iterator[AgentProcess]:
    """An agent that takes no messages to its tasks."""
    with agent(tmp_path_factory.mktemp("deaf"), "deaf") as one:
        yield one


def say(bus: Bus, work_id: str, text: str) -> None:
    bus.ops.post(f"/v1/works/{work_id}/say", message=text)


def until_state(bus: Bus, work_id: str, state: str) -> None:
    wait_for(lambda: bus.ops.state_of(work_id) == state, WAIT, f"the state {state}")


def until_told(bus: Bus, work_id: str, words: str) -> str:
    """The message of the trace that has these words."""

    def told() -> list[str]:
        return [trace["message"] for trace in bus.traces(work_id) if words in (trace.get("message") or "")]

    wait_for(told, WAIT, f"a trace with {words!r}")
    return told()[0]


def killed(join: Join) -> None:
    join.process.kill()
    join.process.wait(WAIT)


def test_a_refusal_is_told(bus: Bus, deaf: AgentProcess) -> None:
    with Join(bus, deaf.url) as join:
        work_id = bus.open("wait deaf")
        until_state(bus, work_id, "working")
        say(bus, work_id, "use the branch main")
        told = until_told(bus, work_id, "does not take what was said")
        assert "this task takes no messages" in told and "“use the branch main”" in told
        deaf.go("deaf")
        assert bus.end_of(work_id)["message"] == "went"
        assert not join.seen("said", work_id=work_id)


def test_an_answer_that_is_refused_is_asked_for_again(bus: Bus, deaf: AgentProcess) -> None:
    with Join(bus, deaf.url):
        work_id = bus.open("ask deaf")
        until_state(bus, work_id, "needs_input")
        say(bus, work_id, "main")
        told = until_told(bus, work_id, "this task takes no messages")
        assert told.endswith("\n\nWhich branch?")
        assert bus.ops.state_of(work_id) == "needs_input"


def test_what_the_agent_ended_without_is_told(bus: Bus, tmp_path: Path) -> None:
    """An agent that takes messages to its task and ends without them, as the server of the SDK may do."""
    with agent(tmp_path / "agent", "ignores") as other, Join(bus, other.url) as join:
        work_id = bus.open("wait dropped")
        until_state(bus, work_id, "working")
        say(bus, work_id, "and be quick")
        join.of(work_id, "said")
        other.go("dropped")
        assert bus.end_of(work_id)["message"] == "went"
        assert "“and be quick”" in until_told(bus, work_id, "the agent ended its task without what was said meanwhile")
        assert not other.runs("and be quick")


def test_what_is_said_while_the_agent_is_away_is_sent_when_it_is_back(bus: Bus, tmp_path: Path) -> None:
    with agent(tmp_path / "agent", "http") as other, Join(bus, other.url) as join:
        other.kill()
        work_id = bus.open("listen away")
        join.of(work_id, "away")
        say(bus, work_id, "the end")
        other.go("away")
        other.start()
        assert bus.end_of(work_id)["message"] == "on the end"
        assert len(other.runs("the end")) == 1


def test_what_an_agent_had_not_read_when_it_was_killed_is_told(bus: Bus, tmp_path: Path) -> None:
    with agent(tmp_path / "agent", "kept", "http") as other, Join(bus, other.url) as join:
        work_id = bus.open("wait stopped")
        until_state(bus, work_id, "working")
        assert other.process is not None
        other.process.send_signal(signal.SIGSTOP)
        say(bus, work_id, "and then this")
        join.of(work_id, "said")
        other.kill()
        other.start()
        assert bus.end_of(work_id)["message"] == "completed after a restart"
        until_told(bus, work_id, "“and then this”")
        assert not other.runs("and then this")


def test_what_was_said_while_nobody_ran_is_sent(bus: Bus, reviewer: AgentProcess) -> None:
    with Join(bus, reviewer.url) as join:
        work_id = bus.open("listen nobody")
        until_state(bus, work_id, "working")
        killed(join)
    say(bus, work_id, "nobody ran")
    reviewer.go("nobody")
    with Join(bus, reviewer.url):
        assert bus.end_of(work_id)["message"] == "on nobody ran"
    assert len(reviewer.runs("nobody ran")) == 1


@pytest.mark.parametrize("options", [(), ("--resend",)])
def test_a_kill_while_a_message_goes_out(bus: Bus, reviewer: AgentProcess, options: tuple[str, ...]) -> None:
    """The agent has it, but its history does not show that yet: it is sent again with --resend only."""
    name = f"out{len(options)}"
    with Join(bus, reviewer.url) as join:
        work_id = bus.open(f"listen {name}")
        until_state(bus, work_id, "working")
        say(bus, work_id, f"slow {name}")
        wait_for(lambda: "saying" in phases(bus, work_id), WAIT, "the message")
        killed(join)
    with Join(bus, reviewer.url, *options):
        if not options:
            assert f"“slow {name}”" in until_told(
                bus, work_id, "It is not known whether the agent has got what was said"
            )
        reviewer.go(name)
        if options:
            assert bus.end_of(work_id)["message"] == f"on slow {name}"
        else:
            say(bus, work_id, "the end")
            bus.end_of(work_id)
    assert len(set(reviewer.runs(f"slow {name}"))) <= 1


def test_an_answer_that_may_have_been_sent_is_asked_for_again(bus: Bus, reviewer: AgentProcess) -> None:
    """Killed after an answer that the agent works on without a word: it is not sent twice, and the work goes on either way."""
    with Join(bus, reviewer.url) as join:
        works = [bus.open(f"ask {name}") for name in ("silent", "other")]
        for work_id, name in zip(works, ("silent", "other"), strict=True):
            until_state(bus, work_id, "needs_input")
            say(bus, work_id, f"slow {name}")
            wait_for(lambda name=name: reviewer.runs(f"slow {name}"), WAIT, "the answer")  # type: ignore[misc]
        killed(join)
    with Join(bus, reviewer.url):
        for work_id in works:
            assert until_told(bus, work_id, "It is not known whether").endswith("\n\nWhich branch?")
            assert bus.ops.state_of(work_id) == "needs_input"
        reviewer.go("silent")
        assert bus.end_of(works[0])["message"] == "on slow silent"
        say(bus, works[1], "main")
        reviewer.go("other")
        assert bus.end_of(works[1])["message"] in ("on slow other", "on main")  # the SDK may execute the second, too
    assert [len(reviewer.runs(f"slow {name}")) for name in ("silent", "other")] == [1, 1]
