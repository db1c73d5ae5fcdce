"""Results that only a run can know, as a dry run hands them on."""

from __future__ import annotations

from collections.abc import Mapping

from plait.core.hints import TYPE_CHECKING
from plait.core.values import NOT_KNOWN, Unknown

if TYPE_CHECKING:
    from plait.core.hints import Final
    from plait.core.values import Json


_UNSEEN: Final = "unseen"

UNSEEN: Final[dict[str, Json]] = {
    "output": "",
    "stderr": "",
    "exit_code": 0,
    "duration": 0.0,
    _UNSEEN: True,
}
"""The record of a step that is said to have done its work: nobody knows what it printed."""

UNKNOWN_RESULT: Final[Mapping[str, Json]] = dict.fromkeys(
    ("output", "stderr", "exit_code", "duration"), NOT_KNOWN
)
"""How a step ends that a dry run did not do."""


def is_unknown_result(ended: Mapping[str, Json]) -> bool:
    """Will only a run know how the step ends?"""
    return isinstance(ended.get("exit_code"), Unknown)
