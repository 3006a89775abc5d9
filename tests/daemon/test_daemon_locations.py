"""Folders are made closed, and an unfit one is refused with a way out."""

import os
import stat
from pathlib import Path

import pytest

from aghbus.daemon.config.folders import prepare_folders, this_host
from aghbus.host.locations import LocationError, Locations, locate


@pytest.fixture
def places(tmp_path: Path) -> Locations:
    """The places of an instance whose folders do not exist yet."""
    env = {name: str(tmp_path / name) for name in ("XDG_STATE_HOME", "XDG_CONFIG_HOME", "XDG_RUNTIME_DIR")}
    return locate("ops", env, uid=os.getuid(), home="/nowhere")


def mode_of(path: str) -> int:
    return stat.S_IMODE(Path(path).stat().st_mode)


def test_folders_are_created_private_with_any_umask(places: Locations) -> None:
    before = os.umask(0)
    try:
        prepare_folders(places)
    finally:
        os.umask(before)
    assert mode_of(places.state_dir) == mode_of(places.socket_dir) == 0o700
    prepare_folders(places)


def test_an_accessible_own_folder_is_made_private(places: Locations) -> None:
    Path(places.socket_dir).mkdir(parents=True)
    Path(places.socket_dir).chmod(0o755)
    prepare_folders(places)
    assert mode_of(places.socket_dir) == 0o700


def test_a_symbolic_link_as_socket_folder_is_refused(places: Locations, tmp_path: Path) -> None:
    (tmp_path / "elsewhere").mkdir(mode=0o700)
    Path(places.socket_dir).parent.mkdir(parents=True)
    Path(places.socket_dir).symlink_to(tmp_path / "elsewhere")
    with pytest.raises(LocationError, match="symbolic link"):
        prepare_folders(places)


def test_a_file_instead_of_a_folder_is_reported(places: Locations) -> None:
    Path(places.state_dir).parent.mkdir(parents=True)
    Path(places.state_dir).write_text("")
    with pytest.raises(LocationError) as caught:
        prepare_folders(places)
    assert places.state_dir in caught.value.rule
    assert caught.value.hint


@pytest.mark.skipif(os.getuid() != 0, reason="only root can give a folder away")
def test_a_folder_of_another_user_is_refused(places: Locations) -> None:
    Path(places.socket_dir).mkdir(parents=True, mode=0o700)
    os.chown(places.socket_dir, 12345, -1)
    with pytest.raises(LocationError, match="belongs to user 12345"):
        prepare_folders(places)


def test_a_named_socket_folder_may_be_shared_but_not_open_to_all(places: Locations, tmp_path: Path) -> None:
    shared = tmp_path / "shared"
    shared.mkdir()
    shared.chmod(0o755)
    named = places.with_overrides(socket_path=str(shared / "x.sock"))
    prepare_folders(named)
    shared.chmod(0o1777)
    prepare_folders(named)
    assert mode_of(str(shared)) == 0o1777
    shared.chmod(0o777)
    with pytest.raises(LocationError, match="chmod o-w"):
        prepare_folders(named)


def test_this_host_knows_user_and_home() -> None:
    host = this_host({"HOME": "/h"})
    assert (host.uid, host.home, host.folder) == (os.getuid(), "/h", str(Path.cwd()))
    assert this_host({}).home.startswith("/")
