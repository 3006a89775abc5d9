"""The card of a joined agent: pinned at first use, signed, changed; and where credentials may go."""

import json
from pathlib import Path
from typing import Any

import httpx
import jwt
import pytest
from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PrivateKey

from aghbus.client.errors import UsageError
from aghbus.gateways.a2a.join.agent import Access, Agent
from aghbus.gateways.a2a.join.card import CardKeys, CardRefused, Pins, card_url, checked, fetch_card
from tests.support.joining import Join, agent
from tests.support.serving import Bus

URL = "https://agent.example.com/.well-known/agent-card.json"
CARD: dict[str, Any] = {
    "name": "Reviewer",
    "description": "",
    "supportedInterfaces": [
        {"url": "https://agent.example.com/rpc", "protocolBinding": "JSONRPC", "protocolVersion": "1.0"}
    ],
    "skills": [],
}


class Site:
    """A site with a card, and the keys that it publishes."""

    def __init__(self) -> None:
        self.key = Ed25519PrivateKey.generate()
        self.card, self.published = dict(CARD), self.key
        self.http = httpx.AsyncClient(transport=httpx.MockTransport(self._answer))

    def _answer(self, request: httpx.Request) -> httpx.Response:
        if request.url.path == "/keys":
            return httpx.Response(200, json={"keys": [jwk_of(self.published)]})
        return httpx.Response(200, json=self.card)

    def sign(self, key: Ed25519PrivateKey, jku: str = "https://agent.example.com/keys", **more: Any) -> None:
        """Sign the card as the specification says: without the empty members."""
        self.card = {**CARD, **more}
        payload = json.dumps(
            {name: value for name, value in self.card.items() if value}, sort_keys=True, separators=(",", ":")
        )
        token = jwt.PyJWS().encode(
            payload.encode(), key, algorithm="EdDSA", headers={"kid": "k1", "jku": jku, "typ": "JOSE"}
        )
        protected, _, signature = token.split(".")
        self.card["signatures"] = [{"protected": protected, "signature": signature}]

    async def check(self, pins: Pins, *, given: str | None = None, accept: bool = False) -> str:
        access = Access()
        card = await fetch_card(self.http, URL, access)
        return await checked(card, pins, CardKeys(given, access, self.http), accept=accept, hint="accept it")


def jwk_of(key: Ed25519PrivateKey) -> dict[str, Any]:
    found: dict[str, Any] = jwt.algorithms.OKPAlgorithm.to_jwk(key.public_key(), as_dict=True)
    return {**found, "kid": "k1"}


@pytest.fixture
def pins(tmp_path: Path) -> Pins:
    return Pins(str(tmp_path))


async def test_an_unsigned_card_is_pinned_and_a_change_is_for_the_operator(pins: Pins) -> None:
    site = Site()
    assert await site.check(pins) == "first"
    assert await site.check(pins) == "same"
    site.card = {**CARD, "name": "Another"}
    for _ in range(2):
        with pytest.raises(CardRefused, match="is another one than the accepted one"):
            await site.check(pins)
    assert await site.check(pins, accept=True) == "accepted"
    assert await site.check(pins) == "same"


async def test_the_order_of_members_is_no_change(pins: Pins) -> None:
    site = Site()
    await site.check(pins)
    site.card = dict(reversed(CARD.items()))
    assert await site.check(pins) == "same"


async def test_a_change_that_the_pinned_key_signed_is_taken(pins: Pins) -> None:
    site = Site()
    site.sign(site.key)
    assert await site.check(pins) == "first"
    site.sign(site.key, version="2")
    assert await site.check(pins) == "signed"
    assert await site.check(pins) == "same"


async def test_another_key_and_a_lost_signature_are_refused(pins: Pins) -> None:
    site = Site()
    site.sign(site.key)
    await site.check(pins)
    site.published = Ed25519PrivateKey.generate()
    site.sign(site.published, version="2")
    with pytest.raises(CardRefused, match="its signature is wrong"):
        await site.check(pins)
    site.card = dict(CARD)
    with pytest.raises(CardRefused, match="lost its signature"):
        await site.check(pins)


async def test_a_wrong_signature_is_refused_at_first_use(pins: Pins) -> None:
    site = Site()
    site.sign(site.key)
    site.card["name"] = "Somebody else"
    with pytest.raises(CardRefused, match="its signature is wrong"):
        await site.check(pins)


async def test_a_required_key(pins: Pins, tmp_path: Path) -> None:
    site = Site()
    path = tmp_path / "key.json"
    path.write_text(json.dumps(jwk_of(site.key)))
    with pytest.raises(CardRefused, match="it is not signed"):
        await site.check(pins, given=str(path))
    site.sign(Ed25519PrivateKey.generate())
    with pytest.raises(CardRefused, match="its signature is wrong"):
        await site.check(pins, given=str(path))
    site.sign(site.key, jku="https://elsewhere.example.com/keys")
    assert await site.check(pins, given=str(path)) == "first"


async def test_keys_at_another_host_are_not_fetched(pins: Pins) -> None:
    site = Site()
    site.sign(site.key, jku="https://elsewhere.example.com/keys")
    assert await site.check(pins) == "first"  # as an unsigned one
    site.sign(site.key, jku="https://elsewhere.example.com/keys", version="2")
    with pytest.raises(CardRefused, match="another one"):
        await site.check(pins)


@pytest.mark.parametrize(
    ("url", "access", "refused"),
    [
        ("http://agent.example.com/rpc", Access(), "is not encrypted"),
        ("http://agent.example.com/rpc", Access(allow_http=True), ""),
        ("https://elsewhere.example.com/rpc", Access(), "another host than the card"),
        ("https://elsewhere.example.com/rpc", Access(hosts=("elsewhere.example.com",)), ""),
    ],
)
async def test_where_works_and_credentials_may_go(url: str, access: Access, refused: str) -> None:
    card = {**CARD, "supportedInterfaces": [{**CARD["supportedInterfaces"][0], "url": url}]}
    async with httpx.AsyncClient() as http:
        if refused:
            with pytest.raises(UsageError, match=refused):
                Agent(card, access, http, URL, None)
        else:
            assert Agent(card, access, http, URL, None).url == url


def test_the_address_of_the_card() -> None:
    assert card_url("https://a.example.com/") == "https://a.example.com/.well-known/agent-card.json"
    assert card_url("https://a.example.com/a2a/bob/card.json") == "https://a.example.com/a2a/bob/card.json"


def test_a_changed_card_ends_a_start_until_it_is_accepted(bus: Bus, tmp_path: Path) -> None:
    with agent(tmp_path / "agent", "http") as other:
        with Join(bus, other.url):
            pass
        other.kill()
        (other.folder / "changed").touch()
        other.start()
        done = bus.home.ctl("--name", "worker", "a2a", "join", other.url, "-o", "json")
        assert done.returncode == 2
        error = json.loads(done.stderr)
        assert error["code"] == "card_refused"
        assert error["hint"].endswith(f"a2a join {other.url} --accept-card")
        with Join(bus, other.url, "--accept-card") as join:
            assert join.until("card")["accepted"] == "accepted"
            assert bus.end_of(bus.open("done it"))["message"] == "it is good"
