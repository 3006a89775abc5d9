"""The metrics in Prometheus' text format. All numbers are read when they are asked for.

This module loads prometheus_client, which takes 1.6 MB and 85 ms: import it only when there is a health listener.
"""

import asyncio
import platform
import time
from collections.abc import Iterable, Mapping
from itertools import accumulate
from typing import Final

from prometheus_client import CONTENT_TYPE_PLAIN_0_0_4, generate_latest
from prometheus_client.metrics_core import CounterMetricFamily, GaugeMetricFamily, HistogramMetricFamily
from prometheus_client.metrics_core import Metric as Family
from prometheus_client.process_collector import ProcessCollector
from prometheus_client.utils import floatToGoString

from aghbus.daemon.base.metrics import Counters
from aghbus.daemon.health.catalog import METRICS, OTHER, Metric
from aghbus.daemon.services.status import StatusService
from aghbus.host.version import VERSION
from aghbus.protocol.agh.limits import PROTOCOL
from aghbus.protocol.base.histogram import BOUNDS, Histogram
from aghbus.store.tables import inbox_list, outbox
from aghbus.store.tables.works import open_works

MEDIA_TYPE: Final = CONTENT_TYPE_PLAIN_0_0_4.encode()

FRESH_SECONDS: Final = 1.0
"""Seconds for which one answer is given again: what scrapes cost does not grow with their number."""

Values = Mapping[tuple[str, ...], float]
"""Values by those of the labels, in order of their declaration."""

_BY_NAME: Final = {metric.name: metric for metric in METRICS}


class Exporter:
    """Renders the metrics of one daemon."""

    def __init__(self, status: StatusService, delivery: Histogram, lag: Histogram) -> None:
        """`delivery` and `lag` are those of the metrics with these names."""
        self._status = status
        self._delivery = delivery
        self._lag = lag
        self._process = ProcessCollector(registry=None)
        self._lock = asyncio.Lock()
        self._text = b""
        self._fresh_until = 0.0

    async def text(self) -> bytes:
        """The text format, version 0.0.4; at most FRESH_SECONDS old."""
        async with self._lock:
            if time.monotonic() >= self._fresh_until:
                self._text = generate_latest(_Families(await self._families()))
                self._fresh_until = time.monotonic() + FRESH_SECONDS
            return self._text

    async def _families(self) -> list[Family]:
        counters = self._status.context.counters
        found = {**await self._daemon(), **self._links(), **await self._store(), **_messages(counters)}
        histograms = {
            "aghbus_delivery_seconds": self._delivery,
            "aghbus_commit_seconds": self._status.store.commit_seconds,
            "aghbus_event_loop_lag_seconds": self._lag,
        }
        families = []
        for metric in METRICS:
            if metric.type == "histogram":
                families.append(_histogram(metric, histograms[metric.name]))
            else:
                families.append(_family(metric, found[metric.name]))
        return [*families, *self._process.collect()]

    async def _daemon(self) -> dict[str, Values]:
        status = self._status
        settings, memory = status.context.settings.current, status.store.memory
        return {
            "aghbus_build_info": {(VERSION, PROTOCOL, platform.python_version()): 1},
            "aghbus_ready": {(): (await status.readiness()).ready},
            "aghbus_problems": {(): len(status.problems())},
            "aghbus_receive_queue_messages": {(): status.queue.depth},
            "aghbus_inbox_capacity_messages": {(): settings.inbox.capacity},
            "aghbus_inbox_bytes": {(): memory.inbox.messages.size + memory.inbox.reactions.size},
            "aghbus_admission_requests": {(): status.requests()},
            "aghbus_peers": _by(status.presence.counts(status.context.clock.millis())),
            "aghbus_dedup_ids": {(): len(memory.dedup.keys)},
            "aghbus_dedup_capacity_ids": {(): settings.receive.remembered},
            "aghbus_quarantine_messages": {(): memory.quarantine_rows},
        }

    def _links(self) -> dict[str, Values]:
        link = self._status.broker.link
        rtt = link.rtt_ms()
        return {
            "aghbus_nats_up": {(): link.state == "up"},
            "aghbus_nats_reconnects_total": {(): link.reconnects},
            "aghbus_nats_round_trip_seconds": {} if rtt is None else {(): rtt / 1000},
        }

    async def _store(self) -> dict[str, Values]:
        store = self._status.store
        found = await open_works.counts_by_role(store.reader)
        shown = _BY_NAME["aghbus_works"].labels
        return {
            "aghbus_commits_total": {("ok",): store.stats.commits, ("failed",): store.stats.failed_commits},
            "aghbus_inbox_messages": _by(await inbox_list.counts(store.reader, store.memory.inbox)),
            "aghbus_outbox_messages": _by(await outbox.counts(store.reader)),
            "aghbus_works": {
                (state, role): found.get((state, role), 0) for state in shown["state"] for role in shown["role"]
            },
            "aghbus_store_bytes": {(): (await store.status()).bytes},
            "aghbus_store_kept_bytes": {(): sum(store.memory.kept)},
            "aghbus_store_writable": {(): store.writable},
        }


class _Families:
    """What `generate_latest` takes: families that are collected already."""

    def __init__(self, families: Iterable[Family]) -> None:
        self._families = families

    def collect(self) -> Iterable[Family]:
        return self._families


def _messages(counters: Counters) -> dict[str, Values]:
    labels = _BY_NAME["aghbus_messages_total"].labels
    messages: dict[tuple[str, ...], float] = {}
    for kind in labels["kind"]:
        for result in labels["result"]:
            messages["received", kind, result] = counters.received.get((kind, result), 0)
        if kind != OTHER:
            messages["sent", kind, "accepted"] = counters.get(f"sent.{kind}", 0)
    ended, rejections = _BY_NAME["aghbus_undelivered_total"].labels, _BY_NAME["aghbus_rejections_total"].labels
    return {
        "aghbus_messages_total": messages,
        "aghbus_duplicates_total": {(): counters.get("ignored.duplicate", 0)},
        "aghbus_refusals_total": _refusals(counters),
        "aghbus_rejections_total": {
            (reason, lane): counters.rejected.get((reason, lane), 0)
            for reason in rejections["reason"]
            for lane in rejections["lane"]
        },
        "aghbus_identity_conflicts_total": {(): counters.get("identity.conflicts", 0)},
        "aghbus_published_total": {(): counters.get("outbox.published", 0)},
        "aghbus_retries_total": {(): counters.get("outbox.retried", 0)},
        "aghbus_undelivered_total": {
            (kind, reason): counters.undelivered.get((kind, reason), 0)
            for kind in ended["kind"]
            for reason in ended["reason"]
        },
    }


def _refusals(counters: Counters) -> Values:
    """Refusals by their reason; those that the metric does not list as OTHER."""
    values: dict[tuple[str, ...], float] = {(rule,): 0 for rule in _BY_NAME["aghbus_refusals_total"].labels["rule"]}
    for counter, count in counters.items():
        if counter.startswith("refused."):
            key = (counter.removeprefix("refused."),)
            values[key if key in values else (OTHER,)] += count
    return values


def _by(counts: Mapping[str, int]) -> Values:
    return {(state,): count for state, count in counts.items()}


def _family(metric: Metric, values: Values) -> Family:
    family: CounterMetricFamily | GaugeMetricFamily
    if metric.type == "counter":
        family = CounterMetricFamily(metric.name, metric.help, labels=[*metric.labels])
    else:
        family = GaugeMetricFamily(metric.name, metric.help, labels=[*metric.labels])
    for labels, value in values.items():
        family.add_metric(labels, float(value))
    return family


def _histogram(metric: Metric, histogram: Histogram) -> Family:
    bounds = [*map(floatToGoString, BOUNDS), "+Inf"]
    buckets = list(zip(bounds, accumulate(histogram.counts), strict=True))
    return HistogramMetricFamily(metric.name, metric.help, buckets=buckets, sum_value=histogram.sum)
