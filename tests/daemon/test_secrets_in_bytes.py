"""The secret guard checks the bytes from the body on, and finds everything in body and ext."""

import sqlite3
from typing import Any

import pytest

from aghbus.daemon.config.settings import SecretsSettings, Settings
from aghbus.daemon.send import secret_guard
from aghbus.daemon.send.secret_guard import SecretGuard
from aghbus.daemon.state.presence import PresenceTable
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.send import Draft, build
from aghbus.protocol.base.errors import InvalidRequest
from aghbus.store.engine.commit.state import InMemoryState
from aghbus.store.engine.commit.transaction import Transaction
from tests.support.wiring import daemon_context

NOW = 1_800_000_000
TOKEN = "ghp_" + "a1" * 18


def own(**parts: Any) -> Envelope:
    draft: dict[str, Any] = {
        "id": "msg_1",
        "body": {"text": "hello"},
        "kind": "say",
        "to": "coder",
        "surface": "thread",
    }
    place = {"workspace_id": "ops", "channel": "builders", "sender": "ops", "container": "thread_gh_key", "ts": NOW}
    return build(Draft(**{**draft, **place, **parts}), NOW)


def check(envelope: Envelope) -> None:
    settings = Settings(name="ops", peer_id="ops", secrets=SecretsSettings(guard="refuse"))
    guard = SecretGuard(daemon_context(settings), PresenceTable(30.0, {}, set().__contains__))
    guard.check(Transaction(sqlite3.connect(":memory:"), InMemoryState()), envelope, allowed=False)


@pytest.mark.parametrize(
    "parts",
    [
        {"body": {"text": TOKEN}},
        {"body": {"text": "hello", "result": {"body": {"api_key": "x"}}}},
        {"body": {"text": f'{TOKEN} "body": {{"body":1}}', "body": {}}},
        {"id": 'msg"body":', "body": {"text": TOKEN}},
        {"ext": {"other.tool": {"body": 1, "password": "x"}}},
    ],
)
def test_credentials_in_body_and_ext_are_found(parts: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="looks like a credential"):
        check(own(**parts))


def test_names_before_the_body_cause_no_full_check(monkeypatch: pytest.MonkeyPatch) -> None:
    def full_check(_document: dict[str, Any]) -> None:
        raise AssertionError("full check")

    monkeypatch.setattr(secret_guard, "first_secret", full_check)
    check(own())
