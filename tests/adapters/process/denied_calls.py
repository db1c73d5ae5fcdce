"""Runs a program on a kernel without some system calls: a seccomp filter refuses them.

    python denied_calls.py ENOSYS|EPERM|KILL CALL[,CALL] PROGRAM [ARGUMENT …]

`clone:CLONE_PARENT` is the call with that flag.
"""

from __future__ import annotations

import ctypes
import errno
import os
import platform
import struct
import sys
from collections.abc import Sequence

NUMBERS = {
    "x86_64": {
        "clone": 56, "signalfd4": 289, "epoll_create1": 291, "pidfd_send_signal": 424,
        "pidfd_open": 434, "clone3": 435, "close_range": 436,
    },
    "aarch64": {
        "clone": 220, "signalfd4": 74, "epoll_create1": 20, "pidfd_send_signal": 424,
        "pidfd_open": 434, "clone3": 435, "close_range": 436,
    },
}.get(platform.machine(), {})  # fmt: skip
"""Of system calls; empty on other machines."""
CLONE_FLAGS = {"CLONE_PARENT": 0x8000}

# From linux/seccomp.h and linux/bpf_common.h: load a word, jump if equal, jump if bits are set, return.
_LOAD, _EQUAL, _BITS, _RETURN = 0x20, 0x15, 0x45, 0x06
_NUMBER_AT, _FIRST_ARGUMENT_AT = 0, 16
_ALLOW, _KILL_PROCESS, _ERRNO = 0x7FFF0000, 0x80000000, 0x00050000
_PR_SET_SECCOMP, _PR_SET_NO_NEW_PRIVS, _MODE_FILTER = 22, 38, 2


class _Filter(ctypes.Structure):
    _fields_ = (("length", ctypes.c_ushort), ("instructions", ctypes.c_void_p))


def deny(calls: Sequence[str], how: str) -> None:
    """From now on, in this process and all that it starts."""
    answer = _KILL_PROCESS if how == "KILL" else _ERRNO | int(getattr(errno, how))
    code: list[tuple[int, int, int, int]] = []
    for call in calls:
        name, _, flag = call.partition(":")
        code.append((_LOAD, 0, 0, _NUMBER_AT))
        if flag:
            code.append((_EQUAL, 0, 3, NUMBERS[name]))
            code.append((_LOAD, 0, 0, _FIRST_ARGUMENT_AT))
            code.append((_BITS, 0, 1, CLONE_FLAGS[flag]))
        else:
            code.append((_EQUAL, 0, 1, NUMBERS[name]))
        code.append((_RETURN, 0, 0, answer))
    code.append((_RETURN, 0, 0, _ALLOW))
    text = ctypes.create_string_buffer(b"".join(struct.pack("=HBBI", *one) for one in code))
    program = _Filter(len(code), ctypes.addressof(text))
    prctl = ctypes.CDLL(None, use_errno=True).prctl
    for arguments in (
        (_PR_SET_NO_NEW_PRIVS, 1, 0, 0, 0),
        (_PR_SET_SECCOMP, _MODE_FILTER, ctypes.byref(program), 0, 0),
    ):
        if prctl(*arguments) != 0:
            sys.exit(f"no filter can be set: {os.strerror(ctypes.get_errno())}")


if __name__ == "__main__":
    deny(sys.argv[2].split(","), sys.argv[1])
    os.execvp(sys.argv[3], sys.argv[3:])
