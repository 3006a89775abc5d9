"""The servers of a link: the configured ones, and those that the cluster announced while a connection was up."""

import random
import time
from collections.abc import Callable
from urllib.parse import urlsplit

from aghbus.daemon.nats.client import MAX_DISCOVERED
from aghbus.daemon.nats.connection import NatsConnection, is_address
from aghbus.daemon.nats.events import ConnectFailed, LinkEvent, LinkProblem
from aghbus.daemon.nats.options import NatsOptions


class ServerPool:
    """The candidates of one link; discovered ones are dropped when other servers are configured."""

    def __init__(self, name: str, no_echo: bool, inbox_prefix: str, on_event: Callable[[LinkEvent], None]) -> None:
        """All of these go to every connection that is opened."""
        self._name = name
        self._no_echo = no_echo
        self._inbox_prefix = inbox_prefix
        self._on_event = on_event
        self._configured: tuple[str, ...] = ()
        self._discovered: dict[str, str | None] = {}

    async def connect(self, options: NatsOptions) -> NatsConnection:
        """Tries every server once, the configured ones first, each group in random order; raises the last ConnectFailed."""
        if options.servers != self._configured:
            self._configured, self._discovered = options.servers, {}
        failed = ConnectFailed(LinkProblem("resolve", "no server is named", "set nats.servers", time.time()))
        for url, tls_hostname in self._candidates():
            try:
                return await NatsConnection.open(
                    url,
                    options,
                    name=options.name or self._name,
                    no_echo=self._no_echo,
                    inbox_prefix=self._inbox_prefix,
                    tls_hostname=tls_hostname,
                    on_event=self._on_event,
                )
            except ConnectFailed as error:
                failed = error
        raise failed

    def remember(self, connection: NatsConnection) -> None:
        """Keeps the other servers that were announced on `connection`.

        The certificate of one known by address only is checked against the host name it was learned from, as all NATS clients do.
        """
        host = urlsplit(connection.info.url).hostname
        for url in connection.discovered:
            if len(self._discovered) < MAX_DISCOVERED and url not in self._configured:
                self._discovered.setdefault(url, host if is_address(urlsplit(url).hostname) else None)

    def _candidates(self) -> list[tuple[str, str | None]]:
        configured: list[tuple[str, str | None]] = [(url, None) for url in self._configured]
        discovered = list(self._discovered.items())
        random.shuffle(configured)
        random.shuffle(discovered)
        return configured + discovered
