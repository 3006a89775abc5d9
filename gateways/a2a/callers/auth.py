"""Who calls: bearer tokens of a file, JWTs of an OpenID provider, client certificates, or nobody in particular."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Protocol

from aghbus.protocol.formats.a2a.ids import Principal, principal_name
from aghbus.protocol.formats.a2a.parts import Json


class Denied(Exception):
    """The credentials of a request are missing or wrong. `reason` is for the log and for metrics."""

    def __init__(self, reason: str) -> None:
        super().__init__(reason)
        self.reason = reason


class BearerCheck(Protocol):
    """One kind of bearer token."""

    def scheme(self) -> tuple[str, Json]:
        """Its name and the security scheme in the card."""
        ...

    async def caller(self, token: str) -> Principal | None:
        """Who has this token; None for one that is of another kind, or wrong."""
        ...


class Authentication:
    """Tells who calls. Without any check everybody is `anonymous`."""

    def __init__(self, bearers: list[BearerCheck], *, certificates: bool, denied: Callable[[str], None]) -> None:
        """`denied` gets the reason of each refusal."""
        self._bearers = bearers
        self.certificates = certificates
        self._denied = denied

    @property
    def schemes(self) -> dict[str, Json]:
        """The security schemes of cards; empty if nobody is asked who he is."""
        found = dict(check.scheme() for check in self._bearers)
        if self.certificates:
            found["mtls"] = {
                "mtlsSecurityScheme": {"description": "A client certificate of an authority that the operator names."}
            }
        return found

    async def caller(self, authorization: str | None, certificate: Json | None) -> Principal:
        """Who sent a request with this header, over a connection with this certificate. Raises Denied."""
        try:
            return await self._caller(authorization, certificate)
        except Denied as denied:
            self._denied(denied.reason)
            raise

    async def _caller(self, authorization: str | None, certificate: Json | None) -> Principal:
        if not self._bearers and not self.certificates:
            return Principal()
        if self.certificates and certificate:
            return Principal(principal_name(_subject(certificate)))
        kind, _, token = (authorization or "").partition(" ")
        if kind.lower() != "bearer" or not token.strip():
            raise Denied("no_credentials")
        for check in self._bearers:
            if (found := await check.caller(token.strip())) is not None:
                return found
        raise Denied("wrong_credentials")


def _subject(certificate: dict[str, Any]) -> str:
    """The name in a client certificate: its first URI or DNS name, else the common name of its subject."""
    names = [
        str(value)
        for kind in ("URI", "DNS", "email")
        for found, value in certificate.get("subjectAltName", ())
        if found == kind
    ]
    common = [str(value) for part in certificate.get("subject", ()) for name, value in part if name == "commonName"]
    return next(iter([*common, *names]), "")
