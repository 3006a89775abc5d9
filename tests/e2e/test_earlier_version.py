"""A daemon of the last tagged version beside one of this tree; before the first tag, of an earlier commit."""

import io
import os
import subprocess
import sys
import tarfile
from collections.abc import Iterator
from pathlib import Path

import pytest

from tests.support.daemons import ADMIT_ALL, Daemon, Home, delivery, wait_for

ROOT = Path(__file__).parents[2]
EARLIER = "a662f4a115a703c14bc2e2de42ec4244a8131c23"
WAIT = 60.0


class EarlierDaemon(Daemon):
    """A daemon of the package in `tree`."""

    def __init__(self, home: Home, name: str, *args: str, tree: Path) -> None:
        super().__init__(home, name, *args, env={"PYTHONPATH": str(tree)})

    def start(self, *, wait: bool = True) -> "EarlierDaemon":
        command = [sys.executable, "-m", "aghbus.daemon", "run", "--name", self.name, "--quiet", *self.args]
        with self.log.open("ab") as log:
            self.process = subprocess.Popen(
                command, env=self.env, cwd=self.home.root, stdin=subprocess.DEVNULL, stdout=log, stderr=log
            )
        self.wait_ready()
        return self


def git(*args: str) -> bytes:
    command = ["git", "-C", str(ROOT), *args]
    return subprocess.run(command, env={"PATH": os.environ["PATH"]}, capture_output=True, check=True).stdout


@pytest.fixture(scope="module")
def tree(tmp_path_factory: pytest.TempPathFactory) -> Path:
    """A folder with the package of the earlier version."""
    try:
        tags = git("tag", "--list", "v*", "--merged", "HEAD", "--sort=-creatordate").decode().split()
        archive = git("archive", tags[0] if tags else EARLIER)
    except (OSError, subprocess.CalledProcessError) as error:
        pytest.skip(f"this tree has no earlier version: {error}")
    folder = tmp_path_factory.mktemp("earlier")
    with tarfile.open(fileobj=io.BytesIO(archive)) as files:
        files.extractall(folder / "aghbus", filter="data")
    return folder


@pytest.fixture
def pair(tmp_path: Path, tree: Path) -> Iterator[tuple[Daemon, Daemon]]:
    """`earlier`, and `newer` of this tree, which know each other."""
    home = Home(tmp_path)
    with Daemon(home, "newer", *ADMIT_ALL) as newer, EarlierDaemon(home, "earlier", tree=tree) as earlier:
        wait_for(lambda: newer.knows("earlier") and earlier.knows("newer"), WAIT, "presence")
        yield newer, earlier


def play_through(here: Daemon, there: Daemon) -> None:
    """A work that `here` opens and `there` ends."""
    sent = here.post("/v1/works", to=there.name, text="go")
    work = sent["work_id"]
    wait_for(lambda: there.state_of(work), WAIT, "the opening")
    said = here.post("/v1/messages", kind="say", to=there.name, work_id=work, body={"text": "more"})
    wait_for(lambda: {delivery(here, one["id"]) for one in (sent, said)} == {"receipted"}, WAIT, "the acknowledgements")
    there.post(f"/v1/works/{work}/complete", message="done")
    wait_for(lambda: here.state_of(work) == "completed", WAIT, "the end")


def test_works_between_versions_are_acknowledged(pair: tuple[Daemon, Daemon]) -> None:
    newer, earlier = pair
    play_through(newer, earlier)
    play_through(earlier, newer)
    counters = newer.get("/v1/status")["counters"]
    assert counters["acks.committed"] >= 2
    assert "acks.unknown" not in counters


def test_an_earlier_version_is_shown_and_reported(pair: tuple[Daemon, Daemon]) -> None:
    newer, _ = pair
    versions = {peer["peer_id"]: peer["version"] for peer in newer.get("/v1/peers")["peers"]}
    assert versions["newer"] == newer.get("/v1/status")["version"]
    (view,) = [
        one for one in newer.home.ctl_json("--name", "newer", "doctor")["checks"] if one["check"] == "daemon's own view"
    ]
    assert ("peers with an aghbus older than 0.1.0: earlier" in view["detail"]) == (versions["earlier"] is None)
