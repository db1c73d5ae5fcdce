"""Unknown results: what a dry run uses for values that only a run can know."""

from __future__ import annotations

from collections.abc import Mapping

from plait.core.hints import TYPE_CHECKING
from plait.core.values import NOT_KNOWN, Unknown

if TYPE_CHECKING:
    from plait.core.hints import Final
    from plait.core.values import Json


_MARKED_DONE: Final = "unseen"

MARKED_DONE_RESULT: Final[dict[str, Json]] = {
    "output": "",
    "stderr": "",
    "exit_code": 0,
    "duration": 0.0,
    _MARKED_DONE: True,
}
"""The value of a step that the user marked as done: its output is not known."""

UNKNOWN_RESULT: Final[Mapping[str, Json]] = dict.fromkeys(
    ("output", "stderr", "exit_code", "duration"), NOT_KNOWN
)
"""The value of a step in a dry run."""


def is_marked_done(result: Mapping[str, Json]) -> bool:
    """Is it the value of a step that the user marked as done?"""
    return _MARKED_DONE in result


def is_unknown_result(result: Mapping[str, Json]) -> bool:
    return isinstance(result.get("exit_code"), Unknown)
