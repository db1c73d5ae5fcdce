"""How much of a long proof runs: a share of it in `make test`, all of it in `make crash` and `make fuzz`.

Both set PLAIT_WHOLE and run the tests marked `share`; `make fuzz` also runs the hypothesis tests.
PLAIT_SMOKE selects a share of all tests: `tests/interpreters.py` sets it for versions of Python between the
oldest and the newest.
"""

from __future__ import annotations

import os

WHOLE = "PLAIT_WHOLE" in os.environ
SMOKE = 8 if "PLAIT_SMOKE" in os.environ else 1
"""One of this many tests runs, in the order of their files."""


def every(number: int) -> int:
    """The step from one case to the next: one in `number` cases runs, or each with PLAIT_WHOLE."""
    return 1 if WHOLE else number


def examples(whole: int) -> int:
    """The number of examples of a property: a quarter of `whole` in `make test`."""
    return whole if WHOLE else max(whole // 4, 1)
