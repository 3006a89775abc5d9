"""The methods of a server of the Model Context Protocol, of both eras, over what it offers."""

from collections.abc import Awaitable, Callable
from typing import Any, Final

from aghbus.daemon.mcp.call import InputRequired, ToolCall, required_member
from aghbus.daemon.mcp.client import LEGACY_VERSIONS, PREFIX, TASKS, VERSIONS
from aghbus.daemon.mcp.offer import Offer, Tasks
from aghbus.daemon.mcp.request_state import RequestStates
from aghbus.daemon.mcp.rpc import INVALID_PARAMS, METHOD_NOT_FOUND, MISSING_CAPABILITY, Object, RpcError
from aghbus.protocol.base.errors import NotFound, RequestError
from aghbus.protocol.base.text import escape, shorten

_FRESH_MS: Final = 3_600_000  # what does not change while the daemon runs

_MAX_ERROR: Final = 1_000  # characters of a refusal, which may quote its arguments

Method = Callable[[ToolCall, Object], Awaitable[Object]]


class McpServer:
    """One server. `handle` serves a request of either era."""

    def __init__(self, offer: Offer) -> None:
        self._offer = offer
        self._states = RequestStates()
        both: dict[str, Method] = {
            "tools/list": self._list_tools,
            "tools/call": self._call_tool,
            "resources/list": self._list_resources,
            "resources/templates/list": self._list_templates,
            "resources/read": self._read,
            "prompts/list": self._list_prompts,
            "prompts/get": self._get_prompt,
            **offer.more,
        }
        tasks: dict[str, Method] = {
            "tasks/get": self._get_task,
            "tasks/update": self._update_task,
            "tasks/cancel": self._cancel_task,
        }
        self._modern = {
            **both,
            "server/discover": self._discover,
            "subscriptions/listen": self._listen,
            **(tasks if offer.tasks else {}),
        }
        self._legacy = {**both, "initialize": self._initialize, "ping": self._ping}

    async def handle(self, call: ToolCall) -> Object:
        """The result of one request. Raises RpcError."""
        modern, request = call.client.modern, call.request
        method = (self._modern if modern else self._legacy).get(request.method)
        if method is None:
            status = 404 if modern else 200
            raise RpcError(METHOD_NOT_FOUND, f"Method not found: {request.method}", status=status)
        call.state = self._states.open(request)
        try:
            result = await method(call, request.params)
        except InputRequired as needed:
            result = {"resultType": "input_required", "inputRequests": needed.requests}
            if needed.state is not None:
                result["requestState"] = self._states.seal(request, needed.state)
        if not modern:
            return {key: value for key, value in result.items() if key not in ("resultType", "ttlMs", "cacheScope")}
        meta = {PREFIX + "serverInfo": self._info(), **result.get("_meta", {})}
        return {"resultType": "complete", **result, "_meta": meta}

    # the server itself

    def _info(self) -> Object:
        return {"name": self._offer.name, "version": self._offer.version}

    def _capabilities(self) -> Object:
        return {"tools": {}, "resources": {}, "prompts": {}, **self._offer.capabilities}

    async def _discover(self, _call: ToolCall, _params: Object) -> Object:
        capabilities = {**self._capabilities(), "resources": {"subscribe": True}}
        if self._offer.tasks:
            capabilities["extensions"] = {TASKS: {}}
        return {
            "supportedVersions": list(VERSIONS),
            "capabilities": capabilities,
            "instructions": self._offer.instructions,
            **_cached("private"),
        }

    async def _initialize(self, _call: ToolCall, params: Object) -> Object:
        wanted = params.get("protocolVersion")
        return {
            "protocolVersion": wanted if wanted in LEGACY_VERSIONS else LEGACY_VERSIONS[0],
            "capabilities": self._capabilities(),
            "serverInfo": self._info(),
            "instructions": self._offer.instructions,
        }

    async def _ping(self, _call: ToolCall, _params: Object) -> Object:
        return {}

    # tools

    async def _list_tools(self, _call: ToolCall, _params: Object) -> Object:
        return {"tools": [tool.definition for tool in self._offer.tools.values()], **_cached("public")}

    async def _call_tool(self, call: ToolCall, params: Object) -> Object:
        """An error of the operation is a result, so that the model sees it (specification, Tools, Error Handling)."""
        name, arguments = required_member(params, "name", str), params.get("arguments", {})
        tool = self._offer.tools.get(name)
        if tool is None:
            raise RpcError(INVALID_PARAMS, f"Unknown tool: {name}", status=200)
        if not isinstance(arguments, dict):
            raise RpcError(INVALID_PARAMS, "Invalid params: arguments: must be an object", status=200)
        try:
            return await tool.perform(call, arguments)
        except RequestError as error:
            return error_result(error)

    # resources and prompts

    async def _list_resources(self, _call: ToolCall, _params: Object) -> Object:
        return {"resources": list(self._offer.resources.listed), **_cached("private")}

    async def _list_templates(self, _call: ToolCall, _params: Object) -> Object:
        return {"resourceTemplates": list(self._offer.resources.templates), **_cached("public")}

    async def _read(self, call: ToolCall, params: Object) -> Object:
        uri = required_member(params, "uri", str)
        contents = await self._offer.resources.read(uri, call.client.wake)
        if contents is None:
            code = INVALID_PARAMS if call.client.modern else -32002
            raise RpcError(code, "Resource not found", {"uri": uri}, status=200)
        return {"contents": list(contents), "ttlMs": 0, "cacheScope": "private"}

    async def _list_prompts(self, _call: ToolCall, _params: Object) -> Object:
        return {"prompts": [prompt.definition for prompt in self._offer.prompts.values()], **_cached("public")}

    async def _get_prompt(self, call: ToolCall, params: Object) -> Object:
        name, arguments = required_member(params, "name", str), params.get("arguments", {})
        prompt = self._offer.prompts.get(name)
        if prompt is None or not isinstance(arguments, dict):
            raise RpcError(INVALID_PARAMS, f"Unknown prompt: {name}", status=200)
        return await prompt.get(call, arguments)

    async def _listen(self, call: ToolCall, params: Object) -> Object:
        """Notify of changes until the client goes away or the daemon drains."""
        wanted = params.get("notifications")
        uris = wanted.get("resourceSubscriptions") if isinstance(wanted, dict) else None
        resources, listed = self._offer.resources, uris if isinstance(uris, list) else []
        watched = [uri for uri in listed if isinstance(uri, str) and resources.can_watch(uri)]
        accepted = {"resourceSubscriptions": watched} if watched else {}
        await call.notify_subscriber("notifications/subscriptions/acknowledged", {"notifications": accepted})
        async for uri in resources.changes(frozenset(watched), call.client.wake):
            await call.notify_subscriber("notifications/resources/updated", {"uri": uri})
        return {"_meta": {PREFIX + "subscriptionId": call.request.id}}

    # tasks

    async def _get_task(self, call: ToolCall, params: Object) -> Object:
        return await self._task(call, params, lambda tasks, task_id: tasks.get(task_id))

    async def _update_task(self, call: ToolCall, params: Object) -> Object:
        responses = required_member(params, "inputResponses", dict)
        return await self._task(call, params, lambda tasks, task_id: tasks.update(task_id, responses))

    async def _cancel_task(self, call: ToolCall, params: Object) -> Object:
        return await self._task(call, params, lambda tasks, task_id: tasks.cancel(task_id))

    async def _task(self, call: ToolCall, params: Object, operation: Callable[[Tasks, str], Awaitable[Any]]) -> Object:
        if not call.client.tasks:
            data: Object = {"requiredCapabilities": {"extensions": {TASKS: {}}}}
            raise RpcError(MISSING_CAPABILITY, "Missing required client capability", data)
        assert self._offer.tasks is not None
        try:
            found: Object | None = await operation(self._offer.tasks, required_member(params, "taskId", str))
        except NotFound:
            raise RpcError(INVALID_PARAMS, "Unknown task", status=200) from None
        except RequestError as error:
            raise RpcError(INVALID_PARAMS, error.message, status=200) from None
        return found or {}


def _cached(scope: str) -> Object:
    return {"ttlMs": _FRESH_MS, "cacheScope": scope}


def text_content(text: str) -> list[Object]:
    """Content of one text."""
    return [{"type": "text", "text": text}]


def error_result(error: RequestError) -> Object:
    """A refused operation as the result of a tool: code, sentence and hint."""
    hint = f" ({error.hint})" if error.hint else ""
    text = shorten(escape(f"{error.error_code}: {error.message}{hint}"), _MAX_ERROR)
    return {"content": text_content(text), "isError": True}
