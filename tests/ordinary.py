"""Tests of what a file system forbids: root may do everything, so for root they run in a thread without these powers.

Linux keeps the powers of root for each thread, and what a thread starts has no more than the thread: the
test shares its fixtures with those beside it, and no second pytest has to begin.
"""

from __future__ import annotations

import ctypes
import functools
import os
import tempfile
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor

import pytest

POWERS = (1, 2, 3)
"""CAP_DAC_OVERRIDE, CAP_DAC_READ_SEARCH and CAP_FOWNER: to read, write and change files of other users."""
DROP_FOR_CHILDREN = 24  # PR_CAPBSET_DROP
VERSION_3 = 0x20080522  # of the records that capget and capset take


def by_ordinary_user(test: Callable[..., None]) -> Callable[..., None]:
    """Run a test as a user for whom file permissions count."""

    @functools.wraps(test)
    def either(**fixtures: object) -> None:
        if not _is_almighty():
            test(**fixtures)
            return
        with ThreadPoolExecutor(1, initializer=_become_ordinary) as thread:
            thread.submit(_ordinary, test, fixtures).result()

    return either


def _ordinary(test: Callable[..., None], fixtures: dict[str, object]) -> None:
    if _is_almighty():
        pytest.skip("root may read everything, and this one may not give that up")
    test(**fixtures)


def _become_ordinary() -> None:
    """Drop the powers of this thread for good: each thread has its own."""
    libc = ctypes.CDLL(None)
    for power in POWERS:
        libc.prctl(DROP_FOR_CHILDREN, power, 0, 0, 0)
    who = (ctypes.c_uint32 * 2)(VERSION_3, 0)  # 0: who calls
    powers = (
        ctypes.c_uint32 * 6
    )()  # effective, permitted, inheritable; then the same for those above 31
    libc.capget(who, powers)
    for place in range(3):
        powers[place] &= ~sum(1 << power for power in POWERS)
    libc.capset(who, powers)


def _is_almighty() -> bool:
    with tempfile.TemporaryDirectory() as folder:
        os.chmod(folder, 0)
        return os.access(folder, os.R_OK)
