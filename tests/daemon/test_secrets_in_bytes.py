"""The guard of secrets looks at the bytes from the body on: nothing of body or ext escapes it, whatever stands around them."""

from types import SimpleNamespace
from typing import Any

import pytest

from aghbus.daemon.send import secret_guard as secrets_guard
from aghbus.protocol.envelope import Envelope
from aghbus.protocol.errors import InvalidRequest
from aghbus.protocol.send import Draft, build

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
    core: Any = SimpleNamespace(
        settings=SimpleNamespace(secrets=SimpleNamespace(guard="refuse")),
        counters=SimpleNamespace(add=lambda _name: None),
    )
    secrets_guard.check(core, envelope, allowed=False)


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
def test_what_is_in_body_or_ext_is_found(parts: dict[str, Any]) -> None:
    with pytest.raises(InvalidRequest, match="looks like a credential"):
        check(own(**parts))


def test_names_before_the_body_are_no_reason_to_look_closer(monkeypatch: pytest.MonkeyPatch) -> None:
    def looked(_document: dict[str, Any]) -> None:
        raise AssertionError("looked closer")

    monkeypatch.setattr(secrets_guard, "first_secret", looked)
    check(own())
