"""OpenTelemetry: the spans of several programs form one trace, which travels in signed envelopes."""

import json
import socket
import subprocess
import sys
import threading
import time
from collections.abc import Iterator
from contextlib import contextmanager
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any, NamedTuple

import pytest
from opentelemetry.proto.collector.trace.v1.trace_service_pb2 import ExportTraceServiceRequest

from aghbus.client import Client, Endpoint
from tests.support.daemons import Daemon, Home, ops_and_worker, wait_for
from tests.support.mcp_client import McpClient

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


PARENT = "00-0af7651916cd43dd8448eb211c80319c-b7ad6b7169203331-01"
TRACE = "0af7651916cd43dd8448eb211c80319c"


def spans_of(collector: Collector, trace: str) -> list[tuple[str, str, str]]:
    return sorted({(span.instance, span.name, span.kind) for span in collector.spans if span.trace == trace})


def test_three_peers_give_one_trace(home: Home) -> None:
    """ops opens a work, the command of the worker opens another one for helper and waits for its end."""
    for name in ("ops", "worker", "helper"):
        home.ctl_json("--name", name, "key", "generate")
    ctl = f"{sys.executable} -m aghbus.cli"
    command = f'{ctl} work open --to "$HELPER" --text inner -o json && echo done'
    with (
        collecting() as collector,
        Daemon(home, "ops", env=collector.env) as ops,
        Daemon(home, "worker", "--capability", "run", env=collector.env) as worker,
        Daemon(home, "helper", env=collector.env) as helper,
    ):
        handles = {
            one: next(p["peer_id"] for p in one.get("/v1/peers")["peers"] if p["presence"] == "local")
            for one in (ops, worker, helper)
        }
        wait_for(lambda: ops.knows(handles[worker]) and worker.knows(handles[helper]), 30, "presence")
        serve = [sys.executable, "-m", "aghbus.cli", "--name", "worker", "serve", "--once", "--capability", "run"]
        serve += ["--pass-env", "HELPER"]
        env = {**home.env, **collector.env, "HELPER": handles[helper]}
        with subprocess.Popen([*serve, "--", "sh", "-c", command], env=env, stdout=subprocess.DEVNULL) as serving:
            opened = ops.post("/v1/works", to=handles[worker], text="outer", ext={"traceparent": PARENT, "other": 1})
            wait_for(lambda: ops.state_of(opened["work_id"]) in ("completed", "failed"), 60, "the end")
            assert serving.wait(30) == 0, ops.get(f"/v1/works/{opened['work_id']}")
        wait_for(lambda: helper.get("/v1/works")["works"], 30, "the inner work")
        inner = helper.get("/v1/works")["works"][0]["opening_id"]
        wait_for(lambda: len(spans_of(collector, TRACE)) >= 6, 30, "the spans")
        envelope = helper.get(f"/v1/messages/{inner}")["envelope"]
    found = spans_of(collector, TRACE)
    for instance, span in (
        (handles[ops], "send"),
        (handles[worker], "process"),
        (handles[worker], "send"),
        (handles[helper], "process"),
        (handles[ops], "process"),
    ):
        kind = "producer" if span == "send" else "consumer"
        assert (instance, f"{span} default", kind) in found
    assert [one for one in found if one[1] == "invoke_agent"] == [(handles[worker], "invoke_agent", "internal")]
    # the context is part of what is signed; each processed span is linked to the one that sent it
    assert envelope["ext"]["traceparent"].split("-")[1] == TRACE
    assert envelope["proof"]
    sent = {span.span for span in collector.spans if span.kind == "producer"}
    assert all(set(span.links) <= sent and span.links for span in collector.spans if span.kind == "consumer")


@pytest.mark.parametrize("form", ["jsonl", "human"])
def test_events_of_a_worker_name_the_span(home: Home, form: str) -> None:
    with collecting() as collector, Daemon(home, "ops") as ops, Daemon(home, "worker", "--capability", "run"):
        serve = [sys.executable, "-m", "aghbus.cli", "--name", "worker", "serve", "--once", "-o", form]
        serve += ["--capability", "run", "--", "true"]
        env = {**home.env, **collector.env}
        with subprocess.Popen(serve, env=env, stdout=subprocess.PIPE, text=True) as serving:
            ops.post("/v1/works", to="worker", text="x", ext={"traceparent": PARENT, "other": 1})
            out, _ = serving.communicate(timeout=60)
        (run,) = (span for span in collector.spans if span.name == "invoke_agent")
        assert run.trace == TRACE
        if form == "jsonl":
            events = {one["event"]: one for one in map(json.loads, out.splitlines())}
            assert {events[name]["trace_id"] for name in ("taken", "started", "reported")} == {TRACE}
            assert {events[name]["span_id"] for name in ("started", "reported")} == {run.span}
            assert "trace_id" not in events["ready"]
        else:
            assert f"trace_id {TRACE}  span_id {run.span}" in out


@pytest.mark.parametrize("form", ["json", "text"])
def test_lines_of_the_log_about_a_message_name_its_span(tmp_path: Path, form: str) -> None:
    options = ("--secrets-guard", "warn", "--log-format", form)
    with collecting() as collector, Daemon(Home(tmp_path), "ops", *options, env=collector.env) as ops:
        body = {"text": "curl -H 'Authorization: Bearer 0123456789abcdef0123'"}
        ops.post("/v1/messages", kind="say", to="worker", body=body, ext={"traceparent": PARENT})
        wait_for(lambda: collector.spans, 30, "the span")
        (line,) = (one for one in ops.log.read_text().splitlines() if "looks like a credential" in one)
    (sent,) = collector.spans
    assert sent.trace == TRACE
    if form == "json":
        assert {name: json.loads(line)[name] for name in ("trace_id", "span_id")} == {
            "trace_id": sent.trace,
            "span_id": sent.span,
        }
    else:
        assert line.endswith(f" trace_id={sent.trace} span_id={sent.span}")


def test_a_job_of_the_client_library_continues_its_trace(home: Home) -> None:
    with ops_and_worker(home) as (ops, worker):
        ops.post("/v1/works", to="worker", text="x", ext={"traceparent": PARENT, "other": 1})
        client = Client(Endpoint(path=str(worker.socket_path)))
        job = next(iter(client.jobs()))
        with job:
            client.send(kind="say", to="ops", body={"text": "more"}, ext=job.trace)
        (said,) = worker.get("/v1/messages?direction=out&kind=say")["messages"]
        assert said["envelope"]["ext"]["traceparent"] == PARENT


def test_a_repeated_request_is_the_same_message(tmp_path: Path) -> None:
    with collecting() as collector, Daemon(Home(tmp_path), "ops", env=collector.env) as ops:
        first, second = (
            ops.post("/v1/works", to="nobody", text="x", id="msg_same", work_id="work_1") for _ in range(2)
        )
        assert first["seq"] == second["seq"]


def test_a_host_passes_its_trace_in_meta(tmp_path: Path) -> None:
    with Daemon(Home(tmp_path), "ops") as ops:
        client = McpClient(ops.socket_path)
        message = client.message("tools/call", 1, {"name": "open_work", "arguments": {"to": "nobody", "task": "x"}})
        message["params"]["_meta"]["traceparent"] = PARENT
        client.post(message, client.headers("tools/call", {"name": "open_work"}))
        (work,) = ops.get("/v1/works")["works"]
        assert ops.get(f"/v1/messages/{work['opening_id']}")["envelope"]["ext"] == {"traceparent": PARENT}


def test_without_endpoint_trace_context_is_only_propagated(home: Home) -> None:
    with Daemon(home, "ops") as ops:
        env = {**home.env, "TRACEPARENT": PARENT, "TRACESTATE": "a=b"}
        command = [
            sys.executable,
            "-m",
            "aghbus.cli",
            "--name",
            "ops",
            "work",
            "open",
            "--to",
            "x",
            "--text",
            "y",
            "-o",
            "json",
        ]
        opened = json.loads(subprocess.run(command, env=env, capture_output=True, check=True).stdout)
        ext = ops.get(f"/v1/messages/{opened['id']}")["envelope"]["ext"]
        assert ext == {"traceparent": PARENT, "tracestate": "a=b"}
        plain = ops.post("/v1/works", to="nobody", text="y")
        assert "ext" not in ops.get(f"/v1/messages/{plain['id']}")["envelope"]


def test_a_wrong_context_of_a_peer_begins_a_new_trace(home: Home) -> None:
    with collecting() as collector, Daemon(home, "ops") as ops, Daemon(home, "worker", env=collector.env) as worker:
        wait_for(lambda: ops.knows("worker"), 30, "presence")
        for wrong in ("x" * 100_000, "00-0-0-00", {"a": 1}, "\x1b[2J"):
            ops.post("/v1/messages", kind="say", to="worker", body={"text": "x"}, ext={"traceparent": wrong})
        wait_for(lambda: len([one for one in collector.spans if one.kind == "consumer"]) == 4, 30, "the spans")
        assert worker.get("/v1/status")
        assert all(not one.parent and not one.links for one in collector.spans)


def test_a_collector_that_is_away_stops_nothing(tmp_path: Path) -> None:
    env = {"OTEL_EXPORTER_OTLP_ENDPOINT": "http://127.0.0.1:9", "OTEL_EXPORTER_OTLP_TIMEOUT": "1"}
    with Daemon(Home(tmp_path), "ops", env=env) as ops:
        for n in range(20):
            ops.post("/v1/works", to="nobody", text=str(n))
        assert len(ops.get("/v1/works")["works"]) == 20


def test_the_end_of_a_daemon_does_not_wait_for_a_collector_that_hangs(tmp_path: Path) -> None:
    with socket.create_server(("127.0.0.1", 0)) as hangs:  # takes connections, and never answers
        env = {"OTEL_EXPORTER_OTLP_ENDPOINT": f"http://127.0.0.1:{hangs.getsockname()[1]}"}
        ops = Daemon(Home(tmp_path), "ops", env=env).start()
        ops.post("/v1/works", to="nobody", text="x")
        began = time.monotonic()
        assert ops.stop() == 0
        assert time.monotonic() - began < 9  # the exporter's own limits are 10 and 30 seconds


def test_a_trace_is_sampled_with_all_of_its_spans_or_not_at_all(home: Home) -> None:
    sampler = {"OTEL_TRACES_SAMPLER": "parentbased_traceidratio", "OTEL_TRACES_SAMPLER_ARG": "0.5"}
    with collecting() as collector, ops_and_worker(home, env={**collector.env, **sampler}) as (ops, worker):
        works = [ops.post("/v1/works", to="worker", text="x")["work_id"] for _ in range(40)]
        for work in works:
            wait_for(lambda: worker.state_of(work), 30, "the opening")  # noqa: B023 - called at once
            worker.post(f"/v1/works/{work}/complete", message="done")
            wait_for(lambda: ops.state_of(work) == "completed", 30, "the end")  # noqa: B023
        told = {one["envelope"]["ext"]["traceparent"] for work in works for one in messages_of(ops, work)}
        sampled = {context[3:35] for context in told if is_sampled(context)}
        assert 5 < len(sampled) < 35  # of 40: chance fails it once in a million runs
        assert {context[3:35] for context in told if not is_sampled(context)}.isdisjoint(sampled)
        steps = [("ops", "process"), ("ops", "send"), ("worker", "process"), ("worker", "send")]
        whole = sorted((instance, f"{step} default") for instance, step in steps)

        def complete() -> bool:
            return all(sorted(span[:2] for span in spans_of(collector, trace)) == whole for trace in sampled)

        wait_for(complete, 30, "the spans of each sampled work")
    assert {span.trace for span in collector.spans} == sampled


def is_sampled(context: str) -> bool:
    return bool(int(context[-2:], 16) & 1)


def messages_of(daemon: Daemon, work: str) -> list[dict[str, Any]]:
    return list(daemon.get(f"/v1/messages?work={work}&kind=say&kind=trace")["messages"])
