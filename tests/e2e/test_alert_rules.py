"""Every alert rule fires for the series that it is about, and not for those just below: as promtool evaluates them."""

import re
import subprocess
from pathlib import Path
from typing import Any, Final, NamedTuple

import pytest
import yaml

from tests.support.tools import require_tool

DEPLOY: Final = Path(__file__).parents[2] / "deploy" / "prometheus"
OURS: Final = 'job="aghbus", instance="worker:9464"'
NATS: Final = 'job="nats", instance="nats-0:7777", server_id="nats-0"'


class Case(NamedTuple):
    """`fires` and `rests` are series with one value a minute, looked at after `minutes`."""

    alert: str
    minutes: int
    fires: dict[str, str]
    rests: dict[str, str]


def of(metric: str, values: str, labels: str = "") -> dict[str, str]:
    """One series of a daemon, or of a NATS server."""
    whose = OURS if metric == "up" or metric.startswith("aghbus_") else NATS
    return {f"{metric}{{{whose}{', ' if labels else ''}{labels}}}": values}


def slow(metric: str, most: int) -> dict[str, str]:
    """A histogram of which `most` of 100 observations a minute take less than its bound of 0.1 s, the others less than 10 s."""
    buckets = {"0.1": most, "10": 100, "+Inf": 100}
    return {
        series: values
        for le, count in buckets.items()
        for series, values in of(f"{metric}_bucket", f"0+{count}x30", f'le="{le}"').items()
    }


CASES: Final = [
    Case("AghbusDown", 3, of("up", "0x10"), of("up", "0 1 0 1")),
    Case("AghbusNotReady", 3, of("aghbus_ready", "1 0x10"), of("aghbus_ready", "1 0 1 1")),
    Case("AghbusStoreNotWritable", 3, of("aghbus_store_writable", "1 0x10"), of("aghbus_store_writable", "1x10")),
    Case(
        "AghbusIdentityConflict",
        6,
        of("aghbus_identity_conflicts_total", "0 0 0 0 0 1 1"),
        of("aghbus_identity_conflicts_total", "7x10"),
    ),
    Case(
        "AghbusReconnects",
        14,
        of("aghbus_nats_reconnects_total", "0 1 2 3 4x20"),
        of("aghbus_nats_reconnects_total", "2 3x20"),
    ),
    Case(
        "AghbusRejecting",
        20,
        of("aghbus_rejections_total", "0+1x30", 'reason="inbox", lane="plain"'),
        of("aghbus_rejections_total", "0+1x5 5x30", 'reason="inbox", lane="plain"'),
    ),
    Case(
        "AghbusAdmissionRequests",
        70,
        of("aghbus_admission_requests", "1x80"),
        of("aghbus_admission_requests", "0x30 1x50"),
    ),
    Case(
        "AghbusRefusing",
        25,
        of("aghbus_refusals_total", "0+90x30", 'rule="malformed"'),
        of("aghbus_refusals_total", "0+30x30", 'rule="malformed"'),
    ),
    Case(
        "AghbusQuarantineGrows",
        60,
        of("aghbus_quarantine_messages", "0+2x60"),
        of("aghbus_quarantine_messages", "900x60"),
    ),
    Case(
        "AghbusDeadLetters",
        8,
        of("aghbus_inbox_messages", "0 1x10", 'state="dead"'),
        of("aghbus_inbox_messages", "5x10", 'state="ready"'),
    ),
    Case("AghbusProblems", 20, of("aghbus_problems", "1x30"), of("aghbus_problems", "1x10 0x20")),
    Case(
        "AghbusInboxNearlyFull",
        15,
        {
            **of("aghbus_inbox_messages", "50x30", 'state="ready"'),
            **of("aghbus_inbox_messages", "25x30", 'state="leased"'),
            **of("aghbus_inbox_capacity_messages", "100x30"),
        },
        {
            **of("aghbus_inbox_messages", "50x30", 'state="ready"'),
            **of("aghbus_inbox_messages", "99x30", 'state="dead"'),
            **of("aghbus_inbox_capacity_messages", "100x30"),
        },
    ),
    Case(
        "AghbusOutboxGrows",
        15,
        {**of("aghbus_outbox_messages", "1001x30", 'state="queued"'), **of("aghbus_ready", "1x30")},
        {**of("aghbus_outbox_messages", "1001x30", 'state="queued"'), **of("aghbus_ready", "0x30")},
    ),
    Case(
        "AghbusUndelivered",
        16,
        of("aghbus_undelivered_total", "0x10 1x10", 'kind="say", reason="refused"'),
        of("aghbus_undelivered_total", "0x5 0+1x11", 'kind="say", reason="expired"'),  # one absent peer
    ),
    Case(
        "AghbusUndelivered",
        16,
        of("aghbus_undelivered_total", "0+2x20", 'kind="say", reason="expired"'),
        of("aghbus_undelivered_total", "40x20", 'kind="say", reason="dead"'),
    ),
    Case("AghbusSlowDelivery", 25, slow("aghbus_delivery_seconds", 50), slow("aghbus_delivery_seconds", 99)),
    Case("AghbusSlowCommits", 25, slow("aghbus_commit_seconds", 90), slow("aghbus_commit_seconds", 99)),
    Case(
        "AghbusEventLoopLag", 25, slow("aghbus_event_loop_lag_seconds", 90), slow("aghbus_event_loop_lag_seconds", 99)
    ),
    Case(
        "AghbusRetentionFails",
        15,
        of("aghbus_store_kept_bytes", "9000x30"),
        of("aghbus_store_kept_bytes", "9000x9 0x20"),
    ),
    Case(
        "AghbusDedupWindowFull",
        15,
        {**of("aghbus_dedup_ids", "41x30"), **of("aghbus_dedup_capacity_ids", "100x30")},
        {**of("aghbus_dedup_ids", "40x30"), **of("aghbus_dedup_capacity_ids", "100x30")},
    ),
    Case("NatsDown", 3, {f"up{{{NATS}}}": "0x10"}, {f"up{{{NATS}}}": "1x10"}),
    Case(
        "NatsDown",
        3,
        {f"up{{{NATS}}}": "1x10", **of("gnatsd_healthz_status_value", "0x10", 'value="unreachable"')},
        {f"up{{{NATS}}}": "1x10", **of("gnatsd_healthz_status_value", "0x10", 'value="unavailable"')},
    ),
    Case("NatsUnhealthy", 4, of("gnatsd_healthz_status", "1x10"), of("gnatsd_healthz_status", "0x10")),
    Case(
        "NatsJetStreamWithoutLeader",
        3,
        of("jetstream_server_jetstream_disabled", "0x10", 'cluster="agh", meta_leader=""'),
        {
            **of("jetstream_server_jetstream_disabled", "0x10", 'cluster="agh", meta_leader="nats-1"'),
            **of("jetstream_server_jetstream_disabled", "0x10", 'cluster="", meta_leader=""'),  # one server alone
        },
    ),
    Case(
        "NatsSlowConsumers", 16, of("gnatsd_varz_slow_consumers", "3x10 4x10"), of("gnatsd_varz_slow_consumers", "3x20")
    ),
    Case(
        "NatsStorageNearlyFull",
        15,
        {
            **of("gnatsd_varz_jetstream_stats_storage", "81x30"),
            **of("gnatsd_varz_jetstream_config_max_storage", "100x30"),
        },
        {
            **of("gnatsd_varz_jetstream_stats_storage", "81x30"),
            **of("gnatsd_varz_jetstream_config_max_storage", "0x30"),
        },
    ),
]


def group(case: Case, series: dict[str, str], fires: int) -> dict[str, Any]:
    """A test group of promtool that counts the firing alerts."""
    query = f'count(ALERTS{{alertname="{case.alert}", alertstate="firing"}}) or vector(0)'
    return {
        "interval": "1m",
        "input_series": [{"series": name, "values": values} for name, values in series.items()],
        "promql_expr_test": [
            {"expr": query, "eval_time": f"{case.minutes}m", "exp_samples": [{"labels": "{}", "value": fires}]}
        ],
    }


@pytest.mark.parametrize("case", CASES, ids=[case.alert for case in CASES])
def test_a_rule_fires_for_what_it_is_about_and_not_below(case: Case, tmp_path: Path) -> None:
    promtool = require_tool("promtool")
    document = {
        "rule_files": [str(DEPLOY / name) for name in ("alerts.yml", "nats.yml")],
        "evaluation_interval": "1m",
        "tests": [group(case, case.fires, 1), group(case, case.rests, 0)],
    }
    (tmp_path / "test.yml").write_text(yaml.safe_dump(document))
    command = [promtool, "test", "rules", str(tmp_path / "test.yml")]
    done = subprocess.run(command, capture_output=True, text=True, timeout=60, check=False)
    assert done.returncode == 0, done.stdout + done.stderr


def test_every_rule_has_a_case() -> None:
    rules = "".join((DEPLOY / name).read_text() for name in ("alerts.yml", "nats.yml"))
    assert {case.alert for case in CASES} == set(re.findall(r"- alert: (\w+)", rules))
