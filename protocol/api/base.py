"""Base classes of the types of the local API, and the grammars and bounds of their fields.

Each field of a type is described by a comment at the end of its line, or by the comment lines above it; the OpenAPI document
takes the descriptions from there. Times ending in `_ms` are Unix milliseconds. `seq` is the store's local sequence: it only
grows, and streams resume by it. Text may come from untrusted peers: escape it before a terminal shows it.
"""

from typing import Annotated, Any, Final, Literal

import msgspec
from msgspec import Meta

from aghbus.protocol.agh.identifiers import CHANNEL, DIRECT_ID, EMITTED_WORK_ID, HANDLE, PEER_ID, THREAD_ID
from aghbus.protocol.agh.limits import MAX_ID_BYTES, MAX_LIFETIME, MAX_LIST_ITEMS, MAX_WORK_ID_BYTES
from aghbus.protocol.base.text import WHITE_SPACE

API_VERSION: Final = "v1"

MAX_SEQ: Final = 2**63 - 1
"""SQLite's largest integer, the store's local sequence."""

_EDGE: Final = "".join(sorted(set(WHITE_SPACE) - set("\t\n\v\f\r\x85")))  # the others are control characters


def text(pattern: str, max_length: int | None = None) -> Meta:
    """The schema of a text that the daemon checks itself, with a better message than its decoder.

    The daemon counts bytes and JSON Schema characters: a longer text may pass the schema.
    """
    return Meta(extra_json_schema={"pattern": pattern} | ({"maxLength": max_length} if max_length else {}))


SECONDS: Final = {"format": "seconds"}
"""What the schema of a duration has."""


def seconds(low: float, high: float) -> Meta:
    """The schema of a duration in seconds. A request may also give it as a text such as `5m`, which the daemon's parser reads."""
    return Meta(ge=low, le=high, extra_json_schema=SECONDS)


Channel = Annotated[str, text(f"^{CHANNEL.pattern}$")]
PeerName = Annotated[str, text(f"^({PEER_ID.pattern}|{HANDLE.pattern})$")]
ThreadId = Annotated[str, text(f"^{THREAD_ID.pattern}$")]
DirectId = Annotated[str, text(f"^{DIRECT_ID.pattern}$")]
NewWorkId = Annotated[str, text(f"^{EMITTED_WORK_ID.pattern}$")]
MessageId = Annotated[str, text(rf"^(?![{_EDGE}])[^\x00-\x1f\x7f-\x9f]+(?<![{_EDGE}])$", MAX_ID_BYTES)]
WorkId = Annotated[str, text(rf"^(?![{_EDGE}])[^\x00-\x1f\x7f-\x9f/\\]+(?<![{_EDGE}])$", MAX_WORK_ID_BYTES)]
NonBlank = Annotated[str, text(f"[^{WHITE_SPACE}]")]
Seq = Annotated[int, Meta(ge=1, le=MAX_SEQ)]
Since = Annotated[int, Meta(ge=0, le=MAX_SEQ)]
Lifetime = Annotated[float, seconds(1, MAX_LIFETIME)]
Delay = Annotated[float, seconds(0, MAX_LIFETIME)]
References = Annotated[list[Any], Meta(max_length=MAX_LIST_ITEMS)]
RawObject = Annotated[msgspec.Raw, Meta(extra_json_schema={"type": "object"})]
"""A JSON object as its bytes: passed on as it came, without being read and written again."""
RunState = Literal["running", "waiting", "completed", "failed", "canceled"]
"""Of the run of a chain."""


class ResponseModel(msgspec.Struct, kw_only=True, omit_defaults=False):
    """Base of everything that the API returns."""


class RequestModel(msgspec.Struct, kw_only=True, forbid_unknown_fields=True):
    """Base of every request body: a field that the API does not know is an error, not ignored."""


class EmptyRequest(RequestModel):
    """An empty body, or `{}`."""


class ErrorResponse(ResponseModel):
    """Every error."""

    code: str  # stable, for programs
    message: str  # the field and the rule, for people
    hint: str = ""  # what to do; may be empty
