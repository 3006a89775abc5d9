"""JSON-RPC 2.0 as the Model Context Protocol uses it: messages of clients, and the errors that they get."""

from typing import Any, Final

import msgspec
from msgspec import UNSET, UnsetType

from aghbus.protocol.agh.decoding import check_structure, decoder
from aghbus.protocol.agh.errors import Undecodable
from aghbus.protocol.base.text import escape, shorten

PARSE_ERROR: Final = -32700
INVALID_REQUEST: Final = -32600
METHOD_NOT_FOUND: Final = -32601
INVALID_PARAMS: Final = -32602
INTERNAL_ERROR: Final = -32603
HEADER_MISMATCH: Final = -32020
MISSING_CAPABILITY: Final = -32021
UNSUPPORTED_VERSION: Final = -32022

Id = str | int
Object = dict[str, Any]

_MAX_MESSAGE: Final = 500  # characters of an error's message, which may quote a request


class RpcError(Exception):
    """An error response. `status` is that of HTTP."""

    def __init__(self, code: int, message: str, data: Any = None, *, status: int = 400) -> None:
        super().__init__(message)
        self.code = code
        self.message = shorten(escape(message), _MAX_MESSAGE)
        self.data = data
        self.status = status

    def as_object(self) -> Object:
        """The `error` member."""
        error: Object = {"code": self.code, "message": self.message}
        return error if self.data is None else {**error, "data": self.data}


class RpcMessage(msgspec.Struct, frozen=True):
    """A request (`method` and `id`), a notification (`method` alone), or the response to a request of ours."""

    jsonrpc: str
    id: Id | UnsetType | None = UNSET
    method: str | UnsetType = UNSET
    params: Object = {}
    result: Any = UNSET
    error: Any = UNSET


class Request(msgspec.Struct, frozen=True):
    """A request of a client."""

    id: Id
    method: str
    params: Object

    @property
    def meta(self) -> Object:
        """`_meta` of the parameters; empty when it is no object."""
        found = self.params.get("_meta")
        return found if isinstance(found, dict) else {}


_decode: Final = decoder(RpcMessage)


def parse(raw: bytes) -> RpcMessage:
    """One message. Raises RpcError; a batch is not one (specification 2025-06-18, key changes)."""
    try:
        check_structure(raw)
        message = _decode(raw)
    except (msgspec.ValidationError, Undecodable) as error:
        raise RpcError(INVALID_REQUEST, f"Invalid Request: {error}") from None
    except (msgspec.DecodeError, RecursionError, ValueError) as error:
        raise RpcError(PARSE_ERROR, f"Parse error: {error}") from None
    if message.jsonrpc != "2.0":
        raise RpcError(INVALID_REQUEST, 'Invalid Request: jsonrpc: must be "2.0"')
    if message.method is UNSET:
        if message.id is UNSET or message.id is None or (message.result is UNSET) == (message.error is UNSET):
            raise RpcError(INVALID_REQUEST, "Invalid Request: neither a method nor a response")
    elif message.id is None:
        raise RpcError(INVALID_REQUEST, "Invalid Request: id: must not be null")
    return message


def result_message(request_id: Id, result: Object) -> bytes:
    """A response with a result."""
    return msgspec.json.encode({"jsonrpc": "2.0", "id": request_id, "result": result})


def error_message(request_id: Id | None, error: RpcError) -> bytes:
    """An error response; without an id when that could not be read."""
    head: Object = {"jsonrpc": "2.0"} if request_id is None else {"jsonrpc": "2.0", "id": request_id}
    return msgspec.json.encode({**head, "error": error.as_object()})


def outgoing(method: str, params: Object, request_id: Id | None = None) -> bytes:
    """A notification, or with an id a request to the client."""
    head: Object = {"jsonrpc": "2.0"} if request_id is None else {"jsonrpc": "2.0", "id": request_id}
    return msgspec.json.encode({**head, "method": method, "params": params})
