"""How a gateway is run."""

from __future__ import annotations

from dataclasses import dataclass, field

from aghbus.gateways.a2a.base.bus import Agent

MAX_BODY = 8 << 20
"""Bytes of a request, files included."""


@dataclass(frozen=True)
class Options:
    """`host` and `port` to listen on, `url` where clients reach it, if that is elsewhere. `state` is the gateway's folder.
    `caller_requests` are those of one caller at a time, `caller_tasks` its new tasks a minute."""

    host: str
    port: int
    agents: tuple[Agent, ...]
    state: str
    url: str | None = None
    max_body: int = MAX_BODY
    input_modes: tuple[str, ...] = ()
    grpc: tuple[str, int] | None = None
    grpc_url: str | None = None
    tls_cert: str | None = None
    tls_key: str | None = None
    client_ca: str | None = None
    callers: str | None = None
    open_to_all: bool = False
    oidc: tuple[str, str] | None = None
    caller_requests: int = 64
    caller_tasks: int = 600
    push_allow: tuple[str, ...] = field(default_factory=tuple)
