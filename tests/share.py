"""How much of a long proof runs: a share of it in `make test`, all of it in `make crash` and `make fuzz`.

Those set PLAIT_WHOLE and run what is marked `share`; `make fuzz` also what hypothesis thinks up.
PLAIT_SMOKE asks for a share of everything: `tests/interpreters.py` sets it for versions of Python between the
oldest and the newest.
"""

from __future__ import annotations

import os

WHOLE = "PLAIT_WHOLE" in os.environ
SMOKE = 8 if "PLAIT_SMOKE" in os.environ else 1
"""Of so many tests, in the order of their files, one runs."""


def every(number: int) -> int:
    """The step from one case to the next: of so many cases one runs, or each if the whole is asked for."""
    return 1 if WHOLE else number


def examples(whole: int) -> int:
    """Of a property: a quarter of them runs in `make test`."""
    return whole if WHOLE else max(whole // 4, 1)
