"""Configurations of the network's JetStream objects: the stream, a peer's consumer, the artifacts' bucket (spec section 7).

Daemons create them, or the operator whose peers may not (`aghctl nats permissions`). All values are those of JetStream's own API,
with durations in nanoseconds.
"""

from typing import Any, Final

from aghbus.protocol.agh.limits import MAX_ENVELOPE_BYTES, MAX_LIFETIME
from aghbus.protocol.agh.nats.names import STREAM, STREAM_SUBJECTS

NANOSECONDS: Final = 1_000_000_000
"""In a second; all durations of the API are in nanoseconds."""
MAX_MESSAGE_BYTES: Final = MAX_ENVELOPE_BYTES + 65_536
"""Largest envelope and its headers (spec section 7); ours take under 2 KiB, relays may add some."""
DUPLICATE_WINDOW: Final = 120
"""Seconds in which the stream recognizes a `Nats-Msg-Id`: NATS' default, longer than one publish can be in doubt."""
PROVISIONED: Final = "made by the operator"
"""The description of a consumer that daemons use as it is and never update."""

STREAM_AGE: Final = MAX_LIFETIME
"""Seconds that the stream keeps an envelope by default: nothing is fresh for longer."""
STREAM_BYTES: Final = 1 << 30
"""Size of the stream by default."""
MAX_IN_FLIGHT: Final = 1024
"""Messages delivered to a peer on one channel and not yet settled, by default."""
ACK_WAIT: Final = 30.0
"""Seconds until an unsettled message is redelivered, by default."""
BUCKET_AGE: Final = 30 * 86_400
"""Seconds that the bucket keeps an artifact by default."""
BUCKET_BYTES: Final = 2 << 30
"""Size of the bucket by default."""


def stream_config(*, discard: str, max_age: int, max_bytes: int, replicas: int, expires: bool) -> dict[str, Any]:
    """The one stream; `max_age` in seconds, `expires` when the server supports a TTL for each message (from 2.11)."""
    config: dict[str, Any] = {
        "name": STREAM,
        "description": "AGH Network v0",
        "subjects": [STREAM_SUBJECTS],
        "retention": "limits",
        "storage": "file",
        "discard": discard,
        "max_age": max_age * NANOSECONDS,
        "max_bytes": max_bytes,
        "max_msg_size": MAX_MESSAGE_BYTES,
        "max_msgs": -1,
        "max_msgs_per_subject": -1,
        "max_consumers": -1,
        "num_replicas": replicas,
        "duplicate_window": DUPLICATE_WINDOW * NANOSECONDS,
    }
    return {**config, "allow_msg_ttl": True} if expires else config


def consumer_config(name: str, *, filters: list[str], ack_wait: float, max_in_flight: int) -> dict[str, Any]:
    """One durable pull consumer; `ack_wait` in seconds. No limit of deliveries: deduplication handles repetitions."""
    return {
        "name": name,
        "durable_name": name,
        "filter_subjects": filters,
        "ack_policy": "explicit",
        "ack_wait": int(ack_wait * NANOSECONDS),
        "max_ack_pending": max_in_flight,
        "max_deliver": -1,
        "replay_policy": "instant",
    }


def bucket_config(bucket: str, *, max_age: int, max_bytes: int, replicas: int, append_only: bool) -> dict[str, Any]:
    """The stream below an object store (ADR-20 of NATS' architecture); `max_age` in seconds.

    `append_only` refuses roll-ups, by which a peer that may publish to one subject removes every object.
    """
    return {
        "name": f"OBJ_{bucket}",
        "description": "AGH Network v0 artifacts",
        "subjects": [f"$O.{bucket}.C.>", f"$O.{bucket}.M.>"],
        "storage": "file",
        "discard": "new",
        "max_age": max_age * NANOSECONDS,
        "max_bytes": max_bytes,
        "num_replicas": replicas,
        "allow_rollup_hdrs": not append_only,
        "allow_direct": True,
    }
