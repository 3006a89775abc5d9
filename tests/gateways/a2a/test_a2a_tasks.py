"""Tasks of A2A clients are works of the bus: the SDK's client in each binding, a worker that the test steers."""

import asyncio
import signal
from typing import Any

import pytest
from a2a.client import A2AClientError
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import A2AError

from tests.support.a2a_gateway import BINDINGS, Gateway, at_once, message, received, sdk_client, shown, step, task_of
from tests.support.daemons import wait_for
from tests.support.serving import WAIT, Bus

every_binding = pytest.mark.parametrize("binding", BINDINGS)


async def in_thread(*given: Any, **named: Any) -> None:
    await asyncio.to_thread(step, *given, **named)


async def new_work(bus: Bus, known: set[str]) -> str:
    """The id of a work that was opened since `known`."""
    found: set[str] = set()

    def opened() -> bool:
        found.update({work["work_id"] for work in bus.ops.get("/v1/works?limit=1000")["works"]} - known)
        return bool(found)

    await asyncio.to_thread(wait_for, opened, WAIT, "a work")
    return found.pop()


def ids(bus: Bus) -> set[str]:
    return {work["work_id"] for work in bus.ops.get("/v1/works?limit=1000")["works"]}


@every_binding
async def test_a_message_is_answered_when_its_work_has_ended(bus: Bus, gateway: Gateway, binding: str) -> None:
    before = ids(bus)
    async with sdk_client(gateway.url, binding) as client:
        sending = asyncio.create_task(task_of(client, message("Count the words")))
        work = await new_work(bus, before)
        await in_thread(bus, work, "accept")
        await in_thread(bus, work, "update", message="counting")
        assert not sending.done()
        await in_thread(bus, work, "complete", message="Done.", result={"words": 3})
        task = await sending
    assert task["id"] == work
    assert task["status"]["state"] == "TASK_STATE_COMPLETED"
    assert task["status"]["message"]["parts"] == [{"text": "Done."}]
    assert [said["parts"] for said in task["history"]] == [[{"text": "Count the words"}], [{"text": "counting"}]]
    assert [artifact["parts"] for artifact in task["artifacts"]] == [[{"data": {"words": 3}}]]
    envelope = await asyncio.to_thread(received, bus, work)
    assert envelope["body"]["intent"] == "test.run"
    assert envelope["ext"]["aghbus.principal"] == {"name": "anonymous", "via": "a2a"}


@every_binding
async def test_a_repeated_message_is_one_work(bus: Bus, gateway: Gateway, binding: str) -> None:
    before, request = ids(bus), at_once(message())
    async with sdk_client(gateway.url, binding) as client:
        first, second = await asyncio.gather(task_of(client, request), task_of(client, request))
        third = await task_of(client, request)
        assert first["id"] == second["id"] == third["id"]
        assert first["contextId"] == second["contextId"] == third["contextId"]
        assert ids(bus) - before == {first["id"]}
        request.message.parts[0].text = "something else"
        with pytest.raises(A2AError, match="messageId"):
            await task_of(client, request)
    assert ids(bus) - before == {first["id"]}


@every_binding
async def test_a_stream_has_the_task_and_every_step_up_to_its_end(bus: Bus, gateway: Gateway, binding: str) -> None:
    async with sdk_client(gateway.url, binding, streaming=True) as client:
        events = client.send_message(message())
        first = shown(await anext(events))["task"]
        assert first["status"]["state"] == "TASK_STATE_SUBMITTED"
        await in_thread(bus, first["id"], "accept")
        for number in range(5):
            await in_thread(bus, first["id"], "update", message=f"step {number}")
        await in_thread(bus, first["id"], "complete", artifacts=[{"type": "text", "name": "note", "text": "All well."}])
        rest = [shown(event) async for event in events]
    said = [
        each["statusUpdate"]["status"]["message"]["parts"][0]["text"]
        for each in rest
        if "message" in each.get("statusUpdate", {}).get("status", {})
    ]
    assert said == [f"step {number}" for number in range(5)]
    assert rest[-2]["artifactUpdate"]["artifact"] == {
        "artifactId": "note",
        "name": "note",
        "parts": [{"text": "All well.", "filename": "note"}],
    }
    assert rest[-1]["statusUpdate"]["status"]["state"] == "TASK_STATE_COMPLETED"


@every_binding
async def test_questions_are_answered_in_the_task(bus: Bus, gateway: Gateway, binding: str) -> None:
    async with sdk_client(gateway.url, binding) as client:
        task = await task_of(client, at_once(message("Write a report")))
        await in_thread(bus, task["id"], "need-input", message="Which title?")
        asked = shown(await client.get_task(pb.GetTaskRequest(id=task["id"])))
        assert asked["status"]["state"] == "TASK_STATE_INPUT_REQUIRED"
        assert asked["status"]["message"]["parts"] == [{"text": "Which title?"}]
        answer = at_once(message("Monday", taskId=task["id"], contextId=task["contextId"]))
        answered = await task_of(client, answer)
        assert answered["status"]["state"] == "TASK_STATE_WORKING"
        assert (await task_of(client, answer))["history"] == answered["history"]
        texts = [said["parts"][0]["text"] for said in answered["history"]]
        assert texts == ["Write a report", "Which title?", "Monday"]
        assert [said["role"] for said in answered["history"]] == ["ROLE_USER", "ROLE_AGENT", "ROLE_USER"]
        assert answered["history"][-1]["messageId"] == answer.message.message_id
        with pytest.raises(A2AError, match="contextId"):
            await task_of(client, message(taskId=task["id"], contextId="another"))
        await in_thread(bus, task["id"], "complete")
        with pytest.raises(A2AError, match="ended"):
            await task_of(client, message("too late", taskId=task["id"]))
        with pytest.raises(A2AError):
            await task_of(client, message(taskId="work_of_nobody"))


async def test_a_blocking_message_ends_at_a_question(bus: Bus, gateway: Gateway) -> None:
    before = ids(bus)
    async with sdk_client(gateway.url, "JSONRPC") as client:
        sending = asyncio.create_task(task_of(client, message()))
        work = await new_work(bus, before)
        await in_thread(bus, work, "need-input", message="May I?", ext={"aghbus.auth_required": True})
        assert (await sending)["status"]["state"] == "TASK_STATE_AUTH_REQUIRED"


@every_binding
async def test_cancel_reject_and_fail(bus: Bus, gateway: Gateway, binding: str) -> None:
    async with sdk_client(gateway.url, binding) as client:
        one, two, three = [(await task_of(client, at_once(message())))["id"] for _ in range(3)]
        canceled = shown(await client.cancel_task(pb.CancelTaskRequest(id=one)))
        assert canceled["status"]["state"] == "TASK_STATE_CANCELED"
        with pytest.raises(A2AError, match="ended"):
            await client.cancel_task(pb.CancelTaskRequest(id=one))
        await in_thread(bus, two, "reject", message="Not today.", reason="busy")
        await in_thread(bus, three, "fail", message="It broke.")
        rejected = shown(await client.get_task(pb.GetTaskRequest(id=two)))["status"]
        failed = shown(await client.get_task(pb.GetTaskRequest(id=three)))["status"]
        assert (rejected["state"], failed["state"]) == ("TASK_STATE_REJECTED", "TASK_STATE_FAILED")
        assert rejected["message"]["parts"] == [{"text": "Not today."}]
        found = await client.list_tasks(pb.ListTasksRequest(status=pb.TASK_STATE_REJECTED))
        assert two in [task.id for task in found.tasks]
        assert three not in [task.id for task in found.tasks]
    async with sdk_client(gateway.url, binding, streaming=True) as client:
        with pytest.raises(A2AError, match="ended"):
            _ = [event async for event in client.subscribe(pb.SubscribeToTaskRequest(id=one))]


@every_binding
async def test_tasks_are_listed_in_pages_by_context(bus: Bus, gateway: Gateway, binding: str) -> None:
    async with sdk_client(gateway.url, binding) as client:
        context = f"conversation {binding}"
        opened = [(await task_of(client, at_once(message(contextId=context))))["id"] for _ in range(3)]
        await in_thread(bus, opened[0], "complete", result={"n": 1})
        page = await client.list_tasks(pb.ListTasksRequest(context_id=context, page_size=2))
        rest = await client.list_tasks(
            pb.ListTasksRequest(
                context_id=context, page_size=2, page_token=page.next_page_token, include_artifacts=True
            )
        )
        assert [task.id for task in page.tasks] == [opened[0], opened[2]]
        assert [task.id for task in rest.tasks] == [opened[1]]
        assert (page.total_size, rest.total_size, rest.next_page_token) == (3, 3, "")
        assert {task.context_id for task in page.tasks} == {context}
        assert not page.tasks[0].artifacts
        short = await client.get_task(pb.GetTaskRequest(id=opened[0], history_length=0))
        assert not short.history
        assert len(short.artifacts) == 1
        for wrong in (pb.ListTasksRequest(page_size=101), pb.ListTasksRequest(page_token="x")):
            with pytest.raises(A2AError):
                await client.list_tasks(wrong)


@pytest.mark.parametrize(("number", "code"), [(signal.SIGINT, 130), (signal.SIGTERM, 0)])
async def test_a_signal_ends_streams_and_the_gateway(bus: Bus, number: signal.Signals, code: int) -> None:
    stopping = Gateway(bus.home, "--listen", "127.0.0.1:0", "--peer", "worker")
    await asyncio.to_thread(stopping.start)
    async with sdk_client(stopping.url, "JSONRPC", streaming=True) as client:
        events = client.send_message(message())
        first = shown(await anext(events))
        found = await asyncio.to_thread(stopping.stop, number)
        with pytest.raises(A2AClientError):  # not an end that could be taken for that of the task
            await anext(events)
    assert found == code
    assert stopping.events[-1] == {"v": 1, "event": "stopped"}
    assert bus.ops.state_of(first["task"]["id"]) == "submitted"


def nested(levels: int) -> Any:
    value: Any = "end"
    for level in range(levels):
        value = [value] if level % 2 else {"inner": value}
    return value


@every_binding
async def test_what_is_nested_deeply_is_shown_as_text(bus: Bus, gateway: Gateway, binding: str) -> None:
    """Otherwise neither the task nor a list with it could be sent: Protocol Buffers have 100 levels."""
    deep = nested(110)
    file = {
        "type": "data",
        "name": "deep",
        "data": deep,
        "metadata": {"deep": deep},
        "artifact_metadata": {"deep": deep},
    }
    ext = {"aghbus.a2a": {"metadata": {"deep": deep}}}
    async with sdk_client(gateway.url, binding) as client:
        task = await task_of(client, at_once(message("deep", contextId=f"deep {binding}")))
        await asyncio.to_thread(step, bus, task["id"], "update", message="see", artifacts=[file], ext=ext)
        await asyncio.to_thread(step, bus, task["id"], "complete", message="done", result={"deep": deep})
        got = shown(await client.get_task(pb.GetTaskRequest(id=task["id"])))
        asked = pb.ListTasksRequest(context_id=f"deep {binding}", include_artifacts=True)
        listed = shown(await client.list_tasks(asked))["tasks"]
    assert listed == [got]
    (result,) = [each for each in got["artifacts"] if each["artifactId"] == "result"]
    value = result["parts"][0]["data"]["deep"]
    while not isinstance(value, str):
        value = next(iter(value.values())) if isinstance(value, dict) else value[0]
    assert value.startswith(("[", "{"))
    assert "inner" in value
