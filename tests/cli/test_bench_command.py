"""`aghctl bench` on its own broker and on a given one: its answer has the documented form, and it cleans up."""

import json
from pathlib import Path

from aghbus.cli.sandbox.bench import summary
from tests.support.daemons import Home
from tests.support.natsutil import NatsServer


def test_percentiles_are_samples() -> None:
    assert summary([0.004, 0.001, 0.003, 0.002]) == {"count": 4, "p50_ms": 2.0, "p99_ms": 4.0}
    assert summary([0.001]) == {"count": 1, "p50_ms": 1.0, "p99_ms": 1.0}


async def test_the_bench_measures_on_a_given_broker(tmp_path: Path) -> None:
    async with NatsServer() as server:
        done = Home(tmp_path).ctl(
            "bench", "--nats", server.url, "--calls", "3", "--messages", "20", "-o", "json", timeout=100
        )
        assert done.returncode == 0, done.stderr
        found = json.loads(done.stdout)
        assert found["broker"]["url"].endswith(str(server.port)) and not found["broker"]["embedded"]
        assert (
            found["messages"]["count"] == 32
        )  # of sixteen senders each sends the same number, at least twenty together
        for part in ("whois", "works"):
            assert found[part]["count"] == 3
            assert 0 < found[part]["p50_ms"] <= found[part]["p99_ms"]
        assert found["works"]["per_second"] > 0 and found["messages"]["per_second"] > 0


def test_unreachable_broker_has_its_own_error_code(tmp_path: Path) -> None:
    done = Home(tmp_path).ctl("bench", "--nats", "nats://127.0.0.1:1", "-o", "json")
    assert done.returncode == 1, done.stderr
    error = json.loads(done.stderr)
    assert error["code"] == "broker_unreachable"
    assert "127.0.0.1:1: " in error["message"] and "--nats" in error["hint"]


def test_an_invalid_count_is_refused(tmp_path: Path) -> None:
    done = Home(tmp_path).ctl("bench", "--calls", "0")
    assert done.returncode == 2
    assert b"whole number" in done.stderr
