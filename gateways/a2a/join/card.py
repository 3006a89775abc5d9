"""The card of an A2A agent: fetched, its signature checked, and pinned at first use as `known_hosts` does with keys.

The pin is a file in the state folder: the hash of the card (SHA-256 over its canonical JSON without signatures), and the public
key of its signature. A card that changes is taken when the pinned key, or one of the operator's, signs it. Any other change is
for the operator to accept.
"""

from __future__ import annotations

import hashlib
import json
import os
import time
from pathlib import Path
from typing import Any, Final, NamedTuple
from urllib.parse import urlsplit

import httpx
import jwt
import msgspec
from cryptography.hazmat.primitives import serialization
from cryptography.hazmat.primitives.asymmetric import ec, ed25519

from aghbus.client.errors import UsageError
from aghbus.gateways.a2a.join.agent import CALL_SECONDS, Access, Away, tls_fault
from aghbus.protocol.agh.trust.canonical_json import Unfaithful, canonical_bytes, read_strict
from aghbus.protocol.agh.trust.keys import encode_base64url
from aghbus.protocol.formats.a2a.parts import Json

WELL_KNOWN: Final = "/.well-known/agent-card.json"
MAX_BYTES: Final = 1 << 20
ALGORITHMS: Final = ("EdDSA", "ES256", "ES384", "ES512", "RS256", "RS384", "RS512", "PS256", "PS384", "PS512")


class CardRefused(UsageError):
    """The card is not the one that was accepted, or its signature is wrong: the operator decides."""

    default_code = "card_refused"


class Card(NamedTuple):
    """A card as fetched, and its hash."""

    url: str
    content: Json
    sha256: str

    @property
    def name(self) -> str:
        """The name of the agent, as it says."""
        return str(self.content.get("name") or "")


class Pin(msgspec.Struct, frozen=True):
    """What was accepted: the hash of the card, and the key (as JWK) that signed it, if it was signed by a key that we have."""

    url: str
    sha256: str
    accepted_ms: int
    key: dict[str, Any] | None = None


def card_url(url: str) -> str:
    """Where the card of an agent is: below its base URL, or the URL itself if that is one of a JSON file."""
    return url if urlsplit(url).path.endswith(".json") else url.rstrip("/") + WELL_KNOWN


async def fetch_card(http: httpx.AsyncClient, url: str, access: Access) -> Card:
    """The card at `url`. Raises Away, CardRefused for what is no card, and UsageError for credentials that are not accepted."""
    content = await _fetch(http, url, access.headers())
    try:
        received = read_strict(content)
        signed = {name: value for name, value in received.value.items() if name != "signatures"}
        digest = hashlib.sha256(_canonical(signed)).hexdigest()
    except Unfaithful as error:
        raise CardRefused(f"the card at {url} is not a JSON object with one meaning: {error}") from None
    if not received.value.get("supportedInterfaces") and not received.value.get("url"):
        raise CardRefused(f"the card at {url} names no interface", "is this the address of an A2A agent?")
    return Card(url, received.value, digest)


async def _fetch(http: httpx.AsyncClient, url: str, headers: dict[str, str]) -> bytes:
    content = b""
    try:
        async with http.stream("GET", url, headers=headers, timeout=CALL_SECONDS) as response:
            status = response.status_code
            if status in (401, 403):
                raise UsageError(
                    f"HTTP {status} for {url}: our credentials are missing or wrong", "--bearer-file gives a token"
                )
            if 400 <= status < 500 and status not in (408, 429):
                raise UsageError(f"HTTP {status} for {url}", "is this the address of an A2A agent?")
            if status != httpx.codes.OK:
                raise Away(f"HTTP {status} for {url}")
            async for piece in response.aiter_bytes():
                content += piece
                if len(content) > MAX_BYTES:
                    raise CardRefused(f"the document at {url} is larger than {MAX_BYTES} bytes")
    except (httpx.HTTPError, httpx.InvalidURL) as error:
        if (fault := tls_fault(error)) is not None:
            raise UsageError(f"{url}: {fault[0]}", fault[1]) from None
        if isinstance(error, httpx.RemoteProtocolError | httpx.ReadError) and url.startswith("https:"):
            hint = "it may want a client certificate, or another one (--client-cert)"
            raise Away(f"{url}: the agent ended the connection without an answer; {hint}") from None
        raise Away(str(error) or type(error).__name__) from None
    return content


class CardKeys:
    """The keys that may sign the card: those of `--card-key` (a file or an https URL), else those that the card itself names, if
    they come from its own host, at first use; later the pinned one."""

    def __init__(self, given: str | None, access: Access, http: httpx.AsyncClient) -> None:
        self._given = given
        self._access = access
        self._http = http

    @property
    def required(self) -> bool:
        """Whether a card without a valid signature is refused."""
        return self._given is not None

    async def signer(self, card: Card, pinned: dict[str, Any] | None) -> dict[str, Any] | None:
        """The key that signed the card, as JWK; None when none of its signatures can be checked. Raises CardRefused for a card
        whose signatures are all wrong or, where one is required, missing; Away."""
        signatures = [one for one in card.content.get("signatures") or () if isinstance(one, dict)]
        keys = await self._of_operator() if self._given is not None else [pinned] if pinned is not None else None
        checked = False
        for signature in signatures:
            header = _header(signature)
            candidates = keys if keys is not None else await self._of_card(card, header)
            for key in candidates:
                if _fits(key, header):
                    checked = True
                    if _verifies(card, signature, header, key):
                        return key
        if checked or self.required:
            why = (
                "its signature is wrong"
                if checked
                else "no known key has signed it"
                if signatures
                else "it is not signed"
            )
            raise CardRefused(f"the card at {card.url}: {why}", "ask the operator of the agent for its key")
        return None

    async def _of_operator(self) -> list[dict[str, Any]]:
        given = self._given or ""
        if given.startswith(("https://", "http://")):
            self._access.check(given, "--card-key")
            content = await _fetch(self._http, given, {})
        else:
            content = _file(given)
        if not (keys := _keys_in(content)):
            raise UsageError(f"--card-key: {given} has no public key", "it must be PEM, a JWK, or a JWK set")
        return keys

    async def _of_card(self, card: Card, header: Json) -> list[dict[str, Any]]:
        """The keys at the address that the signature names, if it is at the host of the card."""
        url = str(header.get("jku") or "")
        if not url or urlsplit(url)[:2] != urlsplit(card.url)[:2]:
            return []
        return _keys_in(await _fetch(self._http, url, {}))


def _file(path: str) -> bytes:
    try:
        return Path(path).read_bytes()
    except OSError as error:
        raise UsageError(f"--card-key: {path} cannot be read: {error.strerror}") from None


def _keys_in(content: bytes) -> list[dict[str, Any]]:
    """The public keys in a PEM file, a JWK or a set of them."""
    if b"-----BEGIN" in content:
        try:
            key = serialization.load_pem_public_key(content)
        except ValueError:
            return []
        algorithm: Any = jwt.algorithms.RSAAlgorithm
        if isinstance(key, ed25519.Ed25519PublicKey):
            algorithm = jwt.algorithms.OKPAlgorithm
        elif isinstance(key, ec.EllipticCurvePublicKey):
            algorithm = jwt.algorithms.ECAlgorithm
        return [algorithm.to_jwk(key, as_dict=True)]
    try:
        found = json.loads(content)
    except ValueError:
        return []
    entries = found.get("keys", [found]) if isinstance(found, dict) else []
    secret = ("d", "k")
    return [
        one for one in entries if isinstance(one, dict) and "kty" in one and not any(name in one for name in secret)
    ]


def _header(signature: Json) -> Json:
    try:
        found = json.loads(jwt.utils.base64url_decode(str(signature.get("protected") or "")))
    except ValueError:
        return {}
    return found if isinstance(found, dict) else {}


def _fits(key: dict[str, Any], header: Json) -> bool:
    return key.get("kid") is None or header.get("kid") is None or key["kid"] == header["kid"]


def _verifies(card: Card, signature: Json, header: Json, key: dict[str, Any]) -> bool:
    """Whether the key made the signature over the card, with or without its empty members: the specification leaves them out."""
    signed = {name: value for name, value in card.content.items() if name != "signatures"}
    algorithm = header.get("alg")
    if algorithm not in ALGORITHMS:
        return False
    for form in (signed, _without_empty(signed) or {}):
        payload = encode_base64url(_canonical(form))
        token = f"{signature.get('protected')}.{payload}.{signature.get('signature')}"
        try:
            jwt.PyJWS().decode(token, jwt.PyJWK(key, algorithm=algorithm), algorithms=[algorithm])
        except (jwt.exceptions.PyJWTError, ValueError, TypeError):
            continue
        return True
    return False


def _without_empty(value: Any) -> Any:
    if isinstance(value, dict):
        return {name: kept for name, one in value.items() if (kept := _without_empty(one)) is not None} or None
    if isinstance(value, list):
        return [kept for one in value if (kept := _without_empty(one)) is not None] or None
    return None if value == "" else value


def _canonical(value: Json) -> bytes:
    return canonical_bytes(read_strict(json.dumps(value).encode()))


class Pins:
    """The accepted cards of one daemon, by URL, in files of `folder`."""

    def __init__(self, folder: str) -> None:
        self._folder = Path(folder)

    def get(self, url: str) -> Pin | None:
        """What was accepted. Raises UsageError for a file that cannot be read: it is not taken for a first use."""
        try:
            return msgspec.json.decode(self._path(url).read_bytes(), type=Pin)
        except FileNotFoundError:
            return None
        except (OSError, msgspec.MsgspecError) as error:
            raise UsageError(f"the accepted card in {self._path(url)} cannot be read: {error}") from None

    def put(self, card: Card, key: dict[str, Any] | None) -> None:
        """Accept a card from now on. Raises UsageError."""
        pin, path = Pin(card.url, card.sha256, time.time_ns() // 1_000_000, key), self._path(card.url)
        temporary = path.with_suffix(".new")
        try:
            with temporary.open("wb") as stream:
                stream.write(msgspec.json.encode(pin))
                stream.flush()
                os.fsync(stream.fileno())
            temporary.replace(path)
        except OSError as error:
            raise UsageError(f"the accepted card cannot be stored: {path}: {error.strerror}") from None

    def _path(self, url: str) -> Path:
        return self._folder / f"card-{hashlib.sha256(url.encode()).hexdigest()[:16]}.json"


async def checked(card: Card, pins: Pins, keys: CardKeys, *, accept: bool, hint: str) -> str:
    """Check a card against what was accepted, and accept it if that may be: `first`, `same`, `signed` (changed, and signed by the
    accepted key) or `accepted` (by the operator now). Raises CardRefused with `hint`, Away, UsageError."""
    pin = pins.get(card.url)
    known = None if pin is None or accept else pin.key
    key = await keys.signer(card, known)
    if pin is not None and pin.sha256 == card.sha256 and not (known and key is None):
        return "same"
    if pin is None or accept:
        pins.put(card, key)
        return "first" if pin is None else "accepted"
    if key is not None:
        pins.put(card, key)
        return "signed"
    if pin.sha256 == card.sha256:
        raise CardRefused(f"the card of {card.name} at {card.url} has lost its signature", hint)
    raise CardRefused(f"the card of {card.name} at {card.url} is another one than the accepted one", hint)
