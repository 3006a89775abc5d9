"""What the gateway counts, for Prometheus."""

from __future__ import annotations

from prometheus_client import CollectorRegistry, Counter, Gauge, generate_latest

METHODS = frozenset({"GET", "POST", "DELETE", "gRPC"})


class Metrics:
    """Counters of one gateway. Labels have values from fixed lists."""

    def __init__(self) -> None:
        self._registry = CollectorRegistry()
        self._requests = self._counter("requests", "requests by method and status", ("method", "code"))
        self._denied = self._counter("denied", "requests without valid credentials", ("reason",))
        self._tasks = self._counter("tasks", "messages that open a task: opened, or repeated", ("outcome",))
        self._pushes = self._counter("pushes", "push notifications by result", ("result",))
        self._streams = Gauge("aghbus_a2a_streams", "streams that are open", registry=self._registry)

    def request(self, method: str, code: int) -> None:
        """Count a request that was answered."""
        self._requests.labels(method if method in METHODS else "other", str(code)).inc()

    def denied(self, reason: str) -> None:
        """Count a request that was refused for its credentials."""
        self._denied.labels(reason).inc()

    def task(self, outcome: str) -> None:
        """Count a message that opens a task: `opened` or `repeated`."""
        self._tasks.labels(outcome).inc()

    def push(self, result: str) -> None:
        """Count a push notification: `delivered`, `failed` or `given_up`."""
        self._pushes.labels(result).inc()

    def stream(self, change: int) -> None:
        """Count a stream that begins (1) or ends (-1)."""
        self._streams.inc(change)

    def text(self) -> bytes:
        """All of them, as Prometheus reads them."""
        return generate_latest(self._registry)

    def _counter(self, name: str, help_text: str, labels: tuple[str, ...]) -> Counter:
        return Counter(f"aghbus_a2a_{name}", help_text, labels, registry=self._registry)
