"""The metrics of running daemons, as promtool and a real Prometheus read them."""

import asyncio
import json
import subprocess
import sys
import urllib.parse
import urllib.request
from collections.abc import Iterator
from contextlib import contextmanager, suppress
from pathlib import Path
from typing import Any

import pytest
import yaml
from prometheus_client.parser import text_string_to_metric_families

from aghbus.daemon.health.catalog import METRICS
from tests.support.cluster import free_ports
from tests.support.daemons import Daemon, Home, wait_for
from tests.support.foreign import foreign_peer
from tests.support.natsutil import NatsServer
from tests.support.probing import LISTEN, ask, port_of
from tests.support.tools import require_tool

DEPLOY = Path(__file__).parents[2] / "deploy" / "prometheus"
Samples = dict[tuple[str, frozenset[tuple[str, str]]], float]


def samples(port: int) -> Samples:
    """Every sample by name and labels."""
    answer = ask(port, "/metrics")
    assert (answer.status, answer.headers["content-type"]) == (200, "text/plain; version=0.0.4; charset=utf-8")
    families = text_string_to_metric_families(answer.body.decode())
    return {(one.name, frozenset(one.labels.items())): one.value for family in families for one in family.samples}


def key(metric: str, /, **labels: str) -> tuple[str, frozenset[tuple[str, str]]]:
    return metric, frozenset(labels.items())


def value(port: int, metric: str, /, **labels: str) -> float:
    return samples(port)[key(metric, **labels)]


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Daemon, Daemon]]:
    """Two daemons that have seen each other; both have a health listener."""
    home = Home(tmp_path_factory.mktemp("metrics"))
    with Daemon(home, "ops", *LISTEN) as ops, Daemon(home, "secretive-peer", *LISTEN) as other:
        wait_for(lambda: ops.knows("secretive-peer") and other.knows("ops"), 30, "presence")
        yield ops, other


def test_every_declared_metric_is_exported_with_declared_labels(pair: tuple[Daemon, Daemon]) -> None:
    answer = ask(port_of(pair[0]), "/metrics").body.decode()
    families = {family.name: family for family in text_string_to_metric_families(answer)}
    names = {name for name in families if not name.startswith("process_")}
    assert names == {metric.name.removesuffix("_total") for metric in METRICS}
    for metric in METRICS:
        family = families[metric.name.removesuffix("_total")]
        assert (family.type, family.documentation) == (metric.type, metric.help)
        assert family.samples, metric.name
        for sample in family.samples:
            assert set(sample.labels) - {"le"} == set(metric.labels), sample
            for label, allowed in metric.labels.items():
                assert not allowed or sample.labels[label] in allowed, sample
    assert {"process_cpu_seconds_total", "process_resident_memory_bytes"} <= {
        sample.name for family in families.values() for sample in family.samples
    }


def test_messages_are_counted_and_their_delivery_is_timed(pair: tuple[Daemon, Daemon]) -> None:
    ops, other = port_of(pair[0]), port_of(pair[1])
    for number in range(3):
        pair[0].post("/v1/works", to="secretive-peer", text=f"job {number}")
    says = {"direction": "received", "kind": "say", "result": "accepted"}
    wait_for(lambda: value(other, "aghbus_messages_total", **says) == 3, 30, "three messages")
    wait_for(lambda: value(ops, "aghbus_delivery_seconds_count") == 3, 30, "three acknowledgements")
    wait_for(lambda: value(other, "aghbus_works", state="submitted", role="target") == 3, 30, "three works")
    wait_for(lambda: value(other, "aghbus_inbox_messages", state="ready") == 3, 30, "three messages in the inbox")
    found = samples(ops)
    assert found[key("aghbus_messages_total", direction="sent", kind="say", result="accepted")] == 3
    assert found[key("aghbus_works", state="submitted", role="initiator")] == 3
    assert found[key("aghbus_delivery_seconds_bucket", le="+Inf")] == 3
    assert 0 < found[key("aghbus_delivery_seconds_sum")] < 60
    assert found[key("aghbus_commit_seconds_count")] >= found[key("aghbus_commits_total", result="ok")] > 0
    assert found[key("aghbus_event_loop_lag_seconds_count")] > 0
    assert found[key("aghbus_ready")] == found[key("aghbus_nats_up")] == found[key("aghbus_store_writable")] == 1
    assert found[key("aghbus_peers", state="active")] >= 1
    assert found[key("aghbus_store_bytes")] > 4096
    assert 0 < found[key("aghbus_nats_round_trip_seconds")] < 60


async def test_received_messages_are_counted_by_result_without_text_of_peers(tmp_path: Path) -> None:
    async with NatsServer() as broker, foreign_peer(broker.url, "mallory") as mallory:
        with Daemon(Home(tmp_path), "ops", "--nats", broker.url, *LISTEN) as ops:
            port = port_of(ops)
            opening = mallory.work("ops", "work_1")
            for envelope in (
                opening,
                opening,
                mallory.envelope("xmallory", {}, to="ops"),
                mallory.work("ops", "work_2", proof={"type": "mallory"}),
                b"mallory",
            ):
                await mallory.publish(envelope, to="ops")
            wanted = {
                ("say", "accepted"): 1.0,
                ("say", "duplicate"): 1.0,
                ("say", "refused"): 1.0,
                ("other", "refused"): 2.0,
            }

            def counted() -> dict[tuple[str, str], float]:
                return {result: value(port, "aghbus_messages_total", **labels(result)) for result in wanted}

            def labels(result: tuple[str, str]) -> dict[str, str]:
                return {"direction": "received", "kind": result[0], "result": result[1]}

            await asyncio.to_thread(wait_for, lambda: counted() == wanted, 30, "the messages")
            found = samples(port)
            assert found[key("aghbus_duplicates_total")] == 1
            assert found[key("aghbus_refusals_total", rule="unsupported_kind")] == 1
            refused = sum(count for (name, _), count in found.items() if name == "aghbus_refusals_total")
            assert refused == 3
            assert "mallory" not in ask(port, "/metrics").body.decode()


def test_messages_that_nobody_takes_are_counted_as_undelivered(tmp_path: Path) -> None:
    with Daemon(Home(tmp_path), "ops", "--retry-first", "100ms", "--retry-limit", "1", *LISTEN) as ops:
        port = port_of(ops)
        ops.post("/v1/works", to="absent", text="anybody there?")
        dead = {"kind": "say", "reason": "dead"}
        wait_for(lambda: value(port, "aghbus_undelivered_total", **dead) == 1, 30, "the end of the message")
        # the end of the work is another one
        wait_for(lambda: value(port, "aghbus_outbox_messages", state="dead") >= 1, 30, "a dead message")
        assert value(port, "aghbus_delivery_seconds_count") == 0


async def test_waiting_requests_are_in_metrics_status_and_doctor(tmp_path: Path, server: NatsServer) -> None:
    home = Home(tmp_path)
    with Daemon(home, "ops", "--nats", server.url, *LISTEN) as ops:
        ops.post("/v1/messages", kind="say", to="friend", body={"text": "hello"})
        async with foreign_peer(server.url, "friend") as friend, foreign_peer(server.url, "unknown") as unknown:
            for peer in (friend, unknown):
                await peer.publish(peer.work("ops", f"work_{peer.peer_id}"))

            def shown() -> tuple[Any, ...]:
                human, doctor = (home.ctl("--name", "ops", each).stdout for each in ("status", "doctor"))
                count = home.ctl_json("--name", "ops", "status")["requests"]
                gauge = value(port_of(ops), "aghbus_admission_requests")
                return (
                    count,
                    gauge,
                    b"1 peer to admit: aghctl --name ops requests" in human,
                    b"warn  requests: 1 peer" in doctor,
                )

            wait_for(lambda: ops.get("/v1/inbox")["counts"]["ready"] == 2, 30, "both works")
            wait_for(lambda: shown() == (1, 1, True, True), 30, "the request")
            home.ctl("--name", "ops", "trust", "admit", "unknown")
            wait_for(lambda: shown() == (0, 0, False, False), 30, "no request")


def test_a_store_that_retention_cannot_make_smaller_is_reported(tmp_path: Path) -> None:
    with Daemon(Home(tmp_path), "ops", "--store-retention-size", "16MiB", *LISTEN) as ops:
        for _ in range(45):
            ops.post("/v1/works", to="absent", text="x" * 400_000)
        ops.stop()  # retention looks at the start
        ops.start()
        wait_for(lambda: value(port_of(ops), "aghbus_store_kept_bytes") > 16 << 20, 30, "the first look")
        (problem,) = ops.get("/v1/status")["problems"]
        assert problem.startswith("the store stays larger than store.retention_size: 17.")


def test_the_library_is_loaded_only_with_a_listener() -> None:
    code = "import sys, aghbus.daemon.process; sys.exit('prometheus_client' in sys.modules)"
    assert subprocess.run([sys.executable, "-c", code], timeout=60, check=False).returncode == 0


def test_promtool_accepts_metrics_rules_and_configuration(pair: tuple[Daemon, Daemon]) -> None:
    promtool = require_tool("promtool")
    checks: list[tuple[list[str], bytes]] = [
        (["metrics"], ask(port_of(pair[0]), "/metrics").body),
        (["rules", str(DEPLOY / "alerts.yml"), str(DEPLOY / "nats.yml")], b""),
        (["config", str(DEPLOY / "prometheus.yml")], b""),
    ]
    for arguments, given in checks:
        done = subprocess.run(
            [promtool, "check", *arguments], input=given, capture_output=True, timeout=60, check=False
        )
        assert (done.returncode, done.stderr) == (0, b""), (arguments, done.stdout, done.stderr)


@contextmanager
def prometheus(folder: Path, target: int) -> Iterator[str]:
    """A Prometheus with the rules of deploy/ that scrapes `target`, and no NATS server; the URL of its API."""
    program = require_tool("prometheus")
    (own,) = free_ports(1)
    text = (DEPLOY / "prometheus.yml").read_text()
    config = yaml.safe_load(text.replace("interval: 15s", "interval: 1s").replace("9464", str(target)))
    config["rule_files"] = [str(DEPLOY / name) for name in config["rule_files"]]
    config["scrape_configs"] = [job for job in config["scrape_configs"] if job["job_name"] == "aghbus"]
    (folder / "prometheus.yml").write_text(yaml.safe_dump(config))
    arguments = [f"--config.file={folder}/prometheus.yml", f"--storage.tsdb.path={folder}/data"]
    with (folder / "log").open("wb") as log:
        process = subprocess.Popen(
            [program, *arguments, f"--web.listen-address=127.0.0.1:{own}"], stdout=log, stderr=log
        )
    try:
        yield f"http://127.0.0.1:{own}/api/v1"
    finally:
        process.terminate()
        process.wait(30)


def api(url: str, path: str, **query: str) -> Any:
    with (
        suppress(OSError),
        urllib.request.urlopen(f"{url}/{path}?{urllib.parse.urlencode(query)}", timeout=10) as answer,
    ):
        return json.load(answer)["data"]
    return None


def test_a_real_prometheus_scrapes_a_daemon_and_evaluates_the_rules(
    pair: tuple[Daemon, Daemon], tmp_path: Path
) -> None:
    with prometheus(tmp_path, port_of(pair[0])) as url:

        def result(query: str) -> list[Any]:
            found = api(url, "query", query=query)
            return [] if found is None else [one["value"][1] for one in found["result"]]

        wait_for(lambda: result("aghbus_ready") == ["1"], 60, "the first scrape")
        assert result("up") == ["1"]
        assert int(result("count(aghbus_messages_total)")[0]) > 40
        wait_for(
            lambda: result("histogram_quantile(0.5, rate(aghbus_event_loop_lag_seconds_bucket[1m])) < 60"), 60, "a rate"
        )

        def states() -> list[tuple[str, str, str]]:
            groups = (api(url, "rules") or {"groups": []})["groups"]
            return [(rule["name"], rule["health"], rule["state"]) for group in groups for rule in group["rules"]]

        wait_for(lambda: states() and all(health == "ok" for _, health, _ in states()), 60, "the rules")
        assert [name for name, _, state in states() if state == "firing"] == []
