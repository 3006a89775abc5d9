"""The local API: the parameters of query strings and paths."""

from typing import Annotated, Final

import msgspec
from msgspec import Meta

from aghbus.protocol.api.artifact_uri import PART
from aghbus.protocol.api.base import Seq, Since, text
from aghbus.protocol.api.inbox import InboxState
from aghbus.protocol.api.trust import TrustVerb
from aghbus.protocol.api.works import Role, WorkVerb
from aghbus.protocol.chains.chain import Format
from aghbus.protocol.chains.run import RunState
from aghbus.protocol.effects import Direction
from aghbus.protocol.envelope import Kind
from aghbus.protocol.lifecycle import State

MAX_LIMIT: Final = 1000
"""Ours: entries of one page."""

MAX_CHAIN_WAIT: Final = 60.0
"""Seconds, ours: a watcher asks again after that, so that it notices a daemon that is gone."""

Limit = Annotated[int, Meta(ge=1, le=MAX_LIMIT)]
ArtifactPart = Annotated[str, text(f"^{PART.pattern}$")]


class Query(msgspec.Struct, kw_only=True, forbid_unknown_fields=True, frozen=True):
    """Base of the parameters of a query string or a path. A set is a parameter that may be repeated."""


class NoParameters(Query, frozen=True):
    """No parameters at all."""


class EnvelopeFilter(Query, frozen=True):
    """Which envelopes: all without parameters. Values of one parameter are alternatives, different parameters combine.

    kind: of the envelope; may be repeated.
    work: id of its work.
    thread: id of its thread.
    direct: id of its direct room: the room of the current pair of peers, with `peer` the room with that peer.
    peer: who sent it or was addressed.
    channel: where it was sent.
    direction: `in`, `out` or `observed`; may be repeated.
    """

    kinds: frozenset[Kind] = msgspec.field(default=frozenset(), name="kind")
    work_id: str | None = msgspec.field(default=None, name="work")
    thread_id: str | None = msgspec.field(default=None, name="thread")
    direct_id: str | None = msgspec.field(default=None, name="direct")
    peer: str | None = None
    channel: str | None = None
    directions: frozenset[Direction] = msgspec.field(default=frozenset(), name="direction")

    inbox = False
    """Only messages in the inbox that are not acked. Not a parameter here: subclasses set it or make it one."""

    for_agent = False
    """Only envelopes for the daemon's own agent: received ones, and ends of its works that the daemon made. As `inbox`."""

    @property
    def needs_store(self) -> bool:
        """Whether it depends on more than the envelope itself, which may change after the envelope was stored."""
        return self.inbox or self.for_agent or (self.direct_id is not None and self.peer is None)


class MessagesQuery(EnvelopeFilter, frozen=True):
    """One page of messages.

    since: those after this sequence.
    limit: of the page.
    last: the newest ones instead of the oldest.
    """

    since: Since = 0
    limit: Limit = 100
    last: bool = False


class EventsQuery(EnvelopeFilter, frozen=True):
    """Events of the stream.

    since: those after this sequence; from now on without it.
    inbox: only messages in the inbox that are not acked.
    """

    since: Since | None = None
    inbox: bool = False


class PeersQuery(Query, frozen=True):
    """Peers.

    capability: only those that have it.
    channel: only those in it.
    all: also the expired ones.
    """

    capability: str | None = None
    channel: str | None = None
    all: bool = False


class WorksQuery(Query, frozen=True):
    """Works.

    state: of the work; may be repeated.
    role: of this daemon in it.
    peer: initiator or target.
    channel: where it is.
    limit: of the page.
    """

    states: frozenset[State] = msgspec.field(default=frozenset(), name="state")
    role: Role | None = None
    peer: str | None = None
    channel: str | None = None
    limit: Limit = 100


class WorkQuery(Query, frozen=True):
    """One work.

    channel: tells apart works of one id in several channels.
    """

    channel: str | None = None


class RoomsQuery(Query, frozen=True):
    """Threads or direct rooms.

    channel: only those in it.
    limit: of the page.
    """

    channel: str | None = None
    limit: Limit = 100


class InboxQuery(Query, frozen=True):
    """The inbox.

    state: of the message, ready and leased without it; may be repeated.
    limit: of the page.
    """

    states: frozenset[InboxState] = msgspec.field(default=frozenset(), name="state")
    limit: Limit = 100


class ArtifactsQuery(Query, frozen=True):
    """Artifacts.

    work: only those of this work.
    limit: of the page.
    """

    work_id: ArtifactPart | None = msgspec.field(default=None, name="work")
    limit: Limit = 100


class LimitQuery(Query, frozen=True):
    """One page.

    limit: of the page.
    """

    limit: Limit = 100


class BridgeStreamQuery(Query, frozen=True):
    """Foreign messages.

    since: those after this sequence; after the acknowledged position without it.
    """

    since: Since | None = None


class ChainRunsQuery(Query, frozen=True):
    """Runs of chains.

    state: of the run; may be repeated.
    limit: of the page.
    """

    states: frozenset[RunState] = msgspec.field(default=frozenset(), name="state")
    limit: Limit = 100


class ChainRunQuery(Query, frozen=True):
    """One run.

    since: wait until the version of the run is beyond it.
    wait: seconds to wait, at most.
    """

    since: Since | None = None
    wait: Annotated[float, Meta(ge=0, le=MAX_CHAIN_WAIT)] = 0.0


class IdPath(Query, frozen=True):
    """An id in the path.

    id: percent-encoded; it may hold any character, `/` included.
    """

    id: str


class SeqPath(Query, frozen=True):
    """A message of the inbox.

    seq: its local sequence.
    """

    seq: Seq


class WorkStepPath(Query, frozen=True):
    """A step of a work.

    id: of the work, percent-encoded.
    verb: the step.
    """

    id: str
    verb: WorkVerb


class ArtifactPath(Query, frozen=True):
    """An artifact.

    work_id: its work.
    name: its name within the work.
    """

    work_id: ArtifactPart
    name: ArtifactPart


class FormatPath(Query, frozen=True):
    """A foreign format.

    format: its name.
    """

    format: Format


class FormatSeqPath(Query, frozen=True):
    """One message of a format.

    format: its name.
    seq: local sequence of its envelope.
    """

    format: Format
    seq: Seq


class TrustVerbPath(Query, frozen=True):
    """A change of the trust rules.

    verb: the change.
    """

    verb: TrustVerb
