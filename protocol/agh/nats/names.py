"""All NATS names other than the subjects of envelopes: inboxes, the stream, its consumers (spec section 7).

A peer's inboxes begin with its route token, so that a broker's permissions can name them (docs/security/broker.md):

    _INBOX.<route token>.api.…        answers of JetStream to requests
    _INBOX.<route token>.pub.…        confirmations of the stream, by a random token for each publish
    _INBOX.<route token>.deliver.…    what we request of our durable consumers
    _INBOX.<route token>.ack.…        commit acknowledgements: the only one that other peers publish to

The parts after these are random and independent of each other: who knows one inbox can guess no other.
"""

import hashlib
import re
from typing import Final, Literal

from aghbus.protocol.agh.identifiers import route_token, subject_root
from aghbus.protocol.agh.limits import SUBJECT_PREFIX

INBOX_PREFIX: Final = "_INBOX"
"""NATS' own convention for reply subjects."""
JETSTREAM_API: Final = "$JS.API"
"""The prefix of requests to JetStream; domains and imports under another prefix are not used."""
STREAM: Final = "AGH_NETWORK_V0"
STREAM_SUBJECTS: Final = f"{SUBJECT_PREFIX}.>"
BUCKET: Final = "AGH_ARTIFACTS_V0"
"""The object store of artifacts, unless `artifacts.bucket` says otherwise."""
_HASH_DIGITS: Final = 16  # of the workspace in a consumer's name; 64 bits tell the workspaces of one account apart

SERVICE: Final = "aghbus"
"""The name of every daemon as a service of NATS (its ADR-32)."""
_REQUEST_INBOX: Final = re.compile(r"_INBOX(?:\.[!-)+\-/-=?-~]{1,100}){1,2}").fullmatch

InboxUse = Literal["api", "pub", "deliver", "ack"]


def inbox(peer: str, use: InboxUse) -> str:
    """The prefix of every inbox of `peer` for that use, without the last dot."""
    return f"{INBOX_PREFIX}.{route_token(peer)}.{use}"


def durable_name(workspace_id: str, channel: str, token: str) -> str:
    """Name of the consumer of the peer with that route token (spec section 7); durable names may not hold dots."""
    digest = hashlib.sha256(workspace_id.encode()).hexdigest()[:_HASH_DIGITS]
    return f"peer_{token}_{digest}_{channel}"


def own_subjects(peer: str, workspace_id: str, channel: str, *, observe: bool = False) -> list[str]:
    """The two subjects on which a peer receives in a channel; an observer has those of every peer."""
    root = subject_root(workspace_id, channel)
    return [f"{root}.broadcast", f"{root}.peer.{'*' if observe else route_token(peer)}"]


def service_subjects(peer: str) -> list[str]:
    """The subjects of requests to all services, to all daemons, and to this peer; `*` stands for PING, INFO or STATS."""
    return ["$SRV.*", f"$SRV.*.{SERVICE}", f"$SRV.*.{SERVICE}.{route_token(peer)}"]


def is_request_inbox(reply: str) -> bool:
    """Whether answers of the service may go to this reply subject: to an inbox of a client library, but of no daemon (above).

    Otherwise everybody could make daemons publish to subjects on which they have more rights, such as JetStream's API.
    """
    return _REQUEST_INBOX(reply) is not None
