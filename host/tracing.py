"""OpenTelemetry traces, for the daemon and for workers: spans, and their context as it travels in envelopes.

Only the standard variables `OTEL_…` configure it. Without an endpoint nothing is imported, and nothing costs anything.
"""

from __future__ import annotations

import random
import re
import time
from collections.abc import Mapping
from typing import Any, Final, Literal, cast

from aghbus.host.version import VERSION
from aghbus.protocol.base.text import escape, shorten

TRACEPARENT: Final = "traceparent"
TRACESTATE: Final = "tracestate"
KEYS: Final = (TRACEPARENT, TRACESTATE)
"""Members of an envelope's `ext` that carry the context (W3C Trace Context); signed with it."""

Kind = Literal["producer", "consumer", "internal"]

_FORMS: Final = {  # W3C Trace Context, sections 3.2 and 3.3; a tracestate of 512 characters has to be passed on
    TRACEPARENT: re.compile("00-(?!0{32})[0-9a-f]{32}-(?!0{16})[0-9a-f]{16}-[0-9a-f]{2}"),
    TRACESTATE: re.compile("[ -~]{1,512}"),
}
_MAX_ATTRIBUTE: Final = 256
_ANY_PARENT: Final = f"00-{1:032x}-{1:016x}-"
CLOSE_SECONDS: Final = 1.0
"""How long a process waits at its end for a collector."""


class TracingUnavailable(Exception):
    """Traces are asked for, and the packages of OpenTelemetry are not installed."""


def is_wanted(env: Mapping[str, str]) -> bool:
    """Whether the environment names an endpoint for traces (OpenTelemetry specification, Environment Variables)."""
    disabled = env.get("OTEL_SDK_DISABLED", "").lower() == "true" or env.get("OTEL_TRACES_EXPORTER", "otlp") == "none"
    named = env.get("OTEL_EXPORTER_OTLP_TRACES_ENDPOINT") or env.get("OTEL_EXPORTER_OTLP_ENDPOINT")
    return bool(named) and not disabled


def carrier_in(ext: Mapping[str, Any] | None) -> dict[str, str]:
    """The context that `ext` carries, without invalid members; empty when it has none. It may come from a peer."""
    found = {
        key: value
        for key, form in _FORMS.items()
        if isinstance(value := (ext or {}).get(key), str) and form.fullmatch(value)
    }
    return found if TRACEPARENT in found else {}


def ids_of(carrier: Mapping[str, str]) -> dict[str, str]:
    """The fields of a log line that joins it to a trace: `trace_id` and `span_id` of a context; none without one."""
    parts = carrier.get(TRACEPARENT, "").split("-")
    return {"trace_id": parts[1], "span_id": parts[2]} if len(parts) == 4 else {}


def carrier_of_environment(env: Mapping[str, str]) -> dict[str, str]:
    """The context that a program inherits: TRACEPARENT and TRACESTATE."""
    return carrier_in({key: env.get(key.upper()) for key in KEYS})


class Tracing:
    """Exports the spans of one process, in the background. `close` sends the last ones."""

    def __init__(self, service: str, instance: str) -> None:
        """`service` is the name of the program unless OTEL_SERVICE_NAME gives another. Raises TracingUnavailable."""
        try:
            from opentelemetry import propagate, trace
            from opentelemetry.exporter.otlp.proto.http.trace_exporter import OTLPSpanExporter
            from opentelemetry.sdk.resources import OTELResourceDetector, Resource
            from opentelemetry.sdk.trace import TracerProvider
            from opentelemetry.sdk.trace.export import BatchSpanProcessor
        except ImportError as error:
            raise TracingUnavailable("traces need the extra `otel` of aghbus (docs/operations.md#traces)") from error
        self._ids = _TraceIds()
        named = Resource.create({"service.name": service, "service.instance.id": instance, "service.version": VERSION})
        self._provider = TracerProvider(
            resource=named.merge(OTELResourceDetector().detect()),
            shutdown_on_exit=False,
            id_generator=cast("Any", self._ids),
        )
        self._provider.add_span_processor(BatchSpanProcessor(OTLPSpanExporter()))
        self._tracer = self._provider.get_tracer("aghbus", VERSION)
        self._trace, self._propagate = trace, propagate
        self._sampler: Any = self._provider.sampler if _is_plain(self._provider.sampler) else None
        self._samples_below = {flag: self._asks(f"{_ANY_PARENT}{flag}") for flag in ("00", "01")}

    def _asks(self, parent: str) -> bool:
        context = self._propagate.extract({TRACEPARENT: parent})
        return self._sampler is None or bool(self._sampler.should_sample(context, 0, "").decision.is_sampled())

    def unsampled(self, parent: Mapping[str, str]) -> Mapping[str, str] | None:
        """What to pass on in place of the context of a span below `parent` that is not sampled; None: `start` one.

        It is asked before the name and the attributes of a span are made, which cost more than all else of most messages.
        """
        if self._sampler is None:
            return None
        if not parent:
            trace_id = random.getrandbits(128)
            if self._sampler.should_sample(None, trace_id, "").decision.is_sampled():
                self._ids.chosen = trace_id
                return None
            return {TRACEPARENT: f"00-{trace_id:032x}-{random.getrandbits(64):016x}-00"}
        context = parent[TRACEPARENT]
        flag = "01" if int(context[-2:], 16) & 1 else "00"
        if self._samples_below[flag]:
            return None
        return parent if flag == "00" else {**parent, TRACEPARENT: f"{context[:-2]}00"}

    def start(
        self, name: str, kind: Kind, parent: Mapping[str, str], attributes: Mapping[str, object], began_ms: int = 0
    ) -> Span:
        """Begin a span below `parent`, which a consumer also links to. It began at `began_ms`, Unix time, or now."""
        context = self._propagate.extract(parent)
        remote = self._trace.get_current_span(context).get_span_context()
        links = [self._trace.Link(remote)] if kind == "consumer" and remote.is_valid else None
        given = {
            key: value if isinstance(value, int) else shorten(escape(str(value)), _MAX_ATTRIBUTE)
            for key, value in attributes.items()
            if value is not None
        }
        kinds = self._trace.SpanKind
        span = self._tracer.start_span(
            name,
            context,
            kind={"producer": kinds.PRODUCER, "consumer": kinds.CONSUMER, "internal": kinds.INTERNAL}[kind],
            attributes=given,
            links=links,
            start_time=began_ms * 1_000_000 or time.time_ns(),
        )
        carrier: dict[str, str] = {}
        self._propagate.inject(carrier, self._trace.set_span_in_context(span, context))
        return Span(span, {key: carrier[key] for key in KEYS if key in carrier}, self._trace.StatusCode.ERROR)

    def close(self) -> None:
        """Export what is left, for CLOSE_SECONDS at most: what a collector has not taken by then is lost."""
        from threading import Thread  # slow to load

        ending = Thread(target=self._provider.shutdown, name="aghbus-tracing", daemon=True)
        ending.start()
        ending.join(CLOSE_SECONDS)


class _TraceIds:
    """The ids of the SDK: random ones, but for a trace that `Tracing.unsampled` has decided to sample."""

    chosen = 0

    def generate_span_id(self) -> int:
        return random.getrandbits(64) or 1

    def generate_trace_id(self) -> int:
        chosen, self.chosen = self.chosen, 0
        return chosen or random.getrandbits(128) or 1

    def is_trace_id_random(self) -> bool:
        return True


def _is_plain(sampler: Any) -> bool:
    """Whether it decides below a parent by whether that is sampled, and else by the id of the trace alone."""
    from opentelemetry.sdk.trace.sampling import ParentBased, ParentBasedTraceIdRatio, StaticSampler

    return type(sampler) in (ParentBased, ParentBasedTraceIdRatio, StaticSampler)


class Span:
    """A span that has begun. `carrier` is its context, for `ext` or the environment of a command."""

    __slots__ = ("_error", "_span", "carrier")

    def __init__(self, span: Any, carrier: dict[str, str], error: Any) -> None:
        self._span = span
        self._error = error
        self.carrier = carrier

    def end(self, problem: str = "") -> None:
        """End it, with an error status if there was a `problem`."""
        if problem:
            self._span.set_status(self._error, shorten(escape(problem), _MAX_ATTRIBUTE))
        self._span.end()


def tracing_of(env: Mapping[str, str], service: str, instance: str) -> Tracing | None:
    """What exports the traces of this process; None when the environment does not ask for it. Raises TracingUnavailable."""
    return Tracing(service, instance) if is_wanted(env) else None
