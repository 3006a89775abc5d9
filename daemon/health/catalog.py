"""The metrics: every name with its type, meaning, and the values that its labels can have.

No label has text of a peer: all values are listed here. Names follow Prometheus' conventions: base units, `_total` for counters.
"""

from collections.abc import Mapping
from types import MappingProxyType
from typing import Final, Literal, NamedTuple

from aghbus.daemon.base.metrics import NO_ENVELOPE
from aghbus.daemon.state.lanes import PARTS
from aghbus.daemon.state.limited_peers import REASONS
from aghbus.protocol.agh.envelope import CONVERSATION_KINDS, KINDS
from aghbus.protocol.agh.errors import REASON_CODES

OTHER: Final = "other"
"""The value of a label for everything that is not listed."""

_KINDS: Final = tuple(sorted(KINDS))
_RESULTS: Final = ("accepted", "duplicate", "early", "ignored", "refused", "rejected")
_REJECTIONS: Final = tuple(
    sorted({"queue", *(one.partition(".")[0] for one in REASONS)} - {"receipts", "answers"})
)  # the two are rates of what we send


class Metric(NamedTuple):
    """One metric. `labels` has the possible values of each label, () for versions of our own."""

    name: str
    type: Literal["counter", "gauge", "histogram"]
    help: str
    labels: Mapping[str, tuple[str, ...]] = MappingProxyType({})


METRICS: Final = (
    Metric("aghbus_build_info", "gauge", "Versions; the value is 1", {"version": (), "protocol": (), "python": ()}),
    Metric("aghbus_ready", "gauge", "1 if the daemon is ready, as /readyz says"),
    Metric("aghbus_problems", "gauge", "Current problems, which aghctl status names"),
    Metric(
        "aghbus_messages_total",
        "counter",
        "Messages: received ones by result, and sent ones (accepted: committed to the outbox, or published once)",
        {"direction": ("received", "sent"), "kind": (*_KINDS, NO_ENVELOPE), "result": _RESULTS},
    ),
    Metric("aghbus_duplicates_total", "counter", "Received messages whose id was received before"),
    Metric(
        "aghbus_refusals_total",
        "counter",
        "Received messages that were refused, by the reason code of the rule",
        {"rule": (*sorted(REASON_CODES), OTHER)},
    ),
    Metric(
        "aghbus_rejections_total",
        "counter",
        "Received messages that were rejected because of a limit, by limit and lane; they are delivered again later",
        {"reason": _REJECTIONS, "lane": tuple(PARTS)},
    ),
    Metric(
        "aghbus_identity_conflicts_total",
        "counter",
        "Received messages of other daemons that use our peer id, or a copy of our key",
    ),
    Metric("aghbus_published_total", "counter", "Messages that the broker has passed on, retries included"),
    Metric("aghbus_retries_total", "counter", "Messages that were published again"),
    Metric(
        "aghbus_undelivered_total",
        "counter",
        "Sent messages that ended without an effect",
        {"kind": tuple(sorted(CONVERSATION_KINDS)), "reason": ("refused", "expired", "dead")},
    ),
    Metric(
        "aghbus_delivery_seconds",
        "histogram",
        "From the commit of a directed message to its receiver's commit acknowledgement, retries included",
    ),
    Metric("aghbus_commit_seconds", "histogram", "COMMIT of a transaction of the store"),
    Metric(
        "aghbus_commits_total",
        "counter",
        "Transactions of the store that wrote something",
        {"result": ("ok", "failed")},
    ),
    Metric("aghbus_receive_queue_messages", "gauge", "Received messages that wait for the store"),
    Metric("aghbus_inbox_messages", "gauge", "Messages of the inbox", {"state": ("ready", "leased", "dead")}),
    Metric("aghbus_inbox_capacity_messages", "gauge", "Messages that may be ready or leased (inbox.capacity)"),
    Metric("aghbus_inbox_bytes", "gauge", "Bytes of the messages that are ready or leased"),
    Metric("aghbus_admission_requests", "gauge", "Peers that wait for admission (aghctl requests)"),
    Metric(
        "aghbus_outbox_messages",
        "gauge",
        "Messages of the outbox that are queued, or ended without an effect",
        {"state": ("queued", "refused", "expired", "dead")},
    ),
    Metric(
        "aghbus_works",
        "gauge",
        "Open works by our role",
        {"state": ("submitted", "working", "needs_input"), "role": ("initiator", "target", "observer")},
    ),
    Metric("aghbus_peers", "gauge", "Peers by presence", {"state": ("active", "inactive")}),
    Metric("aghbus_nats_up", "gauge", "1 if the link to the broker is up"),
    Metric("aghbus_nats_reconnects_total", "counter", "Connections to the broker that were lost"),
    Metric(
        "aghbus_nats_round_trip_seconds", "gauge", "Last measured round trip to the broker; missing before the first"
    ),
    Metric("aghbus_store_bytes", "gauge", "Size of the store's files"),
    Metric(
        "aghbus_store_kept_bytes",
        "gauge",
        "Bytes of messages that retention must keep, while the store is larger than store.retention_size; else 0",
    ),
    Metric("aghbus_store_writable", "gauge", "1 if the last transaction of the store became durable"),
    Metric("aghbus_dedup_ids", "gauge", "Ids in the deduplication window"),
    Metric("aghbus_dedup_capacity_ids", "gauge", "Ids that it may hold (receive.remembered)"),
    Metric("aghbus_quarantine_messages", "gauge", "Refused messages kept for inspection"),
    Metric(
        "aghbus_event_loop_lag_seconds",
        "histogram",
        "How late the event loop runs a timer, measured four times a second",
    ),
)
"""Every metric of the daemon itself, in order of their output."""


def metrics_table() -> str:
    """The Markdown table of all metrics that docs/operations.md holds."""
    head = "| metric | type | labels | meaning |\n|---|---|---|---|\n"
    return head + "".join(f"| `{one.name}` | {one.type} | {_labels(one)} | {one.help} |\n" for one in METRICS)


def _labels(metric: Metric) -> str:
    shown = []
    for name, values in metric.labels.items():
        shown.append(f"`{name}`: {', '.join(values)}" if values else f"`{name}`")
    return "; ".join(shown)
