"""How long to wait between two attempts."""

from __future__ import annotations

from collections.abc import Iterator

from plait.core.hints import Literal, TypeAlias

Backoff: TypeAlias = Literal["fixed", "linear", "exponential", "fibonacci"]


def backoff_delays(
    backoff: Backoff,
    first: float,
    most: float,
    *,
    increment: float | None = None,
    base: float = 2.0,
) -> Iterator[float]:
    """Yield pauses in seconds without end, none longer than `most`.

    `increment` is the amount that "linear" adds, by default `first`; "exponential" multiplies
    by `base`.
    """
    delay, following = first, first
    while True:
        yield min(delay, most)
        match backoff:
            case "linear":
                delay += first if increment is None else increment
            case "exponential":
                delay = min(delay * base, most)
            case "fibonacci":
                delay, following = following, min(delay + following, most)
