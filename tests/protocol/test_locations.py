"""The files of an instance: names, XDG folders, socket limits, private folders."""

import re
import stat
import subprocess
import sys
from pathlib import Path

import pytest
from hypothesis import given
from hypothesis import strategies as st

from aghbus.host import locations
from aghbus.host.locations import (
    SOCKET_PATH_LIMIT_ELSEWHERE,
    SOCKET_PATH_LIMIT_LINUX,
    LocationError,
    check_socket_path,
    default_name,
    is_legal_name,
    locate,
    private_folder_problem,
)
from aghbus.protocol.agh.identifiers import PEER_ID, is_peer


@given(st.text(max_size=140))
def test_a_name_is_legal_exactly_when_it_is_a_plain_peer_id(name: str) -> None:
    assert is_legal_name(name) == (PEER_ID.fullmatch(name) is not None)


@given(st.from_regex(PEER_ID, fullmatch=True))
def test_every_plain_peer_id_is_a_legal_name(name: str) -> None:
    assert is_legal_name(name)


@pytest.mark.parametrize(
    ("hostname", "name"),
    [
        ("patch-worker", "patch-worker"),
        ("Jo's MacBook.local", "jo-s-macbook.local"),
        ("_leading.and.trailing-", "leading.and.trailing"),
        ("ÄÖÜ", "peer"),
        ("", "peer"),
        ("h" * 200, "h" * 128),
    ],
)
def test_the_default_name_is_the_nearest_legal_one(hostname: str, name: str) -> None:
    assert default_name(hostname) == name


@given(st.text(max_size=300))
def test_the_default_name_is_always_legal(hostname: str) -> None:
    assert is_peer(default_name(hostname))


def test_without_xdg_paths_use_home_and_a_per_user_socket_folder() -> None:
    places = locate("ops", {}, uid=1000, home="/home/jo")
    assert places.state_dir == "/home/jo/.local/state/aghbus/instances/ops"
    assert places.store_path == "/home/jo/.local/state/aghbus/instances/ops/store.db"
    assert places.broker_dir == "/home/jo/.local/state/aghbus/broker"
    assert places.config_file == "/home/jo/.config/aghbus/aghbus.toml"
    assert places.instance_config_file == "/home/jo/.config/aghbus/ops.toml"
    assert places.socket_path == "/tmp/aghbus-1000/ops.sock"
    assert places.catalog_candidates == (
        "/home/jo/.config/aghbus/capabilities.toml",
        "/home/jo/.config/aghbus/capabilities.json",
        "/home/jo/.config/aghbus/capabilities",
    )


def test_xdg_folders_are_used_and_need_no_home() -> None:
    env = {"XDG_STATE_HOME": "/s/", "XDG_CONFIG_HOME": "/c", "XDG_RUNTIME_DIR": "/run/user/7"}
    places = locate("ops", env, uid=7, home="")
    assert places.state_dir == "/s/aghbus/instances/ops"
    assert places.config_file == "/c/aghbus/aghbus.toml"
    assert places.socket_path == "/run/user/7/aghbus/ops.sock"
    assert places.socket_dir == "/run/user/7/aghbus"


@pytest.mark.parametrize("value", ["", "relative/path", "~/state", "/with\0nul"])
def test_an_xdg_value_that_is_not_absolute_is_ignored(value: str) -> None:
    places = locate("ops", {"XDG_STATE_HOME": value, "XDG_RUNTIME_DIR": value}, uid=7, home="/h")
    assert places.state_dir == "/h/.local/state/aghbus/instances/ops"
    assert places.socket_path == "/tmp/aghbus-7/ops.sock"


def test_without_home_and_xdg_the_error_names_the_variable_to_set() -> None:
    with pytest.raises(LocationError) as caught:
        locate("ops", {"XDG_CONFIG_HOME": "/c"}, uid=7, home="")
    assert caught.value.key == "HOME"
    assert "XDG_STATE_HOME" in caught.value.hint


@pytest.mark.parametrize("name", ["", "..", "../x", "a/b", "A", "a\n", "a\0", "-a", ".a", "ä", "a" * 129])
def test_a_bad_name_never_becomes_a_path(name: str) -> None:
    with pytest.raises(LocationError) as caught:
        locate(name, {}, uid=1, home="/h")
    assert caught.value.key == "name"


@pytest.mark.parametrize("name", ["aghbus", "capabilities"])
def test_instances_named_like_shared_files_have_no_file_of_their_own(name: str) -> None:
    assert locate(name, {}, uid=1, home="/h").instance_config_file is None


def test_overrides_replace_only_the_named_paths() -> None:
    places = locate("ops", {}, uid=1, home="/h")
    moved = places.with_overrides(socket_path="/run/x/y.sock", store_path="/d/s.db")
    assert (moved.socket_path, moved.socket_dir, moved.socket_dir_private) == ("/run/x/y.sock", "/run/x", False)
    assert (moved.store_path, moved.broker_dir) == ("/d/s.db", places.broker_dir)
    assert (places.socket_dir_private, places.store_path) == (True, "/h/.local/state/aghbus/instances/ops/store.db")
    assert places.with_overrides(socket_path=places.socket_path).socket_dir_private


@pytest.mark.parametrize("limit", [SOCKET_PATH_LIMIT_LINUX, SOCKET_PATH_LIMIT_ELSEWHERE])
def test_a_socket_path_with_its_nul_may_have_exactly_the_limit(limit: int) -> None:
    check_socket_path("/" + "x" * (limit - 2), limit)
    with pytest.raises(LocationError, match="--api-socket"):
        check_socket_path("/" + "x" * (limit - 1), limit)


def test_the_socket_limit_counts_bytes() -> None:
    with pytest.raises(LocationError):
        check_socket_path("/" + "ä" * 53 + "x", SOCKET_PATH_LIMIT_LINUX)
    check_socket_path("/" + "ä" * 53, SOCKET_PATH_LIMIT_LINUX)


@pytest.mark.parametrize(
    ("mode", "owner", "problem"),
    [
        (stat.S_IFDIR | 0o700, 5, ""),
        (stat.S_IFDIR | 0o500, 5, ""),
        (stat.S_IFDIR | 0o700, 6, "belongs to user 6"),
        (stat.S_IFDIR | 0o710, 5, "0710"),
        (stat.S_IFDIR | 0o1777, 5, "1777"),
        (stat.S_IFLNK | 0o777, 5, "symbolic link"),
        (stat.S_IFREG | 0o600, 5, "not a folder"),
    ],
)
def test_a_private_folder_belongs_to_us_and_excludes_other_users(mode: int, owner: int, problem: str) -> None:
    found = private_folder_problem(mode, owner, 5)
    assert (found == "") if not problem else (problem in found)


def test_the_module_imports_nothing_slow() -> None:
    source = Path(locations.__file__ or "").read_text()
    script = "import sys; exec(sys.stdin.read(), {'__name__': 'locations'}); print(*sys.modules)"
    run = [sys.executable, "-I", "-S", "-c", script]  # without site, which loads much of it for an editable install
    loaded = set(subprocess.run(run, input=source, capture_output=True, text=True, check=True).stdout.split())
    assert "stat" in loaded
    assert not loaded & {"re", "typing", "dataclasses", "pathlib", "msgspec", "asyncio", "json", "aghbus"}


def test_the_error_suggests_a_legal_name() -> None:
    with pytest.raises(LocationError) as caught:
        locate("My Box", {}, uid=1, home="/h")
    suggested = re.search(r"'(.+)'", caught.value.hint)
    assert suggested is not None
    assert is_legal_name(suggested[1])
