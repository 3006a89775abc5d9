"""What our own agent sends is looked at once more: obvious credentials do not leave, unless somebody says so."""

import json
import sqlite3
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import pytest

from tests.support.daemons import Daemon, Home, HttpError, ops_and_worker, wait_for

SECRET = "hunter2-0123456789"
BEARER = "curl -H 'Authorization: Bearer 0123456789abcdef0123'"


@pytest.fixture(scope="module")
def pair(tmp_path_factory: pytest.TempPathFactory) -> Iterator[tuple[Home, Daemon, Daemon]]:
    home = Home(tmp_path_factory.mktemp("secrets"))
    with ops_and_worker(home) as (ops, worker):
        yield home, ops, worker


def refused(daemon: Daemon, path: str, **ask: Any) -> dict[str, Any]:
    with pytest.raises(HttpError) as caught:
        daemon.post(path, **ask)
    assert caught.value.status == 400
    assert caught.value.answer["code"] == "secret_like"
    return caught.value.answer


def stored(daemon: Daemon) -> bytes:
    """Every envelope in the store, as bytes."""
    with sqlite3.connect(f"file:{daemon.store_path}?mode=ro", uri=True) as db:
        found = b"\n".join(row[0] for row in db.execute("SELECT raw FROM envelopes"))
    db.close()
    return found


def test_every_way_of_sending_is_guarded_and_nothing_of_it_stays(pair: tuple[Home, Daemon, Daemon]) -> None:
    _, ops, worker = pair
    say = {"kind": "say", "to": "worker", "body": {"text": "log in", "artifacts": [{"uri": "x", "dbPassword": SECRET}]}}
    answer = refused(ops, "/v1/messages", **say)
    assert answer["message"].startswith("body.artifacts[0].dbPassword: ")
    assert "allow_secrets" in answer["hint"]
    answers = [answer]
    answers.append(refused(ops, "/v1/messages", **{**say, "body": {"text": BEARER}}))
    answers.append(refused(ops, "/v1/messages", **{**say, "body": {"text": "x"}, "ext": {"a": {"api_key": SECRET}}}))
    assert answers[-1]["message"].startswith("ext.a.api_key: ")
    answers.append(refused(ops, "/v1/works", to="worker", text=BEARER))
    work_id = ops.post("/v1/works", to="worker", text="find the password")["work_id"]
    wait_for(lambda: worker.get("/v1/works?state=submitted")["works"], 30, "the work to arrive")
    answers.append(refused(worker, f"/v1/works/{work_id}/complete", result={"token": SECRET}))
    answers.append(refused(worker, f"/v1/works/{work_id}/update", message=BEARER))
    for answer in answers:
        assert SECRET not in json.dumps(answer)
        assert "0123456789abcdef" not in json.dumps(answer)
    assert worker.state_of(work_id) == "submitted"
    for daemon in (ops, worker):
        assert SECRET.encode() not in stored(daemon)
        assert SECRET not in daemon.log.read_text()
    assert ops.get("/v1/status")["counters"]["secrets.refused"] == 4


def test_one_request_may_say_that_it_is_none(pair: tuple[Home, Daemon, Daemon]) -> None:
    home, ops, worker = pair
    sent = ops.post("/v1/messages", kind="say", to="worker", body={"text": BEARER}, allow_secrets=True)
    work_id = ops.post("/v1/works", to="worker", text=BEARER, allow_secrets=True)["work_id"]
    wait_for(lambda: f'"{work_id}"'.encode() in stored(worker), 30, "the work to arrive")
    worker.post(f"/v1/works/{work_id}/complete", result={"token": "t"}, allow_secrets=True)
    assert sent["id"].encode() in stored(worker)
    denied = home.ctl("--name", "ops", "say", BEARER, "--to", "worker")
    assert denied.returncode != 0
    assert b"body.text" in denied.stderr
    assert b"--allow-secrets" in denied.stderr
    assert b"0123456789abcdef" not in denied.stderr + denied.stdout
    assert home.ctl("--name", "ops", "say", BEARER, "--to", "worker", "--allow-secrets").returncode == 0


def test_the_setting_is_reloaded_and_warns_without_the_value(tmp_path: Path) -> None:
    home = Home(tmp_path)
    config = tmp_path / "aghbus.toml"
    config.write_text('[secrets]\nguard = "warn"\n')
    say = {"kind": "say", "to": "worker", "body": {"text": "t", "artifacts": [{"password": SECRET}]}}
    with Daemon(home, "ops", "--config", str(config)) as ops:
        ops.post("/v1/messages", **say)
        assert ops.get("/v1/status")["counters"]["secrets.warned"] == 1
        assert "body.artifacts[0].password" in ops.log.read_text()
        assert SECRET not in ops.log.read_text()
        assert ops.process is not None
        config.write_text('[secrets]\nguard = "off"\n')
        ops.process.send_signal(1)  # SIGHUP

        def unguarded() -> bool:
            before = ops.get("/v1/status")["counters"]["secrets.warned"]
            ops.post("/v1/messages", **say)
            return bool(ops.get("/v1/status")["counters"]["secrets.warned"] == before)

        wait_for(unguarded, 30, "the setting to be taken over")
