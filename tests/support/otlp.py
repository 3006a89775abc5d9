"""A receiver of OTLP over HTTP (protobuf), as a collector of traces."""

import threading
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from typing import Any, NamedTuple

from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

KINDS = {1: "internal", 4: "producer", 5: "consumer"}


class ReceivedSpan(NamedTuple):
    """One exported span."""

    service: str
    instance: str
    name: str
    kind: str
    trace: str
    span: str
    parent: str
    links: tuple[str, ...]
    attributes: dict[str, str]


class Collector:
    """The received spans; `env` makes a program export to it."""

    def __init__(self, url: str) -> None:
        self.env = {"OTEL_EXPORTER_OTLP_ENDPOINT": url, "OTEL_BSP_SCHEDULE_DELAY": "100"}
        self.spans: list[ReceivedSpan] = []

    def add(self, body: bytes) -> None:
        request = ExportTraceServiceRequest()
        request.ParseFromString(body)
        for batch in request.resource_spans:
            resource = {one.key: one.value.string_value for one in batch.resource.attributes}
            for scope in batch.scope_spans:
                self.spans += [
                    ReceivedSpan(
                        resource["service.name"],
                        resource["service.instance.id"],
                        span.name,
                        KINDS[span.kind],
                        span.trace_id.hex(),
                        span.span_id.hex(),
                        span.parent_span_id.hex(),
                        tuple(link.span_id.hex() for link in span.links),
                        {one.key: one.value.string_value for one in span.attributes},
                    )
                    for span in scope.spans
                ]


@contextmanager
def collecting() -> Iterator[Collector]:
    """A collector on a free port."""

    class Handler(BaseHTTPRequestHandler):
        def do_POST(self) -> None:
            collector.add(self.rfile.read(int(self.headers["content-length"])))
            self.send_response(200)
            self.send_header("content-type", "application/x-protobuf")
            self.end_headers()

        def log_message(self, format: str, *args: Any) -> None:
            pass

    server = ThreadingHTTPServer(("127.0.0.1", 0), Handler)
    collector = Collector(f"http://127.0.0.1:{server.server_address[1]}")
    thread = threading.Thread(target=server.serve_forever)
    thread.start()
    try:
        yield collector
    finally:
        server.shutdown()
        thread.join()
        server.server_close()
