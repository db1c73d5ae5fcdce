"""All that comes back from workers comes through here, and has no secret in it afterwards.

A worker masks the secrets that it was sent.  One that was not sent may be known there all the same, from a
file or the worker's own environment: only where the run is can be seen that it is one.
"""

from __future__ import annotations

from plait.engine.run import Mask
from plait.hints import Any, Final
from plait.masking import masked
from plait.records import dataclass, field_names, is_record, replace

IDENTITIES: Final = frozenset({"path", "kind", "fingerprint", "code", "status", "to", "unjudged", "run"})
"""Fields that say which step, hook or kind it is, here as there: masked, they would say another."""


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
    if is_record(value):
        others = [name for name in field_names(type(value)) if name not in IDENTITIES]
        return replace(value, **{name: _masked(getattr(value, name), mask) for name in others})
    if isinstance(value, tuple):
        return tuple(_masked(one, mask) for one in value)
    return masked(value, mask)
