"""Functions that an author wrote in Python: whatever one of them raises ends its step, and not Plait."""

from __future__ import annotations

from collections.abc import Callable

from plait.core.errors import PlaitError
from plait.core.hints import TypeVar
from plait.engine.outcome import Aborted, Failure, Interrupted, OutOfTime, StepError

T = TypeVar("T")


def by_author(call: Callable[[], T], what: str, mask: Callable[[str], str] = str) -> T:
    """What such a function gives; StepError if it raises."""
    try:
        return call()
    except (KeyboardInterrupt, Interrupted, OutOfTime, Aborted, StepError, PlaitError):
        raise
    except BaseException as error:
        raise StepError(Failure(mask(f"the {what} raised {type(error).__name__}: {error}"))) from error
