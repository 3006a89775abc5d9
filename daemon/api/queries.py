"""Query strings and path parameters of the local API as types: decoding, validation and OpenAPI come from them."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from aghbus.protocol.api.inbox import InboxState
from aghbus.protocol.api.works import Role, WorkVerb
from aghbus.protocol.lifecycle import State

MAX_LIMIT: Final = 1000
"""Ours: entries of one page."""

MAX_SEQ: Final = 2**63 - 1
"""SQLite's largest integer, the store's local sequence."""

Kind = Literal["greet", "whois", "say", "capability", "receipt", "trace"]
Direction = Literal["in", "out", "observed"]
Limit = Annotated[int, Meta(ge=1, le=MAX_LIMIT)]
Since = Annotated[int, Meta(ge=0, le=MAX_SEQ)]
Seq = Annotated[int, Meta(ge=1, le=MAX_SEQ)]


class Query(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """Base of every query string. A set is a parameter that may be repeated: its values are alternatives."""


class Nothing(Query, frozen=True):
    """No parameters at all."""


class PeersQuery(Query, frozen=True):
    """Peers that presence knows; `all` adds the expired ones."""

    capability: str | None = None
    channel: str | None = None
    all: bool = False


class WorksQuery(Query, frozen=True):
    """Works, latest change first."""

    state: frozenset[State] = frozenset()
    role: Role | None = None
    peer: str | None = None
    channel: str | None = None
    limit: Limit = 100


class WorkQuery(Query, frozen=True):
    """`channel` tells apart works of one id in several channels."""

    channel: str | None = None


class MessagesQuery(Query, frozen=True):
    """One page of messages after `since`; `last` takes the newest `limit` instead."""

    since: Since = 0
    limit: Limit = 100
    last: bool = False
    kind: frozenset[Kind] = frozenset()
    work: str | None = None
    thread: str | None = None
    direct: str | None = None
    peer: str | None = None
    channel: str | None = None
    direction: frozenset[Direction] = frozenset()


class EventsQuery(Query, frozen=True):
    """Events after `since`, without it from now on; `inbox` only what waits in our inbox and is not acked."""

    since: Since | None = None
    kind: frozenset[Kind] = frozenset()
    work: str | None = None
    thread: str | None = None
    direct: str | None = None
    peer: str | None = None
    channel: str | None = None
    direction: frozenset[Direction] = frozenset()
    inbox: bool = False


class RoomsQuery(Query, frozen=True):
    """Threads or direct rooms, latest activity first."""

    channel: str | None = None
    limit: Limit = 100


class InboxQuery(Query, frozen=True):
    """The inbox, oldest first."""

    state: frozenset[InboxState] = frozenset()
    limit: Limit = 100


class ArtifactsQuery(Query, frozen=True):
    """Artifacts by URI, of one work or of all."""

    work: str | None = None
    limit: Limit = 100


class LimitQuery(Query, frozen=True):
    """One page of `limit` entries."""

    limit: Limit = 100


class ById(Query, frozen=True):
    """`id` percent-encoded: it may hold any character, `/` included."""

    id: str


class BySeq(Query, frozen=True):
    """`seq` is the local sequence of the message."""

    seq: Seq


class ByVerb(Query, frozen=True):
    """A step of the work `id`."""

    id: str
    verb: WorkVerb


class ByArtifact(Query, frozen=True):
    """An artifact of the work `work_id`."""

    work_id: str
    name: str
