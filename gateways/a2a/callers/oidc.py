"""JWTs of an OpenID provider: signature, issuer, audience and times are checked, with the keys that the provider publishes."""

from __future__ import annotations

import asyncio
import contextlib
import json
import time
from typing import Any, Final
from urllib.parse import urlsplit

import httpx
import jwt

from aghbus.client import UsageError
from aghbus.protocol.base.addresses import is_loopback
from aghbus.protocol.formats.a2a.ids import Principal, principal_name
from aghbus.protocol.formats.a2a.parts import Json

ALGORITHMS: Final = ("RS256", "RS384", "RS512", "PS256", "PS384", "PS512", "ES256", "ES384", "ES512", "EdDSA")
"""Asymmetric ones only: a public key is never the secret of an HMAC."""
KEY_TYPES: Final = ("RSA", "EC", "OKP")
FRESH_SECONDS: Final = 600.0
AGAIN_SECONDS: Final = 10.0
"""Seconds between two requests for the keys, when a token names an unknown one."""
LEEWAY: Final = 30
"""Seconds that clocks may differ."""
MAX_DOCUMENT: Final = 1 << 20
DISCOVERY: Final = "/.well-known/openid-configuration"


class Oidc:
    """Tokens of one issuer for one audience."""

    def __init__(self, issuer: str, audience: str) -> None:
        """Raises UsageError for an issuer whose keys could be replaced on the way."""
        parts = urlsplit(issuer)
        if parts.scheme != "https" and not (parts.scheme == "http" and is_loopback(parts.hostname or "")):
            raise UsageError("--oidc-issuer: must be an https URL")
        self._issuer = issuer
        self._audience = audience
        self._keys: dict[str | None, jwt.PyJWK] = {}
        self._read_at = -FRESH_SECONDS
        self._turn = asyncio.Lock()

    def scheme(self) -> tuple[str, Json]:
        """The security scheme in cards."""
        url = self._issuer.rstrip("/") + DISCOVERY
        return "oidc", {"openIdConnectSecurityScheme": {"openIdConnectUrl": url}}

    async def caller(self, token: str) -> Principal | None:
        """The subject of a valid token; None for any other."""
        try:
            head = jwt.get_unverified_header(token)
            if head.get("alg") not in ALGORITHMS or (key := await self._key(head.get("kid"))) is None:
                return None
            claims = jwt.decode(
                token,
                key,
                algorithms=ALGORITHMS,
                audience=self._audience,
                issuer=self._issuer,
                leeway=LEEWAY,
                options={"require": ["exp", "iss", "aud", "sub"]},
            )
        except (jwt.PyJWTError, ValueError, TypeError):
            return None
        subject = claims["sub"]
        return Principal(principal_name(subject), self._issuer) if isinstance(subject, str) and subject else None

    async def _key(self, identity: Any) -> jwt.PyJWK | None:
        """The key of that id; without an id the only one. The provider is asked when keys are old or the id is unknown."""
        if isinstance(identity, str) and identity in self._keys and time.monotonic() - self._read_at < FRESH_SECONDS:
            return self._keys[identity]  # also while the provider is asked for the key of somebody else's token
        async with self._turn:
            age = time.monotonic() - self._read_at
            if age >= FRESH_SECONDS or (identity not in self._keys and age >= AGAIN_SECONDS):
                self._read_at = time.monotonic()
                with contextlib.suppress(httpx.HTTPError, ValueError, KeyError, TypeError):  # those that are known stay
                    self._keys = await self._read()
        if identity is None and len(self._keys) == 1:
            return next(iter(self._keys.values()))
        return self._keys.get(identity) if isinstance(identity, str) else None

    async def _read(self) -> dict[str | None, jwt.PyJWK]:
        async with httpx.AsyncClient(timeout=10.0, follow_redirects=False) as client:
            about = await _document(client, self._issuer.rstrip("/") + DISCOVERY)
            if about["issuer"] != self._issuer:
                raise ValueError("another issuer")
            where = str(about["jwks_uri"])
            if urlsplit(where).scheme != urlsplit(self._issuer).scheme:
                raise ValueError("keys over another scheme")
            keys = (await _document(client, where))["keys"]
        found = dict[str | None, jwt.PyJWK]()
        for each in keys:
            if each.get("kty") in KEY_TYPES and each.get("use", "sig") == "sig" and "d" not in each:
                try:
                    found[each.get("kid")] = jwt.PyJWK(each)
                except jwt.PyJWTError:
                    continue  # of an algorithm that is not known here
        return found


async def _document(client: httpx.AsyncClient, url: str) -> Any:
    async with client.stream("GET", url) as response:
        response.raise_for_status()
        content = bytearray()
        async for piece in response.aiter_bytes():
            content += piece
            if len(content) > MAX_DOCUMENT:
                raise ValueError("too long")
    return json.loads(content)
