"""The cancel signal for the work of the current thread.

A function that is a tool calls `plait.sh` and does not know the run or the client around it. The
processes that it starts end when the run or client is cancelled.
"""

from __future__ import annotations

from _thread import _local
from collections.abc import Iterator
from contextlib import contextmanager

from plait.core.hints import TYPE_CHECKING

if TYPE_CHECKING:
    from plait.adapters.process.process_spec import Cancel


class _Thread(_local):
    cancel: Cancel | None = None


_THREAD = _Thread()


def current_cancel() -> Cancel | None:
    return _THREAD.cancel


@contextmanager
def cancelled_by(cancel: Cancel) -> Iterator[None]:
    """Inside this, processes that this thread starts end when `cancel` is set."""
    _THREAD.cancel = cancel
    try:
        yield
    finally:
        _THREAD.cancel = None
