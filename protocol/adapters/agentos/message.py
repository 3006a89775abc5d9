"""The typed message of AgentOS (schema version 1.0.0) and the words that its enums allow."""

from typing import Any, Final

import msgspec

NAME: Final = "agentos"  # as in `ext["agentos.message"]`

TYPES: Final = ("query", "response", "command", "event", "error", "validation", "evidence", "gap", "correction")
VERSIONS: Final = ("1.0.0",)
PRIORITIES: Final = ("high", "normal", "low")
FORMATS: Final = ("json", "text", "markdown")
LANGUAGES: Final = ("en", "ar")
ENCODINGS: Final = ("utf-8",)

OPENING_TYPES: Final = frozenset({"query", "command", "validation", "correction"})
"""Types that ask for work (a validation only without `replyTo`): a say that opens it."""


class AgentIdentifier(msgspec.Struct, frozen=True, rename="camel"):
    """An AgentIdentifier: the agent's name in the manifest, and the instance of it that runs."""

    agent_id: str
    instance_id: str


class Payload(msgspec.Struct, frozen=True):
    """A MessagePayload; `content` is any JSON value. The three words are None where the message leaves them out."""

    content: Any = None
    format: str | None = None
    language: str | None = None
    encoding: str | None = None


class AgentOsContext(msgspec.Struct, frozen=True, rename="camel"):
    """A MessageContext; every member may be missing here."""

    session_id: str | None = None
    user_id: str | None = None
    request_id: str | None = None
    conversation_id: str | None = None
    locale: str | None = None
    timezone: str | None = None


class Evidence(msgspec.Struct, frozen=True):
    """An EvidenceChain. The schema names the entries of its three lists without defining them: any JSON value."""

    sources: list[Any] = msgspec.field(default_factory=list)
    confidence: int | float | None = None
    citations: list[Any] = msgspec.field(default_factory=list)
    provenance: list[Any] = msgspec.field(default_factory=list)


class AgentOsMessage(msgspec.Struct, frozen=True, kw_only=True, rename="camel"):
    """An AgentMessage that passed the rules. `sender` is its `from`; `ttl` is in seconds.

    What the interface asks for and rule 1 does not may be None. Unknown members are not seen here: they stay in the JSON
    value that travels.
    """

    id: str
    timestamp: str
    version: str
    sender: AgentIdentifier = msgspec.field(name="from")
    to: AgentIdentifier
    type: str
    payload: Payload
    reply_to: str | None = None
    context: AgentOsContext = AgentOsContext()
    evidence: Evidence | None = None
    priority: str | None = None
    ttl: int | float | None = None
    retry_count: int | float | None = None

    @property
    def answers(self) -> bool:
        """A response, or a validation result: it ends the work that its `replyTo` asked for."""
        return self.type == "response" or (self.type == "validation" and self.reply_to is not None)

    @property
    def opens(self) -> bool:
        """It asks for work."""
        return self.type in OPENING_TYPES and not self.answers


def typed(value: dict[str, Any]) -> AgentOsMessage:
    """The message in a JSON object that `agentos_rules.check` found no error in; others raise msgspec.ValidationError."""
    return msgspec.convert(value, AgentOsMessage)
