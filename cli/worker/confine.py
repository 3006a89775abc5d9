"""Starts a command with resource limits and in a sandbox: `python -I -S confine.py RULES COMMAND [ARGUMENT …]`.

The rules are set in a process of their own, which then becomes the command, because a worker has threads and no code of ours
may run between its fork and exec. This file is run by its path and imports nothing of aghbus.

The sandbox is bubblewrap (bwrap(1)): a mount, process and user namespace with the given paths only. Where it does not work, it
is Landlock (landlock(7)). Both have no_new_privs (PR_SET_NO_NEW_PRIVS(2const)) and no capabilities. The C library has no functions
for Landlock, so its three system calls are made by number; the numbers are the same on all architectures that Python supports.
"""

from __future__ import annotations

import json
import os
import resource
import struct
import sys
from collections.abc import Mapping, Sequence
from typing import Any, NamedTuple

LIMITS = {
    "cpu": resource.RLIMIT_CPU,
    "memory": resource.RLIMIT_AS,
    "files": resource.RLIMIT_NOFILE,
    "file-size": resource.RLIMIT_FSIZE,
}
"""Names of limits, each for one process: seconds of CPU, bytes of address space, open files, bytes of one written file."""
READABLE = (
    *("/bin", "/sbin", "/lib", "/lib32", "/lib64", "/usr", "/opt", "/nix/store"),
    *("/etc", "/run/systemd/resolve", "/proc", "/sys/devices/system/cpu"),
    *("/dev/null", "/dev/zero", "/dev/full", "/dev/random", "/dev/urandom"),
)
"""What every sandboxed command may read and execute, as far as it exists."""
WRITABLE = ("/dev/null", "/dev/zero", "/dev/full")
"""What every sandboxed command may write."""
LEAST_ABI = 3
"""Of Landlock (Linux 6.2): earlier ones let a command truncate any file."""
FAILED = 126
"""The exit code when the rules cannot be set or the command cannot be started."""

_CREATE_RULESET, _ADD_RULE, _RESTRICT_SELF = 444, 445, 446
_ABI_VERSION = 1  # LANDLOCK_CREATE_RULESET_VERSION
_BENEATH = 1  # LANDLOCK_RULE_PATH_BENEATH
_NO_NEW_PRIVS = 38
_EXECUTE, _WRITE_FILE, _READ_FILE, _READ_DIRECTORY, _TRUNCATE = 1 << 0, 1 << 1, 1 << 2, 1 << 3, 1 << 14
_READ = _EXECUTE | _READ_FILE | _READ_DIRECTORY
_ALL = (1 << 15) - 1  # every right of ABI 3
_OF_FILES = _EXECUTE | _WRITE_FILE | _READ_FILE | _TRUNCATE
_SCOPED_ABI = 6
_SCOPES = 0b11  # no signals and no abstract Unix sockets of processes outside
_CAPABILITIES_HEADER = struct.pack("=Ii", 0x20080522, 0)  # version 3, of this process
_NO_CAPABILITIES = bytes(24)
_NAMESPACES = (
    *("--unshare-user", "--unshare-pid", "--unshare-ipc"),
    *("--new-session", "--die-with-parent", "--cap-drop", "ALL"),
)
_LINKS = (("fd", "fd"), ("fd/0", "stdin"), ("fd/1", "stdout"), ("fd/2", "stderr"))
_PROBE = ("/bin/sh", "-c", ":")
_PROBE_SECONDS = 20.0


class Sandbox(NamedTuple):
    """The paths that a command may read, and those that it may write, besides READABLE and WRITABLE.

    `bubblewrap` is the path of bwrap; empty: the sandbox is Landlock. `warning` says what this sandbox lets through.
    """

    read: tuple[str, ...]
    write: tuple[str, ...]
    bubblewrap: str = ""
    warning: str = ""

    @property
    def name(self) -> str:
        """The name of the sandbox for an operator."""
        return "bubblewrap" if self.bubblewrap else "landlock"

    def problem(self, cwd: str) -> str:
        """Why no command can be started in this sandbox and folder; empty if one can, which is tried. Blocks."""
        import subprocess

        line = launched(_PROBE, {}, self)
        try:
            done = subprocess.run(  # noqa: S603 - no part of it comes from a peer
                line,
                cwd=cwd,
                env={},
                stdin=subprocess.DEVNULL,
                capture_output=True,
                timeout=_PROBE_SECONDS,
                check=False,
            )
        except (OSError, subprocess.TimeoutExpired) as error:
            return str(error)
        said = done.stderr.decode("utf-8", "replace").strip().rpartition("\n")[2]
        return "" if done.returncode == 0 else said or f"exit code {done.returncode}"


def landlock_abi() -> int:
    """The version of Landlock that the kernel has; 0 when it has none, or when it is switched off."""
    return max(0, _call(_CREATE_RULESET, None, 0, _ABI_VERSION))


def launched(command: Sequence[str], limits: Mapping[str, int], sandbox: Sandbox | None) -> list[str]:
    """The command line that starts `command` with these limits and in the sandbox, if any."""
    if not limits and sandbox is None:
        return list(command)
    wanted: dict[str, Any] = {"limits": dict(limits), "sandbox": None}
    if sandbox is not None:
        system = filter(os.path.exists, READABLE)
        paths = {"read": (*system, *sandbox.read), "write": (*WRITABLE, *sandbox.write)}
        wanted["sandbox"] = {**paths, "bubblewrap": sandbox.bubblewrap}
    rules = json.dumps(wanted)
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), rules, *command]  # noqa: PTH100 - pathlib is slow to load


def _limit(limits: Mapping[str, int]) -> None:
    for name, value in limits.items():
        most = resource.getrlimit(LIMITS[name])[1]
        bound = value if most == resource.RLIM_INFINITY else min(value, most)
        hard = bound + 1 if name == "cpu" and bound != most else bound  # first SIGXCPU, which tells the reason
        resource.setrlimit(LIMITS[name], (bound, hard))


def _confine(command: Sequence[str], read: Sequence[str], write: Sequence[str], bubblewrap: str) -> Sequence[str]:
    """Restrict this process for ever; the command line that it is to become. Raises OSError."""
    if bubblewrap:
        _restrict([])
        return (bubblewrap, *_NAMESPACES, *_mounts(read, write), "--chdir", os.getcwd(), "--", *command)  # noqa: PTH109 - as above
    _restrict([*((path, _READ) for path in read), *((path, _ALL) for path in write)])
    _checked(_libc().capset(_CAPABILITIES_HEADER, _NO_CAPABILITIES))
    return command


def _mounts(read: Sequence[str], write: Sequence[str]) -> list[str]:
    """The options of bwrap for a file system with these paths only. A later mount hides an earlier one, so writable paths
    and devices come last, and a folder after the files in it, which may be there as links."""
    words = ["--proc", "/proc"]
    for target, name in _LINKS:
        words += ["--symlink", f"/proc/self/{target}", f"/dev/{name}"]
    plain = [path for path in read if os.path.isdir(path) or os.path.isfile(path)]  # noqa: PTH112, PTH113 - as above
    special = [path for path in read if path not in plain]
    for path in sorted(plain, reverse=True):
        words += ["--ro-bind", path, path] if path != "/proc" else []
    for path in (*special, *write):
        words += ["--dev-bind", path, path]
    return [*words, "--remount-ro", "/proc", "--remount-ro", "/"]


def _restrict(rules: Sequence[tuple[str, int]]) -> None:
    """Forbid new privileges, and with Landlock everything outside: other files than those of `rules` (none: no rule for files),
    which are paths and rights, and, where it can, signals and abstract sockets. Raises OSError."""
    _checked(_libc().prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))
    scopes = _SCOPES if landlock_abi() >= _SCOPED_ABI else 0
    if not rules and not scopes:
        return
    attributes = struct.pack("=QQQ", _ALL if rules else 0, 0, scopes)
    ruleset = _checked(_call(_CREATE_RULESET, attributes, len(attributes) if scopes else 8, 0))
    for path, rights in rules:
        _allow(ruleset, path, rights)
    _checked(_call(_RESTRICT_SELF, ruleset, 0))
    os.close(ruleset)


def _allow(ruleset: int, path: str, rights: int) -> None:
    handle = os.open(path, os.O_PATH | os.O_CLOEXEC)
    if not os.path.isdir(path):  # noqa: PTH112 - as above
        rights &= _OF_FILES
    _checked(_call(_ADD_RULE, ruleset, _BENEATH, struct.pack("=Qi", rights, handle), 0))
    os.close(handle)


def _call(number: int, *arguments: int | bytes | None) -> int:
    from ctypes import c_long

    return int(_libc().syscall(*(c_long(one) if isinstance(one, int) else one for one in (number, *arguments))))


def _libc() -> Any:  # a ctypes.CDLL; ctypes is imported only where it is used
    from ctypes import CDLL

    return CDLL(None, use_errno=True)


def _checked(result: int) -> int:
    if result < 0:
        from ctypes import get_errno

        raise OSError(get_errno(), os.strerror(get_errno()))
    return result


def main(rules: str, *command: str) -> None:
    """Become the command under the rules; exits with FAILED if that is not possible."""
    wanted = json.loads(rules)
    try:
        _limit(wanted["limits"])
        if wanted["sandbox"] is not None:
            command = tuple(_confine(command, **wanted["sandbox"]))
        os.execv(command[0], command)  # noqa: S606 - the operator's own argument list
    except OSError as error:
        sys.stderr.write(f"aghctl: the command cannot be started under its rules: {error}\n")
        sys.exit(FAILED)


if __name__ == "__main__":
    main(*sys.argv[1:])
