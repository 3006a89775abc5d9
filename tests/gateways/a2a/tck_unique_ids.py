"""A plugin for A2A's conformance kit: each message that it sends gets an id of its own, behind the prefix that says what to do.

The kit sends many messages under one `messageId` a session, which the specification calls unique; to the gateway the second one
is the first one again. Run the kit with `-- -p tck_unique_ids`, and this folder on PYTHONPATH.
"""

import functools
import itertools
from collections.abc import Callable
from importlib import import_module
from typing import Any

CLIENTS = (("jsonrpc_client", "JsonRpcClient"), ("http_json_client", "HttpJsonClient"), ("grpc_client", "GrpcClient"))
_numbers = itertools.count(1)


def unique(method: Callable[..., Any]) -> Callable[..., Any]:
    @functools.wraps(method)
    def send(self: Any, message: dict[str, Any], **more: Any) -> Any:
        own = {"messageId": f"{message['messageId']}-{next(_numbers)}"} if "messageId" in message else {}
        return method(self, {**message, **own}, **more)

    return send


for _module, _name in CLIENTS:
    _client = getattr(import_module(f"tck.transport.{_module}"), _name)
    for _method in ("send_message", "send_streaming_message"):
        setattr(_client, _method, unique(getattr(_client, _method)))
