"""The typed message of AgentOS (schema version 1.0.0) and the values of its enums."""

from typing import Any, Final

import msgspec

from aghbus.protocol.formats.derived_ids import same_json

NAME: Final = "agentos"  # as in `ext["agentos.message"]`

TYPES: Final = ("query", "response", "command", "event", "error", "validation", "evidence", "gap", "correction")
VERSIONS: Final = ("1.0.0",)
PRIORITIES: Final = ("high", "normal", "low")
FORMATS: Final = ("json", "text", "markdown")
LANGUAGES: Final = ("en", "ar")
ENCODINGS: Final = ("utf-8",)

_OF_A_RETRY: Final = frozenset({"timestamp", "priority", "ttl", "retryCount"})  # may differ in a retry

OPENING_TYPES: Final = frozenset({"query", "command", "validation", "correction"})
"""Types that open a work (a validation only without `replyTo`)."""


class AgentIdentifier(msgspec.Struct, frozen=True, rename="camel"):
    """The agent's name in the manifest, and its instance."""

    agent_id: str
    instance_id: str


class Payload(msgspec.Struct, frozen=True):
    """A MessagePayload; `content` is any JSON value."""

    content: Any = None


class AgentOsContext(msgspec.Struct, frozen=True, rename="camel"):
    """A MessageContext; any member may be missing."""

    session_id: str | None = None
    request_id: str | None = None
    conversation_id: str | None = None


class Evidence(msgspec.Struct, frozen=True):
    """An EvidenceChain. The schema does not define the entries of its lists: any JSON value."""

    sources: list[Any] = msgspec.field(default_factory=list)
    confidence: int | float | None = None
    citations: list[Any] = msgspec.field(default_factory=list)
    provenance: list[Any] = msgspec.field(default_factory=list)


class AgentOsMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """The members of a valid AgentMessage that the adapter reads. `sender` is its `from`; `ttl` is in seconds.

    Members that the interface has but rule 1 does not require may be None. All others stay in the JSON value only.
    """

    id: str
    timestamp: str
    sender: AgentIdentifier = msgspec.field(name="from")
    to: AgentIdentifier
    type: str
    payload: Payload
    reply_to: str | None = None
    context: AgentOsContext = AgentOsContext()
    evidence: Evidence | None = None
    ttl: int | float | None = None
    retry_count: int | float | None = None

    @property
    def answers(self) -> bool:
        """Whether it is a response or a validation result, which ends the work of its `replyTo`."""
        return self.type == "response" or (self.type == "validation" and self.reply_to is not None)

    @property
    def opens(self) -> bool:
        """Whether it opens a work."""
        return self.type in OPENING_TYPES and not self.answers

    @property
    def retry(self) -> int:
        """The number of this retry; 0 for the first submission, and for a count that is no whole number above 0."""
        count = self.retry_count
        return int(count) if count is not None and count >= 1 and count == int(count) else 0


def is_retry(value: dict[str, Any], earlier: Any) -> bool:
    """Whether both are one message with different retry counts: only `timestamp` and the control members differ."""
    if not isinstance(earlier, dict) or typed(value).retry == typed(earlier).retry:
        return False
    return same_json(*({key: one[key] for key in one.keys() - _OF_A_RETRY} for one in (value, earlier)))


def typed(value: dict[str, Any]) -> AgentOsMessage:
    """The typed form of a message without errors (`rules.check`). Raises msgspec.ValidationError for others."""
    return msgspec.convert(value, AgentOsMessage)
