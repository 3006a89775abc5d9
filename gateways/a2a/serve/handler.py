"""The operations of A2A, on the works of a daemon. Routes, dispatchers and types are those of the SDK; its stores and queues are
not used (docs/adr/0019-a2a-gateway.md)."""

from __future__ import annotations

from collections.abc import AsyncGenerator
from contextlib import aclosing
from typing import Any, Final

from a2a.server.context import ServerCallContext
from a2a.server.events.event_queue import Event
from a2a.server.request_handlers.request_handler import RequestHandler, validate_request_params
from a2a.types import a2a_pb2 as pb
from a2a.utils.errors import (
    InvalidParamsError,
    TaskNotCancelableError,
    UnsupportedOperationError,
)

from aghbus.client import Work, WorkClosed
from aghbus.gateways.a2a.base.bus import Agent, Bus
from aghbus.gateways.a2a.base.convert import as_json, as_message
from aghbus.gateways.a2a.base.errors import fault, translated
from aghbus.gateways.a2a.base.files import Files
from aghbus.gateways.a2a.push.delivery import Push, required
from aghbus.gateways.a2a.serve.cards import Cards
from aghbus.gateways.a2a.serve.listing import page_of
from aghbus.gateways.a2a.serve.sending import Sending
from aghbus.gateways.base.metrics import Metrics
from aghbus.protocol.formats.a2a.ids import Principal
from aghbus.protocol.formats.a2a.parts import Json
from aghbus.protocol.formats.a2a.tasks import TaskView

UPDATES: Final[dict[str, Any]] = {
    "statusUpdate": pb.TaskStatusUpdateEvent,
    "artifactUpdate": pb.TaskArtifactUpdateEvent,
}
AGENT, CALLER = "aghbus.agent", "aghbus.caller"
"""Keys in the state of a call's context."""


class BusHandler(RequestHandler):
    """The operations for all agents of a gateway. The context of a call names agent and caller."""

    def __init__(
        self, bus: Bus, sending: Sending, cards: Cards, files: Files, push: Push | None, metrics: Metrics
    ) -> None:
        self._bus = bus
        self._files = files
        self._sending = sending
        self._cards = cards
        self._push = push
        self._metrics = metrics

    @validate_request_params
    async def on_message_send(self, params: pb.SendMessageRequest, context: ServerCallContext) -> pb.Task | pb.Message:
        """SendMessage."""
        with translated():
            configuration = params.configuration
            length = _history_length(configuration)
            agent, task_id, view = await self._sent(params, context)
            if not configuration.return_immediately:
                work_id = task_id if view is None else (await self._work(context, task_id)).work_id
                view = view or TaskView(task_id)
                if not view.stands_still():
                    async with aclosing(self._bus.follow(view, work_id, may_move=bool(agent.capability))) as updates:
                        async for _ in updates:
                            if view.stands_still():
                                break
            if view is None or not view.opened_ms:
                view = await self._snapshot(context, task_id)
            if view.answer is not None:
                return as_message(view.answer, pb.Message)
            return await self._task(agent, view, length)

    @validate_request_params
    async def on_message_send_stream(
        self, params: pb.SendMessageRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        """SendStreamingMessage: the task, and what happens in it up to its end."""
        with translated():
            length = _history_length(params.configuration)
            agent, task_id, _ = await self._sent(params, context)
            async with aclosing(self._stream(agent, context, task_id, length)) as events:
                async for event in events:
                    yield event

    @validate_request_params
    async def on_subscribe_to_task(
        self, params: pb.SubscribeToTaskRequest, context: ServerCallContext
    ) -> AsyncGenerator[Event, None]:
        """SubscribeToTask: the task as it is, and what happens in it from then on."""
        with translated():
            view = await self._snapshot(context, params.id)
            if view.has_ended():
                raise UnsupportedOperationError("the task has ended")
            async with aclosing(self._stream(_agent(context), context, params.id, None)) as events:
                async for event in events:
                    yield event

    @validate_request_params
    async def on_get_task(self, params: pb.GetTaskRequest, context: ServerCallContext) -> pb.Task | None:
        """GetTask."""
        with translated():
            length = _history_length(params)
            return await self._task(_agent(context), await self._snapshot(context, params.id), length)

    @validate_request_params
    async def on_list_tasks(self, params: pb.ListTasksRequest, context: ServerCallContext) -> pb.ListTasksResponse:
        """ListTasks."""
        with translated():
            agent = _agent(context)
            page = await page_of(self._bus, self._files, agent, _caller(context), as_json(params))
            return as_message(page, pb.ListTasksResponse)

    @validate_request_params
    async def on_cancel_task(self, params: pb.CancelTaskRequest, context: ServerCallContext) -> pb.Task | None:
        """CancelTask."""
        with translated():
            work = await self._work(context, params.id)
            try:
                await self._bus.call(
                    self._bus.client.act_on_work(params.id, "cancel", message="canceled by the caller")
                )
            except WorkClosed:
                raise TaskNotCancelableError(f"the task has ended: {work.state}") from None
            return await self._task(_agent(context), await self._snapshot(context, params.id), None)

    @validate_request_params
    async def on_create_task_push_notification_config(
        self, params: pb.TaskPushNotificationConfig, context: ServerCallContext
    ) -> pb.TaskPushNotificationConfig:
        """CreateTaskPushNotificationConfig."""
        push = required(self._push)
        with translated():
            view = await self._snapshot(context, params.task_id)
            return as_message(
                push.create(_agent(context), view, as_json(params)).shown(), pb.TaskPushNotificationConfig
            )

    async def on_get_task_push_notification_config(
        self, params: pb.GetTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> pb.TaskPushNotificationConfig:
        """GetTaskPushNotificationConfig."""
        push = required(self._push)
        with translated():
            await self._work(context, params.task_id)
            return as_message(push.get(params.task_id, params.id).shown(), pb.TaskPushNotificationConfig)

    async def on_list_task_push_notification_configs(
        self, params: pb.ListTaskPushNotificationConfigsRequest, context: ServerCallContext
    ) -> pb.ListTaskPushNotificationConfigsResponse:
        """ListTaskPushNotificationConfigs: all on one page, they are few."""
        push = required(self._push)
        with translated():
            await self._work(context, params.task_id)
            found = [config.shown() for config in push.of_task(params.task_id)]
            return as_message({"configs": found}, pb.ListTaskPushNotificationConfigsResponse)

    async def on_delete_task_push_notification_config(
        self, params: pb.DeleteTaskPushNotificationConfigRequest, context: ServerCallContext
    ) -> None:
        """DeleteTaskPushNotificationConfig."""
        push = required(self._push)
        with translated():
            await self._work(context, params.task_id)
            push.remove(params.task_id, params.id)

    @validate_request_params
    async def on_get_extended_agent_card(
        self, params: pb.GetExtendedAgentCardRequest, context: ServerCallContext
    ) -> pb.AgentCard:
        """GetExtendedAgentCard."""
        with translated():
            if not self._cards.has_extended:
                raise UnsupportedOperationError("the agent has no extended card")
            return as_message(await self._cards.card(_agent(context), extended=True), pb.AgentCard)

    async def _sent(
        self, params: pb.SendMessageRequest, context: ServerCallContext
    ) -> tuple[Agent, str, TaskView | None]:
        """Send the message of a request: its agent, its task, and the task as it is, if that was looked at."""
        agent, caller = _agent(context), _caller(context)
        message, metadata = as_json(params.message), as_json(params.metadata)
        self._sending.check(message)
        notify: Json | None = None
        if params.configuration.HasField("task_push_notification_config"):
            notify = as_json(params.configuration.task_push_notification_config)
            required(self._push).check(notify)
        if not (task_id := message.get("taskId")):
            task_id = await self._sending.open(agent, caller, message, metadata)
            if notify is not None:
                required(self._push).create(agent, TaskView(task_id), notify, derived=True)
            return agent, task_id, None
        work = await self._work(context, task_id)
        view = await self._bus.snapshot(task_id, work)
        if message.get("contextId") not in (None, view.context_id):
            raise fault("message.contextId", "must be that of the task")
        await self._sending.say(caller, work, task_id, message, metadata)
        if notify is not None:
            required(self._push).create(agent, view, notify, derived=True)
        return agent, task_id, await self._bus.snapshot(task_id, work)

    async def _stream(
        self, agent: Agent, context: ServerCallContext, task_id: str, history_length: int | None
    ) -> AsyncGenerator[Event, None]:
        work = await self._work(context, task_id)
        view = await self._bus.snapshot(task_id, work)
        self._metrics.count("streams")
        try:
            yield await self._task(agent, view, history_length)
            async with aclosing(self._bus.follow(view, work.work_id, may_move=bool(agent.capability))) as batches:
                async for updates in batches:
                    for update in updates:
                        for name, content in (await self._files.in_update(agent, view, update)).items():
                            yield as_message(content, UPDATES[name])
        finally:
            self._metrics.count("streams", by=-1)

    async def _work(self, context: ServerCallContext, task_id: str) -> Work:
        return await self._bus.find(_agent(context), _caller(context), task_id)

    async def _snapshot(self, context: ServerCallContext, task_id: str) -> TaskView:
        return await self._bus.snapshot(task_id, await self._work(context, task_id))

    async def _task(self, agent: Agent, view: TaskView, history_length: int | None) -> pb.Task:
        return as_message(await self._files.in_task(agent, view, view.task(history_length)), pb.Task)


def _agent(context: ServerCallContext) -> Agent:
    """The agent that is called. Over gRPC it is that of the tenant, or the only one."""
    found = context.state[AGENT]
    if isinstance(found, dict):
        found = found.get(context.tenant) or (
            next(iter(found.values())) if len(found) == 1 and not context.tenant else None
        )
    if not isinstance(found, Agent):
        raise InvalidParamsError("tenant: must be that of the agent's card")
    return found


def _caller(context: ServerCallContext) -> Principal:
    caller: Principal = context.state[CALLER]
    return caller


def _history_length(params: Any) -> int | None:
    """The `historyLength` of a request; None without one."""
    if not params.HasField("history_length"):
        return None
    if params.history_length < 0:
        raise fault("historyLength", "must be 0 or more")
    return int(params.history_length)
