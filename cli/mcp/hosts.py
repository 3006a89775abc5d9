"""Where the hosts keep their servers of the Model Context Protocol, and what an entry looks like there."""

from __future__ import annotations

import shlex
import sys
from collections.abc import Mapping
from functools import partial

from aghbus.cli.mcp.config_text import Broken, Edit, edit_json, edit_toml, member
from aghbus.protocol.base.annotations import Any

HOSTS = ("claude", "codex", "gemini", "opencode", "cursor", "vscode")
SCOPES = ("user", "project")
APPROVAL = "default_tools_approval_mode"
"""Codex's setting of one server. Without it Codex asks a person at each call that changes something, or refuses it."""
HOOK_WORDS = "mcp hook stop"
HOOK_SECONDS = 3600
"""How long Claude Code lets the hook run: longer than the hook waits by itself."""


class Change:
    """A change of the file at `path`."""

    def __init__(self, path: str, edit: Edit) -> None:
        self.path = path
        self._edit = edit
        self._edit_text = edit_toml if path.endswith(".toml") else edit_json

    def apply(self, text: str) -> str:
        """The new text of the file. Raises Broken."""
        return self._edit_text(text, self._edit)


def _set_server(servers: str, name: str, entry: Mapping[str, Any] | None, document: dict[str, Any]) -> None:
    """Put an entry into the object of servers; None removes it. Members of the entry that are not ours stay, and APPROVAL as a
    person has changed it."""
    all_servers = member(document, servers)
    found = None if all_servers is None else member(all_servers, name)
    if entry is None:
        if found is not None:
            del all_servers[name]
            if not all_servers:
                del document[servers]
    elif all_servers is None:
        document[servers] = {name: entry}
    elif not isinstance(found, dict):
        all_servers[name] = entry
    else:
        for key, value in entry.items():
            if isinstance(value, dict) and isinstance(found.get(key), dict):
                found[key].update(value)
            elif found.get(key) != value and (key != APPROVAL or key not in found):
                found[key] = value


def _set_stop_hook(command: str | None, document: dict[str, Any]) -> None:
    """Put the Stop hook into Claude Code's settings; None removes it."""
    hooks = member(document, "hooks") or {}
    groups = member(hooks, "Stop") or []
    if not isinstance(groups, list):
        raise Broken("'Stop' is not an array")
    ours = [hook for group in groups for hook in _hooks_of(group) if _is_ours(hook)]
    if command is not None and ours:
        ours[0]["command"] = command
    elif command is not None:
        hook = {"type": "command", "command": command, "timeout": HOOK_SECONDS, "asyncRewake": True}
        document["hooks"] = {**hooks, "Stop": [*groups, {"hooks": [hook]}]}
    elif ours:
        hooks["Stop"] = _without_ours(groups)
        if not hooks["Stop"]:
            del hooks["Stop"]
        if not hooks:
            del document["hooks"]


def _without_ours(groups: list[Any]) -> list[Any]:
    """The groups without our hooks, and without groups that held nothing else."""
    kept: list[Any] = []
    for group in groups:
        hooks = _hooks_of(group)
        rest = [hook for hook in hooks if not _is_ours(hook)]
        if rest == hooks:
            kept.append(group)
        elif rest:
            kept.append({**group, "hooks": rest})
    return kept


def _hooks_of(group: Any) -> list[Any]:
    hooks = group.get("hooks") if isinstance(group, dict) else None
    return hooks if isinstance(hooks, list) else []


def _is_ours(hook: Any) -> bool:
    command = hook.get("command") if isinstance(hook, dict) else None
    return isinstance(command, str) and command.endswith(HOOK_WORDS) and "aghctl" in command


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
    servers = {"codex": "mcp_servers", "vscode": "servers", "opencode": "mcp"}.get(host, "mcpServers")
    edits = {_file(host, env, home, folder, project=project): partial(_set_server, servers, name, entry)}
    if host == "claude":
        settings = f"{folder}/.claude" if project else env.get("CLAUDE_CONFIG_DIR") or f"{home}/.claude"
        hook = None if command is None else f"{shlex.quote(command[0])} {HOOK_WORDS}"
        edits[f"{settings}/settings.json"] = partial(_set_stop_hook, hook)
    return [Change(path, edit) for path, edit in edits.items()]


def _file(host: str, env: Mapping[str, str], home: str, folder: str, *, project: bool) -> str:
    """The file with the servers of a host."""
    if host == "claude":
        return f"{folder}/.mcp.json" if project else f"{env.get('CLAUDE_CONFIG_DIR') or home}/.claude.json"
    if host == "codex":
        return f"{folder}/.codex/config.toml" if project else f"{env.get('CODEX_HOME') or home + '/.codex'}/config.toml"
    if host == "opencode" and not project:
        return f"{env.get('XDG_CONFIG_HOME') or home + '/.config'}/opencode/opencode.json"
    if host == "vscode" and project:
        return f"{folder}/.vscode/mcp.json"
    if host == "vscode":
        user = f"{env.get('XDG_CONFIG_HOME') or home + '/.config'}/Code/User"
        if sys.platform == "darwin":
            user = f"{home}/Library/Application Support/Code/User"
        return f"{user}/mcp.json"
    inside = {"gemini": ".gemini/settings.json", "cursor": ".cursor/mcp.json", "opencode": "opencode.json"}
    return f"{folder if project else home}/{inside[host]}"


def _entry(host: str, command: list[str], env: Mapping[str, str]) -> dict[str, Any]:
    """The members of an entry that are ours. A host may start its servers without these variables, by which a daemon is found."""
    names = ("XDG_RUNTIME_DIR", "XDG_STATE_HOME", "XDG_CONFIG_HOME", *(("CODEX_HOME",) if host == "codex" else ()))
    given = {name: env[name] for name in names if env.get(name)}
    if host == "opencode":
        return {"type": "local", "command": command, **({"environment": given} if given else {})}
    kind = {"type": "stdio"} if host in ("claude", "vscode", "cursor") else {}
    approval = {APPROVAL: "approve"} if host == "codex" else {}
    return {**kind, "command": command[0], "args": command[1:], **approval, **({"env": given} if given else {})}
