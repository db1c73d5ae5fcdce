"""Calls that may never come back: a thread makes them, and who wants the answer waits as long as it likes.

A thread that nobody waits for any more ends when its call does; it keeps no process alive.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

from plait.core.hints import Any, Final

LOOK: Final = 0.05
"""Seconds between two looks whether something else has to be done first."""


class NoAnswer(Exception):
    """Nothing came back in time."""


class GaveWay(Exception):
    """Something else has to be done first."""


def _never() -> bool:
    return False


class Call:
    """One call under way."""

    def __init__(self, function: Callable[[], Any]) -> None:
        self._function = function
        self._over = threading.Event()
        self.value: Any = None
        """What came back, once it is over …"""
        self.error: BaseException | None = None
        """… or what was raised."""
        threading.Thread(target=self._make, name="plait-call", daemon=True).start()

    def _make(self) -> None:
        try:
            self.value = self._function()
        except BaseException as error:  # `answer` raises it, in the thread that can do something about it
            self.error = error
        self._over.set()

    def is_over(self, seconds: float = 0.0, *, gives_way: Callable[[], bool] = _never) -> bool:
        """Has it ended, now or in so many seconds?"""
        until = time.monotonic() + seconds
        while (left := until - time.monotonic()) > 0 and not self._over.wait(min(LOOK, left)):
            if gives_way():
                break
        return self._over.is_set()

    def answer(self, seconds: float, *, gives_way: Callable[[], bool] = _never) -> Any:
        """What came back, or it raises what was raised; to be asked again if nothing was there yet."""
        if not self.is_over(seconds, gives_way=gives_way):
            raise GaveWay if gives_way() else NoAnswer
        if self.error is not None:
            raise self.error
        return self.value
