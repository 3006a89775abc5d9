"""`aghctl mcp install` and `uninstall`: the files of six hosts, with any content that is not ours."""

import json
import tomllib
from pathlib import Path
from typing import Any

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.cli.mcp.config_text import Broken
from aghbus.cli.mcp.hosts import HOSTS, changes
from tests.support.daemons import Home

FILES = {
    "claude": (".claude.json", "mcpServers"),
    "gemini": (".gemini/settings.json", "mcpServers"),
    "opencode": ("config/opencode/opencode.json", "mcp"),
    "cursor": (".cursor/mcp.json", "mcpServers"),
    "vscode": ("config/Code/User/mcp.json", "servers"),
}
KEYS = st.text(max_size=8) | st.sampled_from(["mcpServers", "servers", "aghbus", "hooks", "Stop", "//", '"', ","])
JSON = st.recursive(
    st.none() | st.booleans() | st.integers() | st.floats(allow_nan=False) | st.text(max_size=10) | KEYS,
    lambda inner: st.lists(inner, max_size=3) | st.dictionaries(KEYS, inner, max_size=3),
    max_leaves=10,
)
SERVERS = st.dictionaries(st.text(max_size=8).filter(lambda name: name != "aghbus"), JSON, max_size=3)
GROUPS = st.lists(st.fixed_dictionaries({"hooks": st.lists(st.fixed_dictionaries({"command": st.text()}))}), max_size=2)
DOCUMENTS = st.builds(
    lambda rest, servers, groups: {**rest, "mcpServers": servers, "hooks": {"Stop": groups, "Other": []}},
    st.dictionaries(KEYS, JSON, max_size=3),
    SERVERS,
    GROUPS,
)
INDENTS = st.sampled_from([None, 0, 2, 4, "\t"])
FRAGMENTS = st.sampled_from(
    [
        'model = "o3"\n',
        "# a comment [mcp_servers.aghbus]\n",
        "\n",
        '[mcp_servers.other]\ncommand = "x" # why\nargs = [\n  "a", # b\n  "[c]",\n]\n',
        '[mcp_servers.other.env]\nKEY = "v"\n',
        "[profiles.\"a.b\"]\ntext = '''\n[mcp_servers.aghbus]\ncommand = 1\n'''\n",
        '[[rules]]\nmatch = """\n[x]\n"""\n',
        "[tui]\nkeys.a.b = { c = [1, 2] }\n",
    ]
)


def applied(host: str, texts: dict[str, str], command: list[str] | None, env: dict[str, str]) -> dict[str, str]:
    """The files of a host after its changes."""
    wanted = changes(host, "user", "aghbus", command, env, home="/home/u", folder="/project")
    return {change.path: change.apply(texts.get(change.path, "")) for change in wanted}


@given(DOCUMENTS, INDENTS, st.sampled_from(["claude", "gemini", "cursor"]))
def test_json_of_others_survives_install_and_uninstall(document: Any, indent: Any, host: str) -> None:
    paths = [each.path for each in changes(host, "user", "aghbus", None, {}, home="/home/u", folder="/project")]
    before = dict.fromkeys(paths, json.dumps(document, indent=indent))
    installed = applied(host, before, ["/bin/aghctl", "--name", "ops", "mcp"], {})
    servers = json.loads(installed[paths[0]])
    assert servers.pop("mcpServers").pop("aghbus")["args"] == ["--name", "ops", "mcp"]
    assert servers == {key: value for key, value in document.items() if key != "mcpServers"}
    assert applied(host, installed, ["/bin/aghctl", "--name", "ops", "mcp"], {}) == installed
    after = applied(host, installed, None, {})
    assert {path: pruned(json.loads(text)) for path, text in after.items()} == dict.fromkeys(paths, pruned(document))


def pruned(document: dict[str, Any]) -> dict[str, Any]:
    """Without the containers of ours that are empty."""
    found = json.loads(json.dumps(document))
    if not found["hooks"].get("Stop"):
        found["hooks"].pop("Stop", None)
    return {key: value for key, value in found.items() if key != "mcpServers" or value} if found else found


@given(st.lists(FRAGMENTS, max_size=5, unique=True), st.sampled_from([{}, {"XDG_RUNTIME_DIR": "/run/me"}]))
def test_toml_of_others_survives_install_and_uninstall(fragments: list[str], env: dict[str, str]) -> None:
    fragments.sort(key=lambda fragment: fragment != 'model = "o3"\n')  # a pair of the root comes first
    text, path = "".join(fragments), "/home/u/.codex/config.toml"
    before = tomllib.loads(text)
    installed = applied("codex", {path: text}, ["/bin/aghctl", "mcp"], env)
    found = tomllib.loads(installed[path])
    assert found["mcp_servers"].pop("aghbus") == {
        "command": "/bin/aghctl",
        "args": ["mcp"],
        "default_tools_approval_mode": "approve",
        **({"env": env} if env else {}),
    }
    assert {"mcp_servers": {}, **before} == found
    assert all(fragment.rstrip() in installed[path] for fragment in fragments)
    assert applied("codex", installed, ["/bin/aghctl", "mcp"], env) == installed
    after = applied("codex", installed, None, {})[path]
    assert tomllib.loads(after) == before
    assert sorted(lines(after)) == sorted(
        lines(text)
    )  # tomlkit moves a table that is not beside the others of its parent


def lines(text: str) -> list[str]:
    """The lines that are not empty."""
    return [line for line in text.splitlines() if line]


def test_order_indentation_and_what_a_person_added_to_a_json_file_stay() -> None:
    text = '{\n    "z": "é",\n    "servers": {\n        "x": {\n            "command": "x"\n        }\n    },\n    "a": 1\n}\n'
    path = "/home/u/.config/Code/User/mcp.json"
    installed = applied("vscode", {path: text}, ["/bin/aghctl", "mcp"], {})
    assert list(json.loads(installed[path])) == ["z", "servers", "a"]
    assert installed[path].startswith(text[: text.index("        }\n    }")])
    own = installed[path].replace('"args"', '"disabled": true, "args"')
    changed = applied("vscode", {path: own}, ["/opt/aghctl", "mcp"], {})
    assert json.loads(changed[path])["servers"]["aghbus"] == {
        "type": "stdio",
        "command": "/opt/aghctl",
        "args": ["mcp"],
        "disabled": True,
    }
    assert applied("vscode", installed, None, {})[path] == text


def test_a_table_keeps_the_keys_that_a_person_added() -> None:
    path = "/home/u/.codex/config.toml"
    text = """\
[mcp_servers.aghbus]
command = "old" # mine
default_tools_approval_mode = "prompt"

[mcp_servers.aghbus.env]
A = "b"
"""
    changed = applied("codex", {path: text}, ["/bin/aghctl", "mcp"], {"CODEX_HOME": "/home/u/.codex"})
    assert tomllib.loads(changed[path])["mcp_servers"]["aghbus"] == {
        "command": "/bin/aghctl",
        "args": ["mcp"],
        "default_tools_approval_mode": "prompt",
        "env": {"A": "b", "CODEX_HOME": "/home/u/.codex"},
    }
    assert applied("codex", changed, None, {})[path].strip() == ""


@pytest.mark.parametrize("text", ["", " \n", "{}"])
def test_an_empty_json_file_gets_the_entry(text: str) -> None:
    path = "/home/u/.cursor/mcp.json"
    installed = applied("cursor", {path: text}, ["/bin/aghctl", "mcp"], {})[path]
    assert json.loads(installed)["mcpServers"]["aghbus"]["args"] == ["mcp"]
    assert '\n  "mcpServers": {\n    "aghbus"' in installed


def test_an_inline_table_of_servers_gets_the_entry() -> None:
    path, text = "/home/u/.codex/config.toml", "mcp_servers = { other = { command = 1 } }\n"
    installed = applied("codex", {path: text}, ["/bin/aghctl", "mcp"], {})
    assert set(tomllib.loads(installed[path])["mcp_servers"]) == {"other", "aghbus"}
    assert applied("codex", installed, None, {})[path] == text


@pytest.mark.parametrize(
    "text", ["{", '{"mcpServers": []}', "[1]", '{"a": 1, // b\n}', '{"mcpServers": {},}', '{"a": 1,, }', "nonsense"]
)
def test_a_broken_json_file_is_refused(text: str) -> None:
    with pytest.raises(Broken):
        applied("cursor", {"/home/u/.cursor/mcp.json": text}, ["/bin/aghctl", "mcp"], {})


@pytest.mark.parametrize("text", ["[", "mcp_servers = 1", "mcp_servers = [1]"])
def test_a_toml_file_that_cannot_be_changed_is_refused(text: str) -> None:
    with pytest.raises(Broken):
        applied("codex", {"/home/u/.codex/config.toml": text}, ["/bin/aghctl", "mcp"], {})


@pytest.mark.parametrize("host", HOSTS)
def test_the_command_installs_an_entry_that_starts_a_relay_and_removes_it(host: str, tmp_path: Path) -> None:
    home = Home(tmp_path)
    done = home.ctl_json("--name", "ops", "mcp", "install", host, "--scope", "user")
    assert all(file["changed"] for file in done["files"])
    assert all(str(tmp_path) in file["path"] for file in done["files"])
    if host == "codex":
        entry = tomllib.loads((tmp_path / ".codex/config.toml").read_text())["mcp_servers"]["aghbus"]
    else:
        file, key = FILES[host]
        entry = json.loads((tmp_path / file).read_text())[key]["aghbus"]
    if host == "opencode":
        assert entry["type"] == "local"
        entry = {"command": entry["command"][0], "args": entry["command"][1:], "env": entry["environment"]}
    assert Path(entry["command"]).is_absolute()
    assert Path(entry["command"]).name == "aghctl"
    assert entry["args"] == ["--name", "ops", "mcp"]
    assert entry["env"]["XDG_RUNTIME_DIR"] == home.env["XDG_RUNTIME_DIR"]
    if host == "claude":
        settings = json.loads((tmp_path / ".claude/settings.json").read_text())
        (hook,) = settings["hooks"]["Stop"][0]["hooks"]
        assert hook["command"] == f"{entry['command']} mcp hook stop"
        assert (hook["asyncRewake"], hook["timeout"]) == (True, 3600)
    again = home.ctl_json("--name", "ops", "mcp", "install", host, "--scope", "user")
    assert not any(file["changed"] for file in again["files"])
    removed = home.ctl_json("mcp", "uninstall", host, "--scope", "user")
    assert all(file["changed"] for file in removed["files"])
    assert "aghbus" not in "".join(Path(file["path"]).read_text() for file in removed["files"])


def test_print_changes_nothing(tmp_path: Path) -> None:
    home = Home(tmp_path)
    shown = home.ctl("--name", "ops", "mcp", "install", "codex", "--print").stdout.decode()
    assert "[mcp_servers.aghbus]" in shown
    assert not (tmp_path / ".codex").exists()


def test_a_json_file_with_comments_is_refused_with_what_to_paste(tmp_path: Path) -> None:
    home, text = Home(tmp_path), '{"mcpServers": {}} // mine\n'
    (tmp_path / ".cursor").mkdir()
    (tmp_path / ".cursor/mcp.json").write_text(text)
    refused = home.ctl("--name", "ops", "mcp", "install", "cursor")
    assert refused.returncode != 0
    assert b"mcp.json cannot be changed: it is not plain JSON" in refused.stderr
    entry = json.loads(refused.stderr.partition(b"add this yourself: ")[2])["mcpServers"]["aghbus"]
    assert entry["args"] == ["--name", "ops", "mcp"]
    assert b"remove the entry yourself" in home.ctl("mcp", "uninstall", "cursor").stderr
    assert (tmp_path / ".cursor/mcp.json").read_text() == text


def test_a_link_is_followed_and_the_mode_stays(tmp_path: Path) -> None:
    home = Home(tmp_path)
    real = tmp_path / "dotfiles.json"
    real.write_text("{}")
    real.chmod(0o640)
    (tmp_path / ".claude.json").symlink_to(real)
    home.ctl_json("--name", "ops", "mcp", "install", "claude")
    assert (tmp_path / ".claude.json").is_symlink()
    assert "aghbus" in real.read_text()
    assert real.stat().st_mode & 0o777 == 0o640


@pytest.mark.parametrize("link", [".claude", ".claude/settings.json"])
def test_a_link_out_of_the_project_is_refused(tmp_path: Path, monkeypatch: pytest.MonkeyPatch, link: str) -> None:
    home, project, outside = Home(tmp_path / "home"), tmp_path / "project", tmp_path / "outside"
    (project / link).parent.mkdir(parents=True)
    (project / link).symlink_to(outside)
    monkeypatch.chdir(project)
    for words in (("--name", "ops", "mcp", "install"), ("mcp", "uninstall")):
        refused = home.ctl(*words, "claude", "--scope", "project")
        assert refused.returncode != 0
        assert b"settings.json: a symbolic link leads out of the project to " in refused.stderr
    assert not outside.exists() and not (project / ".mcp.json").exists()
    (project / link).unlink()
    (project / "inside").mkdir()
    (project / ".mcp.json").symlink_to("inside/mcp.json")
    home.ctl_json("--name", "ops", "mcp", "install", "claude", "--scope", "project")
    assert "aghbus" in (project / "inside/mcp.json").read_text()
