"""How much of a long proof runs: a share of it in `make test`, all of it in `make crash` and `make fuzz`.

Those set PLAIT_WHOLE and run what is marked `share`; `make fuzz` also what hypothesis thinks up.
"""

from __future__ import annotations

import os

WHOLE = "PLAIT_WHOLE" in os.environ


def every(number: int) -> int:
    """The step from one case to the next: of so many cases one runs, or each if the whole is asked for."""
    return 1 if WHOLE else number


def examples(whole: int) -> int:
    """Of a property: a quarter of them runs in `make test`."""
    return whole if WHOLE else max(whole // 4, 1)
