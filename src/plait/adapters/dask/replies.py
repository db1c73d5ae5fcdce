"""All that comes back from workers comes through here, and has no secret in it afterwards.

A worker masks all secrets before a step sees them.  What is made there by Dask, or by a part of a worker that
knows nothing of the run, is masked here; so is a secret that the run has learnt since it sent the parcel.

What is masked is what would be where the run is: texts, and the keys of data that a program gave.  Names
that Plait or the author gave stay as they are, even if a secret is written like one.
"""

from __future__ import annotations

import re
from collections.abc import Callable, Mapping

from plait.adapters.dask.protocol import Sealed
from plait.core.hints import Any, Final
from plait.core.masking import masked
from plait.core.records import dataclass, field_names, is_record, replace
from plait.core.values import Json
from plait.engine.event_bus import Mask
from plait.engine.outcome import Done, Failure, Skipped
from plait.template.program import FACTS

IDENTITIES: Final = frozenset(
    {"path", "kind", "fingerprint", "code", "status", "to", "unjudged", "run", "used"}
)
"""Fields that say which step, hook or kind it is, here as there: masked, they would say another."""
OURS: Final = frozenset({
    # how a step ended, and the facts beside what it captured
    "output", "stdout", "stderr", "exit_code", "success", "duration", "truncated", "cut", "misread",
    "output_file", "stderr_file", "output_lost", "stderr_lost", "captures", "changes", "facts",
    "status", "said", "count", "items",
    # a validation
    "completion", "completion_percentage", "implemented", "missing", "missing_count", "gaps",
    "attempt", "attempt_number", "raw_output",
    # a graph, its nodes and its calls
    "state", "steps", "errors", "error", "next", "edge", "assign", "tool", "kind", "failed",
    "total", "results",
})  # fmt: skip
"""Keys of what a step gives.  Any other may be one of a tool: some steps give its data as it is."""


@dataclass(frozen=True, slots=True)
class Raised:
    """What a worker, or Dask in its place, raised where there should have been an answer."""

    error: type[BaseException]
    said: str
    module: str | None = None
    """The one that could not be imported, if it was that."""

    def is_a(self, *types: type[BaseException]) -> bool:
        return issubclass(self.error, types)


def returned(value: Any, mask: Mask) -> Any:
    """The same without secrets; an error as what it says."""
    if isinstance(value, BaseException):
        value = Raised(type(value), str(value), getattr(value, "name", None))
    return value if mask is str else _masked(value, mask)


def _masked(value: Any, mask: Mask) -> Any:
    # By what it is made of and not by what it is: so no kind of reply, event or outcome can be forgotten.
    match value:
        case Done(ended):
            return Done(_ending(ended, mask))
        case Failure():
            message, output = _message(value.message, mask), _ending(value.output, mask)
            return replace(value, message=message, output=output)
        case Skipped(why):
            return Skipped(_message(why, mask))
        case Sealed():
            return Sealed("***")  # whoever has to know it has learnt it by now
        case tuple():
            return tuple(_masked(one, mask) for one in value)
    if is_record(value):
        others = [name for name in field_names(type(value)) if name not in IDENTITIES]
        return replace(value, **{name: _masked(getattr(value, name), mask) for name in others})
    return masked(value, mask)


def _ending(value: Json, mask: Mask) -> Json:
    """How a step ended."""
    return _ours(value, mask, _part) if isinstance(value, Mapping) else _masked(value, mask)


def _part(name: str, value: Json, mask: Mask) -> Json:
    match name, value:
        case "cut", Mapping():
            return _ours(value, mask)
        case "captures", Mapping():
            return {name: _captured(name, one, mask) for name, one in value.items()}
    return masked(value, mask)


def _captured(name: str, value: Json, mask: Mask) -> Json:
    is_ours = name == "validation" or name.endswith(FACTS)
    return _ours(value, mask) if is_ours and isinstance(value, Mapping) else masked(value, mask)


def _data(_: str, value: Json, mask: Mask) -> Json:
    return masked(value, mask)


def _ours(
    value: Mapping[str, Json], mask: Mask, part: Callable[[str, Json, Mask], Json] = _data
) -> dict[str, Json]:
    """A map whose keys we know; `part` masks what is at each."""
    return {(name if name in OURS else mask(name)): part(name, one, mask) for name, one in value.items()}


_HOW: Final = re.compile(r"(?:exit code -?\d{1,3}|ended by signal \d{1,2})(?=: |$)")


def _message(text: str, mask: Mask) -> str:
    """How a process ended is for us to say; what follows are its own words."""
    how = _HOW.match(text)
    return mask(text) if how is None else how[0] + mask(text[how.end() :])
