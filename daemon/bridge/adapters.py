"""Builds the adapters and the agent map from the settings, and reads the files that the settings name."""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any, NamedTuple

from aghbus.daemon.base.clock import Clock
from aghbus.daemon.config.layers import MAX_CONFIG_BYTES, Problem
from aghbus.daemon.config.live_settings import LiveSettings
from aghbus.daemon.config.settings import Settings
from aghbus.daemon.state.identity import Identity
from aghbus.daemon.state.presence import PresenceTable
from aghbus.protocol.base.errors import AghbusError, InvalidRequest, NotFound
from aghbus.protocol.base.text import escape
from aghbus.protocol.formats.model import Adapter, AgentMap, BridgeContext
from aghbus.protocol.formats.registry import FORMATS, AdapterOptions, adapter_for

if TYPE_CHECKING:
    from aghbus.protocol.formats.sacp.guardrails import Guardrail


class FormatFileError(AghbusError):
    """A file named by a setting cannot be used; `problem` says which file and why."""

    def __init__(self, problem: Problem) -> None:
        super().__init__(str(problem))
        self.problem = problem


class _Files(NamedTuple):
    """The content of the files that the settings name."""

    manifest: frozenset[str] | None
    guardrails: tuple[Guardrail, ...]


class FormatAdapters:
    """The adapters of a running daemon. Call `reload` after the settings or the files they name have changed."""

    def __init__(self, settings: Settings) -> None:
        """Raises FormatFileError."""
        self.reload(settings)

    def reload(self, settings: Settings) -> None:
        """Replace all adapters. On FormatFileError the current ones stay."""
        self._files = _read_files(settings)
        self._settings = settings
        self._adapters: dict[str, Adapter] = {}

    def get(self, name: str) -> Adapter:
        """The adapter of a format, which is made when it is first asked for. Raises NotFound for an unknown name."""
        found = self._adapters.get(name)
        if found is None:
            if name not in FORMATS:
                raise NotFound(f"format {name!r}: is unknown", hint=f"one of {', '.join(FORMATS)}")
            found = self._adapters[name] = adapter_for(name, _options(name, self._settings, self._files))
        return found


def _read_files(settings: Settings) -> _Files:
    """Raises FormatFileError for an unusable file."""
    return _Files(_manifest(settings.agentos.manifest), _guardrails(settings.sacp.guardrails))


def _options(name: str, settings: Settings, files: _Files) -> AdapterOptions:
    """The options of format `name`. Loads its modules; those of all formats take 0.9 MB, and most daemons need none."""
    match name:
        case "sentient":
            from aghbus.protocol.formats.sentient.adapter import SentientOptions

            user, memory_agent = settings.sentient.user, settings.sentient.memory_agent
            return AdapterOptions(sentient=SentientOptions(user=user, memory_agent=memory_agent))
        case "humaninloop":
            from aghbus.protocol.formats.humaninloop.adapter import HumanInLoopOptions

            return AdapterOptions(humaninloop=HumanInLoopOptions(feature_root=settings.humaninloop.feature_root))
        case "agentos":
            from aghbus.protocol.formats.agentos.adapter import AgentOsOptions

            return AdapterOptions(agentos=AgentOsOptions(strict=settings.agentos.strict, manifest=files.manifest))
        case "sacp":
            from aghbus.protocol.formats.sacp.adapter import SacpOptions

            wire_thought = settings.sacp.wire_thought
            return AdapterOptions(sacp=SacpOptions(wire_thought=wire_thought, guardrails=files.guardrails))
    return AdapterOptions()


def find_problems(settings: Settings) -> Iterator[Problem]:
    """Problems of the bridge's settings that concern several keys or the content of a file."""
    seen: dict[str, str] = {}
    for entry in settings.bridge.agents:
        name, _, peer = entry.rpartition("=")
        if seen.setdefault(name, peer) != peer:
            yield Problem("bridge.agents", "settings", f"names two peers for the agent {escape(name)}", "keep one")
    try:
        _read_files(settings)
    except FormatFileError as error:
        yield error.problem


@dataclass(frozen=True, slots=True, eq=False)
class AgentDirectory:
    """The agent map by channel: the configured agents, and the peers present where look-up is enabled."""

    settings: LiveSettings
    identity: Identity
    presence: PresenceTable
    clock: Clock

    def on(self, channel: str, own_id: str | None = None) -> AgentMap:
        """The map on `channel`. `own_id` is the peer id that our agents map to (None: the current one)."""
        settings, self_id = self.settings.current, self.identity.self_id
        configured = configured_agents(settings)
        if own_id is not None and own_id != self_id:
            configured = {name: own_id if peer == self_id else peer for name, peer in configured.items()}
        lookup = settings.bridge.lookup
        return AgentMap(names=configured, found={} if lookup == "off" else self._found(channel, lookup))

    def context(
        self, channel: str, us: str | None = None, workspace_id: str | None = None, agents: AgentMap | None = None
    ) -> BridgeContext:
        """The context of a conversion on `channel` now, under the id `us` of ours (None: the present one)."""
        return BridgeContext(
            us=us or self.identity.self_id,
            workspace_id=workspace_id or self.identity.workspace,
            channel=channel,
            now=self.clock.seconds(),
            ttl=self.settings.current.defaults.directed_ttl,
            agents=agents or self.on(channel, us),
        )

    def on_all(self, channels: Iterable[str]) -> dict[str, AgentMap]:
        """The maps of several channels, by channel."""
        return {channel: self.on(channel) for channel in set(channels)}

    def _found(self, channel: str, lookup: str) -> dict[str, tuple[str, ...]]:
        """Present peers by display name and capability. Where trust is required, only verified ones (adapters.md, Agent map)."""
        now_ms = self.clock.millis()
        found: defaultdict[str, dict[str, None]] = defaultdict(dict)
        for peer in self.presence.all():
            if (peer.workspace_id, peer.channel) != (self.identity.workspace, channel):
                continue
            if self.presence.of(peer, now_ms) == "expired":
                continue
            if self.settings.current.trust.mode == "require" and peer.trust != "verified":
                continue
            if lookup in ("display_name", "both") and peer.card.display_name:
                found[peer.card.display_name][peer.peer_id] = None
            if lookup in ("capability", "both"):
                for capability in peer.card.capabilities:
                    found[capability][peer.peer_id] = None
        return {name: tuple(peers) for name, peers in found.items()}


def configured_agents(settings: Settings) -> dict[str, str]:
    """The configured map of agent name to peer id. The last `=` separates them: a peer id contains none."""
    pairs = (entry.rpartition("=") for entry in settings.bridge.agents)
    return {name: peer for name, _, peer in pairs}


def _manifest(path: str | None) -> frozenset[str] | None:
    """The agent ids in a manifest file: a JSON list of strings, or one id per line."""
    if path is None:
        return None
    text = _text(path, "agentos.manifest")
    if not text.lstrip().startswith("["):
        return frozenset(line.strip() for line in text.splitlines() if line.strip() and not line.startswith("#"))
    try:
        listed: Any = json.loads(text)
    except (ValueError, RecursionError) as error:
        raise _broken("agentos.manifest", path, f"is not JSON: {error}", "one agent id per line works too") from None
    if not all(isinstance(entry, str) for entry in listed):
        raise _broken("agentos.manifest", path, "is not a list of strings", "list the agent ids")
    return frozenset(listed)


def _guardrails(path: str | None) -> tuple[Guardrail, ...]:
    if path is None:
        return ()
    from aghbus.protocol.formats.sacp.guardrails import read_guardrails

    try:
        return read_guardrails(_text(path, "sacp.guardrails"))
    except InvalidRequest as error:
        raise _broken("sacp.guardrails", path, error.message, error.hint) from None


def _text(path: str, key: str) -> str:
    try:
        with Path(path).open("rb") as file:
            content = file.read(MAX_CONFIG_BYTES + 1)
        if len(content) > MAX_CONFIG_BYTES:
            raise _broken(
                key, path, f"is longer than {MAX_CONFIG_BYTES} bytes", "check that the setting names the right file"
            )
        return content.decode()
    except OSError as error:
        raise _broken(key, path, f"cannot be read: {error.strerror}", "name a file that exists") from None
    except UnicodeDecodeError as error:
        raise _broken(key, path, f"is not UTF-8 at byte {error.start}", "") from None


def _broken(key: str, path: str, rule: str, hint: str) -> FormatFileError:
    return FormatFileError(Problem(key, f"file {path}", rule, hint))
