"""User and groups of the process at the other end of a Unix socket, as the kernel reports them (SO_PEERCRED, LOCAL_PEERCRED).

The mode of the socket's file already keeps other users out. This check holds where the mode does not: after a chmod, or
on a file system that does not enforce it.
"""

import os
import socket
import struct
from typing import Final

ROOT: Final = 0
"""Uid of root, who can read our store and memory anyway."""

_UCRED: Final = struct.Struct("=iII")  # Linux, unix(7): pid, uid, gid
_XUCRED_HEAD: Final = struct.Struct("=II")  # macOS and the BSDs, unix(4): version of the structure, effective uid
_XUCRED_BYTES: Final = 76  # macOS: the head, a count and sixteen group ids
_XUCRED_VERSION: Final = 0
_SO_PEERGROUPS: Final = 59  # Linux 4.13, asm-generic/socket.h
_MOST_GROUPS: Final = 256  # what getsockopt of Python can return; a process in more of them is in none here
_GID: Final = struct.Struct("=I")
_SOL_LOCAL: Final = 0  # macOS sys/un.h
_LOCAL_PEERCRED: Final = 1


def peer_uid(sock: socket.socket) -> int | None:
    """The uid that connected `sock`; None where the system does not report it."""
    try:
        if hasattr(socket, "SO_PEERCRED"):
            return uid_of_ucred(sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size))
        return uid_of_xucred(sock.getsockopt(_SOL_LOCAL, _LOCAL_PEERCRED, _XUCRED_BYTES))
    except OSError:  # it is gone already, or the option is unknown here
        return None


def is_ours(uid: int | None) -> bool:
    """Whether this uid may use the socket: the daemon's own and root may, an unknown one (None) may not."""
    return uid is not None and uid in (os.geteuid(), ROOT)


def peer_groups(sock: socket.socket) -> frozenset[int]:
    """The group ids of the process that connected `sock`, supplementary ones included; none where the system is not Linux."""
    try:
        ucred = sock.getsockopt(socket.SOL_SOCKET, socket.SO_PEERCRED, _UCRED.size)
        others = sock.getsockopt(socket.SOL_SOCKET, _SO_PEERGROUPS, _MOST_GROUPS * _GID.size)
    except (AttributeError, OSError):
        return frozenset()
    return frozenset((_UCRED.unpack(ucred)[2], *(gid for (gid,) in _GID.iter_unpack(others))))


def uid_of_ucred(raw: bytes) -> int | None:
    """The uid in a Linux `struct ucred`; None when it is cut off."""
    if len(raw) < _UCRED.size:
        return None
    uid: int = _UCRED.unpack_from(raw)[1]
    return uid


def uid_of_xucred(raw: bytes) -> int | None:
    """The uid in a BSD `struct xucred`; None when it is cut off or of a version that we do not know."""
    if len(raw) < _XUCRED_HEAD.size:
        return None
    version, uid = _XUCRED_HEAD.unpack_from(raw)
    return uid if version == _XUCRED_VERSION else None
