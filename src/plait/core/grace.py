"""The grace: the time between asking a process to end and forcing it.

One number applies everywhere: timeouts, Ctrl-C, the death of Plait, steps, tools, servers, `plait
sh`.
"""

from __future__ import annotations

import os

from plait.core.errors import InputError
from plait.core.hints import Final

GRACE: Final = 2.0
"""Seconds, unless the environment variable sets another number."""
VARIABLE: Final = "PLAIT_GRACE"
LONGEST: Final = 3600.0


def grace_seconds() -> float:
    """Return the seconds of grace; raise InputError if the variable does not hold such a number."""
    written = os.environ.get(VARIABLE, "")
    if not written:
        return GRACE
    try:
        seconds = float(written)
    except ValueError:
        seconds = -1.0
    if not 0 <= seconds <= LONGEST:  # NaN is refused, too
        raise InputError(
            f"the variable {VARIABLE} is not a number of seconds from 0 to {LONGEST:.0f}",
            fix=f"for example {VARIABLE}=10, or unset it: {GRACE:.0f} s",
            code="bad-grace",
        )
    return seconds
