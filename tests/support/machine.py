"""A machine of its own for a test: systemd as process 1 in namespaces, on a throw-away copy of this root file system.

Mounts, processes, users' files and units are its own; the network is that of this machine. It needs root on Linux.
"""

import contextlib
import os
import shutil
import subprocess
from collections.abc import Mapping
from pathlib import Path
from types import TracebackType
from typing import Final, Self

import pytest

from tests.support.daemons import wait_for

SYSTEMD: Final = "/lib/systemd/systemd"
PATH: Final = "/usr/local/sbin:/usr/local/bin:/usr/sbin:/usr/bin:/sbin:/bin"
_BOOT: Final = """set -e
mount --make-rprivate /
mount -t tmpfs tmpfs "$1"
mkdir "$1/upper" "$1/work" "$1/root"
mount -t overlay overlay -o "lowerdir=/,upperdir=$1/upper,workdir=$1/work" "$1/root"
cd "$1/root"
mount -t proc proc proc
mount -t sysfs sysfs sys
mount -t cgroup2 cgroup2 sys/fs/cgroup
mount -t tmpfs -o mode=755 tmpfs run
mount -t tmpfs tmpfs tmp
mount -t tmpfs -o mode=755 tmpfs dev
mkdir dev/pts dev/shm
for device in null zero full random urandom tty; do touch dev/$device; mount --bind /dev/$device dev/$device; done
mount -t devpts -o newinstance,ptmxmode=0666 devpts dev/pts
ln -s pts/ptmx dev/ptmx
ln -s /proc/self/fd dev/fd
mount -t tmpfs tmpfs dev/shm
pivot_root . mnt
umount -l /mnt
exec env -i container=test PATH="$2" /lib/systemd/systemd --system --unit=basic.target --log-target=null --show-status=no
"""


class Machine:
    """The running machine. A context manager; the test is skipped where this is not possible."""

    def __init__(self, folder: Path) -> None:
        """`folder` exists, and is hidden by a file system while the machine runs."""
        self._folder = folder
        self._log = folder.with_suffix(".log")
        self._unshare: subprocess.Popen[bytes] | None = None
        self._init = 0

    def __enter__(self) -> Self:
        if os.geteuid() != 0 or not Path(SYSTEMD).exists() or shutil.which("unshare") is None:
            pytest.skip("systemd in namespaces needs root, systemd and unshare")
        spaces = ("--mount", "--pid", "--fork", "--ipc", "--uts", "--cgroup", "--kill-child")
        words = ["unshare", *spaces, "sh", "-c", _BOOT, "boot", str(self._folder), PATH]
        with self._log.open("wb") as log:
            self._unshare = subprocess.Popen(words, stdout=log, stderr=log)
        try:
            wait_for(self._booted, 60, "systemd")
        except BaseException:
            self.__exit__(None, None, None)
            raise
        return self

    def _booted(self) -> bool:
        assert self._unshare is not None
        if self._unshare.poll() is not None:
            pytest.skip(f"no systemd in namespaces: {self._log.read_text()}")
        children = Path(f"/proc/{self._unshare.pid}/task/{self._unshare.pid}/children").read_text().split()
        if not children or Path(f"/proc/{children[0]}/comm").read_text() != "systemd\n":
            return False
        self._init = int(children[0])
        return self.run("systemctl is-system-running", check=False).stdout.strip() in ("running", "degraded")

    def __exit__(
        self, kind: type[BaseException] | None, error: BaseException | None, trace: TracebackType | None
    ) -> None:
        if self._unshare is not None:
            self._unshare.kill()  # and with it process 1, and so all of the machine
            self._unshare.wait()

    def run(
        self, script: str, *, user: str = "root", check: bool = True, env: Mapping[str, str] | None = None
    ) -> subprocess.CompletedProcess[str]:
        """What a shell of `user` prints for `script`, with no variables but HOME, USER, PATH and `env`."""
        home = "/root" if user == "root" else f"/home/{user}"
        words = ["env", "-i", f"PATH={PATH}", f"HOME={home}", f"USER={user}"]
        words += [*(f"{key}={value}" for key, value in (env or {}).items()), "sh", "-ec", script]
        if user != "root":
            words = ["setpriv", f"--reuid={user}", f"--regid={user}", "--init-groups", *words]
        done = subprocess.run([*self._entered, *words], capture_output=True, text=True, timeout=900, check=False)
        if check:
            assert done.returncode == 0, f"{script}\n{done.stdout}\n{done.stderr}\n{self.journal()}"
        return done

    def write(self, path: str, content: bytes) -> None:
        """Make a file in the machine, and its folder."""
        script = f"mkdir -p $(dirname {path}); cat > {path}"
        subprocess.run([*self._entered, "sh", "-ec", script], input=content, check=True)

    @property
    def _entered(self) -> list[str]:
        """The beginning of a command that runs in the machine."""
        spaces = ("--mount", "--pid", "--ipc", "--uts", "--cgroup")
        return ["nsenter", f"--target={self._init}", *spaces, "--root", "--wd"]

    def journal(self) -> str:
        """The end of the machine's journal."""
        with contextlib.suppress(subprocess.TimeoutExpired):
            return self.run("journalctl --no-pager -n 40", check=False).stdout
        return ""
