"""Starts a command with resource limits and in a sandbox: `python -I -S confine.py RULES COMMAND [ARGUMENT …]`.

The rules are set in a process of their own, which then becomes the command, because a worker has threads and no code of ours
may run between its fork and exec. This file is run by its path and imports nothing of aghbus.

The sandbox is Landlock (landlock(7)) and no_new_privs (PR_SET_NO_NEW_PRIVS(2const)). The C library has no functions for
Landlock, so its three system calls are made by number; the numbers are the same on all architectures that Python supports.
"""

from __future__ import annotations

import json
import os
import resource
import struct
import sys
from collections.abc import Iterable, Mapping, Sequence
from typing import Any

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
"""What every sandboxed command may write, besides its folder."""
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


def landlock_abi() -> int:
    """The version of Landlock that the kernel has; 0 when it has none, or when it is switched off."""
    return max(0, _call(_CREATE_RULESET, None, 0, _ABI_VERSION))


def launched(command: Sequence[str], limits: Mapping[str, int], paths: Mapping[str, Sequence[str]] | None) -> list[str]:
    """The command line that starts `command` with these limits and in a sandbox with the `read` and `write` paths (None: no
    sandbox)."""
    if not limits and paths is None:
        return list(command)
    rules = json.dumps({"limits": dict(limits), "sandbox": paths})
    return [sys.executable, "-I", "-S", os.path.abspath(__file__), rules, *command]  # noqa: PTH100 - pathlib is slow to load


def _limit(limits: Mapping[str, int]) -> None:
    for name, value in limits.items():
        most = resource.getrlimit(LIMITS[name])[1]
        bound = value if most == resource.RLIM_INFINITY else min(value, most)
        hard = bound + 1 if name == "cpu" and bound != most else bound  # first SIGXCPU, which tells the reason
        resource.setrlimit(LIMITS[name], (bound, hard))


def _restrict(read: Iterable[str], write: Iterable[str]) -> None:
    """Restrict this process for ever: the file system to these paths, its privileges to those that it has. Raises OSError."""
    attributes = struct.pack("=QQQ", _ALL, 0, _SCOPES)
    size = len(attributes) if landlock_abi() >= _SCOPED_ABI else 8
    ruleset = _checked(_call(_CREATE_RULESET, attributes, size, 0))
    for path, rights in [*((path, _READ) for path in read), *((path, _ALL) for path in write)]:
        _allow(ruleset, path, rights)
    _checked(_libc().prctl(_NO_NEW_PRIVS, 1, 0, 0, 0))
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
            _restrict(**wanted["sandbox"])
        os.execv(command[0], command)  # noqa: S606 - the operator's own argument list
    except OSError as error:
        sys.stderr.write(f"aghctl: the command cannot be started under its rules: {error}\n")
        sys.exit(FAILED)


if __name__ == "__main__":
    main(*sys.argv[1:])
