"""Counters and gauges of a gateway, and a listener from which Prometheus reads them."""

from __future__ import annotations

from collections.abc import Iterator, Mapping
from contextlib import contextmanager

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest, start_http_server

from aghbus.client.errors import UsageError


class Metrics:
    """Those of one process. Labels have values from fixed lists."""

    def __init__(self, prefix: str, about: Mapping[str, tuple[str, ...]]) -> None:
        """`about` has for each name, which follows `prefix`, what it counts, and its labels. One that ends with `_total` is a
        counter, another one a gauge."""
        self._registry = CollectorRegistry()
        self._all: dict[str, Counter | Gauge] = {}
        for name, (meaning, *labels) in about.items():
            kind = Counter if name.endswith("_total") else Gauge
            self._all[name] = kind(f"{prefix}_{name}", meaning, labels, registry=self._registry)

    def count(self, name: str, *labels: str, by: int = 1) -> None:
        """Add to a counter or a gauge."""
        one = self._all[name]
        (one.labels(*labels) if labels else one).inc(by)

    def set(self, name: str, value: int) -> None:
        """Set a gauge."""
        gauge = self._all[name]
        assert isinstance(gauge, Gauge)
        gauge.set(value)

    def text(self) -> bytes:
        """All of them, as Prometheus reads them."""
        return generate_latest(self._registry)

    @contextmanager
    def served(self, host: str, port: int) -> Iterator[int]:
        """Serve them here, at /metrics; the port, which is any free one for 0. Raises UsageError."""
        try:
            server, thread = start_http_server(port, host, self._registry)
        except OSError as error:
            raise UsageError(f"--metrics: {host}:{port} cannot be listened at: {error.strerror}") from None
        try:
            yield server.server_port
        finally:
            server.shutdown()
            server.server_close()
            thread.join()
