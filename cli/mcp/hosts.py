"""Where the hosts keep their servers of the Model Context Protocol, and what an entry looks like there."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping

from aghbus.cli.mcp import json_text
from aghbus.protocol.base.annotations import Any

HOSTS = ("claude", "codex", "gemini", "cursor", "vscode")
SCOPES = ("user", "project")
HOOK_WORDS = "mcp hook stop"
HOOK_SECONDS = 3600
"""How long Claude Code lets the hook run: longer than the hook waits by itself."""


class Change:
    """A change of the file at `path`. `apply` takes its text and returns the new one, or raises json_text.Broken."""

    def __init__(self, path: str) -> None:
        self.path = path

    def apply(self, text: str) -> str:
        """The new text."""
        raise NotImplementedError


class JsonServer(Change):
    """An entry of an object of servers; None removes it. Members of the entry that are not ours stay."""

    def __init__(self, path: str, servers: str, name: str, entry: Mapping[str, Any] | None) -> None:
        super().__init__(path)
        self._at = (servers, name)
        self._entry = entry

    def apply(self, text: str) -> str:
        """The new text."""
        data = json_text.load(text)
        if self._entry is None:
            return _dropped(text, self._at)
        found = _at(data, self._at)
        if not isinstance(found, dict):
            return json_text.put(text, self._at, self._entry)
        for key, value in self._entry.items():
            kept = found.get(key)
            merged = {**kept, **value} if isinstance(value, dict) and isinstance(kept, dict) else value
            if kept != merged:
                text = json_text.put(text, (*self._at, key), merged)
        return text


class TomlServer(Change):
    """A table of servers in Codex's file; None removes it."""

    def __init__(self, path: str, name: str, entry: Mapping[str, Any] | None) -> None:
        super().__init__(path)
        self._at = ("mcp_servers", name)
        self._entry = entry

    def apply(self, text: str) -> str:
        """The new text."""
        from aghbus.cli.mcp import toml_text  # its tomllib is slow to load

        found = _at(toml_text.load(text), self._at)
        if self._entry is None:
            return toml_text.drop_table(text, self._at)
        table = found if isinstance(found, dict) else {}
        values = {key: value for key, value in self._entry.items() if table.get(key) != value}
        env = values.pop("env", None)
        if env and "env" in table:
            missing = {key: value for key, value in env.items() if table["env"].get(key) != value}
            text = toml_text.put_table(text, (*self._at, "env"), missing) if missing else text
        elif env:
            values["env"] = env
        return toml_text.put_table(text, self._at, values) if values else text


class StopHook(Change):
    """The Stop hook in Claude Code's settings; None removes it."""

    def __init__(self, path: str, command: str | None) -> None:
        super().__init__(path)
        self._command = command

    def apply(self, text: str) -> str:
        """The new text."""
        groups = _at(json_text.load(text), ("hooks", "Stop"))
        ours = _our_hooks(groups)
        if self._command is None:
            for group, place in reversed(ours):
                text = json_text.drop(text, ("hooks", "Stop", group, "hooks", place))
            return text
        if not ours:
            hook = {"type": "command", "command": self._command, "timeout": HOOK_SECONDS, "asyncRewake": True}
            at = len(groups) if isinstance(groups, list) else 0
            return json_text.put(text, ("hooks", "Stop", at), {"hooks": [hook]})
        group, place = ours[0]
        if groups[group]["hooks"][place]["command"] == self._command:
            return text
        return json_text.put(text, ("hooks", "Stop", group, "hooks", place, "command"), self._command)


def _our_hooks(groups: Any) -> list[tuple[int, int]]:
    """Group and place of each hook that is ours."""
    found = []
    for group, entry in enumerate(groups if isinstance(groups, list) else ()):
        hooks = entry.get("hooks") if isinstance(entry, dict) else None
        for place, hook in enumerate(hooks if isinstance(hooks, list) else ()):
            command = hook.get("command") if isinstance(hook, dict) else None
            if isinstance(command, str) and command.endswith(HOOK_WORDS) and "aghctl" in command:
                found.append((group, place))
    return found


def _dropped(text: str, at: tuple[str, ...]) -> str:
    while _at(json_text.load(text), at) is not None:  # a key may be there twice
        text = json_text.drop(text, at)
    return text


def _at(data: Any, path: tuple[str, ...]) -> Any:
    for key in path:
        data = data.get(key) if isinstance(data, dict) else None
    return data


def scopes(host: str) -> tuple[str, ...]:
    """The scopes of a host, the usual one first."""
    return ("project", "user") if host == "vscode" else SCOPES


def changes(
    host: str, scope: str, name: str, command: list[str] | None, env: Mapping[str, str], *, home: str, folder: str
) -> list[Change]:
    """What installs the server called `name` in a host, or removes it when `command` is None.

    `env` is the environment; `home` and `folder` are the user's home and the project's folder.
    """
    project = scope == "project"
    entry = None if command is None else _entry(host, command, env)
    if host == "claude":
        own = env.get("CLAUDE_CONFIG_DIR")
        servers = f"{folder}/.mcp.json" if project else f"{own or home}/.claude.json"
        settings = f"{folder}/.claude/settings.json" if project else f"{own or home + '/.claude'}/settings.json"
        hook = None if command is None else f"{shlex.quote(command[0])} {HOOK_WORDS}"
        return [JsonServer(servers, "mcpServers", name, entry), StopHook(settings, hook)]
    if host == "codex":
        root = f"{folder}/.codex" if project else env.get("CODEX_HOME") or f"{home}/.codex"
        return [TomlServer(f"{root}/config.toml", name, entry)]
    if host == "vscode":
        user = f"{env.get('XDG_CONFIG_HOME') or home + '/.config'}/Code/User"
        if sys.platform == "darwin":
            user = f"{home}/Library/Application Support/Code/User"
        return [JsonServer(f"{folder}/.vscode/mcp.json" if project else f"{user}/mcp.json", "servers", name, entry)]
    file = {"gemini": ".gemini/settings.json", "cursor": ".cursor/mcp.json"}[host]
    return [JsonServer(f"{folder if project else home}/{file}", "mcpServers", name, entry)]


def _entry(host: str, command: list[str], env: Mapping[str, str]) -> dict[str, Any]:
    """The members of an entry that are ours. A host may start its servers without these variables, by which a daemon is found."""
    names = ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME", *(("CODEX_HOME",) if host == "codex" else ()))
    given = {name: env[name] for name in names if env.get(name)}
    kind = {"type": "stdio"} if host in ("claude", "vscode", "cursor") else {}
    return {**kind, "command": command[0], "args": command[1:], **({"env": given} if given else {})}
