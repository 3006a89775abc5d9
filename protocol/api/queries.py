"""The local API: the parameters of query strings and paths."""

from typing import Annotated, Final, Literal

import msgspec
from msgspec import Meta

from aghbus.protocol.agh.effects import Direction
from aghbus.protocol.agh.envelope import StoredKind
from aghbus.protocol.agh.lifecycle import State
from aghbus.protocol.agh.limits import MAX_ID_BYTES
from aghbus.protocol.api.artifact_uri import PART
from aghbus.protocol.api.base import RunState, Seq, Since, seconds, text
from aghbus.protocol.api.inbox import InboxState
from aghbus.protocol.api.trust import TrustVerb
from aghbus.protocol.api.works import Role, WorkVerb
from aghbus.protocol.base.formats import Format

MAX_LIMIT: Final = 1000
"""Entries of one page."""

MAX_CHAIN_WAIT: Final = 60.0
"""Seconds: a watcher asks again after that, so that it notices a daemon that is gone."""

MIN_ID_END: Final = 4
"""Characters of the end of an id by which it is searched: ids are UUIDv7, which begin alike."""

Limit = Annotated[int, Meta(ge=1, le=MAX_LIMIT)]
IdEnd = Annotated[str, Meta(min_length=MIN_ID_END, max_length=MAX_ID_BYTES)]
WorkOrder = Literal["updated", "opened"]
ArtifactPart = Annotated[str, text(f"^{PART.pattern}$")]


class Query(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """Base of the parameters of a query string or a path. A set is a parameter that may be repeated."""


class NoParameters(Query, frozen=True):
    """No parameters at all."""


class EnvelopeFilter(Query, frozen=True):
    """Which envelopes: all without parameters. Values of one parameter are alternatives, different parameters combine."""

    kinds: frozenset[StoredKind] = msgspec.field(default=frozenset(), name="kind")  # of the envelope; may be repeated
    work_id: str | None = msgspec.field(default=None, name="work")  # id of its work
    thread_id: str | None = msgspec.field(default=None, name="thread")  # id of its thread
    # id of its direct room: the room of the current pair of peers, with `peer` the room with that peer
    direct_id: str | None = msgspec.field(default=None, name="direct")
    peer: str | None = None  # who sent it or was addressed
    channel: str | None = None  # where it was sent
    # `in`, `out` or `observed`; may be repeated
    directions: frozenset[Direction] = msgspec.field(default=frozenset(), name="direction")

    inbox = False
    """Only messages in the inbox that are not acked. Not a parameter here: subclasses set it or make it one."""

    for_agent = False
    """Only envelopes for the daemon's own agent: received ones, and the daemon's own terminal messages. As `inbox`."""

    @property
    def needs_store(self) -> bool:
        """Whether it depends on more than the envelope itself, which may change after the envelope was stored."""
        return self.inbox or self.for_agent or (self.direct_id is not None and self.peer is None)


class MessagesQuery(EnvelopeFilter, frozen=True):
    """One page of messages."""

    since: Since = 0  # those after this sequence
    limit: Limit = 100  # of the page
    last: bool = False  # the newest ones instead of the oldest
    before: Seq | None = None  # with `last` or `text`: those before this sequence
    # part of a text in their body, ASCII letters in upper or lower case; the newest ones; reads the messages
    text: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    id_end: IdEnd | None = None  # those whose id ends in this; reads all messages
    caused_by: str | None = None  # those that name this message as their cause (`causation_id`); reads all messages


MAX_TAKES: Final = 10_000
"""Works that one consumer carries out at a time."""


class EventsQuery(EnvelopeFilter, frozen=True):
    """Events of the stream."""

    since: Since | None = None  # those after this sequence; from now on without it
    inbox: bool = False  # only messages in the inbox that are not acked
    # how many works the reader of this stream carries out at a time: greets tell peers the sum (docs/hand-over.md)
    takes: Annotated[int, Meta(ge=0, le=MAX_TAKES)] = 0
    works: bool = False  # ends and questions of works that we opened have the work with them, in `work.now`


class PeersQuery(Query, frozen=True):
    """Peers."""

    capability: str | None = None  # only those that have it
    channel: str | None = None  # only those in it
    all: bool = False  # also the expired ones


class WorksQuery(Query, frozen=True):
    """Works."""

    states: frozenset[State] = msgspec.field(default=frozenset(), name="state")  # of the work; may be repeated
    role: Role | None = None  # of this daemon in it
    peer: str | None = None  # initiator or target
    channel: str | None = None  # where it is
    # part of `Work.text`, in upper or lower case; reads the text of every work that fits the other parameters
    text: Annotated[str, Meta(min_length=1, max_length=200)] | None = None
    updated_since_ms: Annotated[int, Meta(ge=0)] | None = None  # those that changed at this Unix time or later
    id_end: IdEnd | None = None  # those whose id ends in this
    order: WorkOrder = "updated"  # of the last change or of the opening, latest first
    limit: Limit = 100  # of the page
    before: Seq | None = None  # those whose last envelope, or opening in its order, is before this sequence


MAX_WORK_WAIT: Final = 600
"""Seconds that a query may wait for a work."""


class WorkQuery(Query, frozen=True):
    """One work."""

    channel: str | None = None  # selects one of several works with this id
    before: Seq | None = None  # the part of the history before this sequence
    # seconds to wait, at most, until it has ended or needs input
    wait: Annotated[float, seconds(0, MAX_WORK_WAIT)] = 0.0


class ProfileQuery(Query, frozen=True):
    """A profile."""

    duration: Annotated[float, seconds(0.1, 20)] = 10.0  # for which samples are taken, in seconds


class RoomsQuery(Query, frozen=True):
    """Threads or direct rooms."""

    channel: str | None = None  # only those in it
    limit: Limit = 100  # of the page


class InboxQuery(Query, frozen=True):
    """The inbox."""

    # of the message, without it all but acked; may be repeated
    states: frozenset[InboxState] = msgspec.field(default=frozenset(), name="state")
    since: Since = 0  # those after this sequence
    limit: Limit = 100  # of the page
    # only unread messages of contacts, of targets of own works, and our own
    contacts: bool = False


class ArtifactsQuery(Query, frozen=True):
    """Artifacts."""

    work_id: ArtifactPart | None = msgspec.field(default=None, name="work")  # only those of this work
    limit: Limit = 100  # of the page


class LimitQuery(Query, frozen=True):
    """One page."""

    limit: Limit = 100  # of the page


class BridgeStreamQuery(Query, frozen=True):
    """Foreign messages."""

    since: Since | None = None  # those after this sequence; after the acknowledged position without it


class ChainRunsQuery(Query, frozen=True):
    """Runs of chains."""

    states: frozenset[RunState] = msgspec.field(default=frozenset(), name="state")  # of the run; may be repeated
    id_end: IdEnd | None = None  # those whose id ends in this
    limit: Limit = 100  # of the page


class ChainRunQuery(Query, frozen=True):
    """One run."""

    since: Since | None = None  # wait until the version of the run is beyond it
    wait: Annotated[float, seconds(0, MAX_CHAIN_WAIT)] = 0.0  # seconds to wait, at most


class IdPath(Query, frozen=True):
    """An id in the path."""

    id: str  # percent-encoded; it may hold any character, `/` included


class SeqPath(Query, frozen=True):
    """A message of the inbox."""

    seq: Seq  # its local sequence


class WorkActionPath(Query, frozen=True):
    """A step of a work."""

    id: str  # of the work, percent-encoded
    verb: WorkVerb  # the step


class ArtifactPath(Query, frozen=True):
    """An artifact."""

    work_id: ArtifactPart  # its work
    name: ArtifactPart  # its name within the work


class FormatPath(Query, frozen=True):
    """A foreign format."""

    format: Format  # its name


class FormatSeqPath(Query, frozen=True):
    """One message of a format."""

    format: Format  # its name
    seq: Seq  # local sequence of its envelope


class TrustVerbPath(Query, frozen=True):
    """A change of the trust rules."""

    verb: TrustVerb  # the change
