"""Faults that the kernel itself answers with, for child processes to give themselves. Linux; no privileges needed."""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import resource
import struct
from pathlib import Path

_FSYNC = {"x86_64": 74, "aarch64": 82}

_LOAD_WORD, _JUMP_IF_EQUAL, _RETURN = 0x20, 0x15, 0x06
_ALLOW, _ERRNO = 0x7FFF0000, 0x00050000
_PR_SET_NO_NEW_PRIVS, _PR_SET_SECCOMP, _FILTER = 38, 22, 2


class _Program(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_char_p))


def fail_fsync(code: int = errno.ENOSPC) -> None:
    """From now on every ``fsync`` of this process and its children fails, as where space is only given out then.

    By a seccomp filter, which cannot be taken back.
    """
    instructions = [
        (_LOAD_WORD, 0, 0, 0),  # the number of the system call
        (_JUMP_IF_EQUAL, 0, 1, _FSYNC[platform.machine()]),
        (_RETURN, 0, 0, _ERRNO | code),
        (_RETURN, 0, 0, _ALLOW),
    ]
    program = _Program(len(instructions), b"".join(struct.pack("HBBI", *one) for one in instructions))
    libc = ctypes.CDLL(None, use_errno=True)
    for call in ((_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0), (_PR_SET_SECCOMP, _FILTER, ctypes.byref(program), 0, 0)):
        if libc.prctl(*call):
            raise OSError(ctypes.get_errno(), "prctl")


def limit_files(size: int | None) -> None:
    """No file of this process may grow beyond ``size`` bytes: writing fails with "File too large"; None: any size."""
    unlimited = resource.RLIM_INFINITY
    resource.setrlimit(resource.RLIMIT_FSIZE, (unlimited if size is None else size, unlimited))


_CLONE_NEWNS, _CLONE_NEWUSER = 0x20000, 0x10000000
_MS_REC, _MS_PRIVATE = 0x4000, 0x40000


def mount_small_disk(place: Path, size: int) -> None:
    """Mount a disk of ``size`` bytes that this process and its children alone see. Call it before threads begin.

    Raises:
        PermissionError: not permitted here, even in a namespace of our own.
    """
    libc = ctypes.CDLL(None, use_errno=True)

    def call(function: str, *arguments: object) -> None:
        if getattr(libc, function)(*arguments):
            raise PermissionError(ctypes.get_errno(), function)

    call("unshare", _CLONE_NEWNS if os.geteuid() == 0 else _CLONE_NEWNS | _CLONE_NEWUSER)
    call("mount", b"none", b"/", None, _MS_REC | _MS_PRIVATE, None)
    call("mount", b"none", bytes(place), b"tmpfs", 0, b"size=%d" % size)
