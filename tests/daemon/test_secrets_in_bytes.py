"""The secret guard checks the bytes from the body on, and finds everything in body and ext."""

import sqlite3
from typing import Any

import msgspec
import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.daemon.config.settings import SecretsSettings, Settings
from aghbus.daemon.send import secret_guard
from aghbus.daemon.send.secret_guard import SecretGuard
from aghbus.daemon.state.presence import PresenceTable
from aghbus.protocol.agh.bodies import PeerCard
from aghbus.protocol.agh.envelope import Envelope
from aghbus.protocol.agh.send import Draft, build
from aghbus.protocol.base.errors import InvalidRequest
from aghbus.store.engine.commit.state import InMemoryState
from aghbus.store.engine.commit.transaction import Transaction
from tests.support.reference_rule import takes, values
from tests.support.wiring import daemon_context

NOW = 1_800_000_000
TOKEN = "ghp_" + "a1" * 18


def drafted(**parts: Any) -> Draft:
    draft: dict[str, Any] = {
        "id": "msg_1",
        "body": {"text": "hello"},
        "kind": "say",
        "to": "coder",
        "surface": "thread",
    }
    place = {"workspace_id": "ops", "channel": "builders", "sender": "ops", "container": "thread_gh_key", "ts": NOW}
    return Draft(**{**draft, **place, **parts})


def own(**parts: Any) -> Envelope:
    return build(drafted(**parts), NOW)


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


CARD = PeerCard(peer_id="coder", profiles_supported=("agh-network/v0",), artifacts_supported=("capability",))


def guard_with(card: PeerCard | None, *, ours: bool = False) -> SecretGuard:
    """A guard of a daemon whose peer `coder` has greeted with this card, if any."""
    presence = PresenceTable(30.0, {}, set().__contains__)
    if card is not None:
        presence.note_acknowledging("coder", ours)
        presence.observe("ops", "builders", card, "unverified", NOW * 1000)
    settings = Settings(name="ops", peer_id="ops", secrets=SecretsSettings(guard="refuse"))
    return SecretGuard(daemon_context(settings), presence)


@given(body=values(), ext=st.dictionaries(st.text(max_size=3), values(), max_size=2))
def test_a_reference_takes_whatever_it_gets(body: Any, ext: dict[str, Any]) -> None:
    guard = guard_with(CARD)
    tx = Transaction(sqlite3.connect(":memory:"), InMemoryState())
    draft = guard.replaced(tx, drafted(body={"text": "hello", "artifacts": [{"a": body}]}, ext=ext))
    sent = build(draft, NOW)
    guard.check(tx, sent, allowed=False)
    assert takes(sent.document()["body"], sent.document().get("ext"))


BRIEFED = {"capabilities": ("a",), "ext": {"agh.capabilities_brief": [{"id": "a", "summary": "A"}]}}


@pytest.mark.parametrize("change", [{}, BRIEFED])
def test_a_reference_is_known_by_its_card(change: dict[str, Any]) -> None:
    guard = guard_with(msgspec.structs.replace(CARD, **change))
    tx = Transaction(sqlite3.connect(":memory:"), InMemoryState())
    with pytest.raises(InvalidRequest, match="pattern assignment"):
        guard.check(tx, own(body={"text": "unexpected token: }"}), allowed=False)


OTHERS: dict[str, dict[str, Any] | None] = {
    "never greeted": None,
    "trust modes": {"trust_modes_supported": ("unverified",)},
    "no brief": {"capabilities": ("a",)},
    "no brief list": {"ext": {"agh.capabilities_brief": "a"}},
    "no artifacts": {"artifacts_supported": ()},
    "no profiles": {"profiles_supported": ()},
}


@pytest.mark.parametrize("name", [*OTHERS, "ours"])
def test_other_peers_get_text_as_it_is(name: str) -> None:
    change = OTHERS.get(name, {})
    guard = guard_with(None if change is None else msgspec.structs.replace(CARD, **change), ours=name == "ours")
    tx = Transaction(sqlite3.connect(":memory:"), InMemoryState())
    draft = drafted(body={"text": "unexpected token: }"}, ext={"acme.note": {"oauth_code": 1}})
    assert guard.replaced(tx, draft) is draft
    guard.check(tx, build(draft, NOW), allowed=False)
