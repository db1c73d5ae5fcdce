"""TODO: say what this is."""

from __future__ import annotations

from collections.abc import Iterator, Sequence

from plait.core.hints import TYPE_CHECKING, Literal, Protocol
from plait.core.records import dataclass
from plait.engine.retry import ONCE_ONLY

if TYPE_CHECKING:
    from plait.core.hints import TypeAlias
    from plait.core.values import Json
    from plait.engine.perform import Turn
    from plait.engine.retry import Retry


class Step(Protocol):
    """Anything with a name that can be run; its value is JSON, so that replay equals live."""

    @property
    def name(self) -> str:
        """Its place in a path; one of its kind among its siblings."""

    @property
    def kind(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def fingerprint(self) -> str:
        """Digest of what its author wrote, all that is inside included."""

    @property
    def policy(self) -> Policy: ...

    @property
    def inner(self) -> Sequence[Step]:
        """The steps that it performs; their changes are theirs, not its own."""

    def run(self, turn: Turn) -> Json:
        """Its value; raises StepError if it failed, Skip if there was nothing to do."""


GoesOn: TypeAlias = Literal["inner", "always"]
"""Does another attempt go on where the last one ended, if something inside failed, or whatever failed?
Without a word of the step all that is inside of it is done anew."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How `perform` treats a step."""

    retry: Retry = ONCE_ONLY
    timeout: float | None = None
    once: bool = False
    """Rather ask than do it a second time, when nobody knows whether the first was finished."""
    failure_is_final: bool = False
    """A recorded failure is remembered like a success: a dead letter, until somebody retries it."""
    failure_is_skipped: bool = False
    """A failure that is not tried again any more counts as if there had been nothing to do."""


PLAIN = Policy()


def inside(step: Step, path: str = "") -> Iterator[tuple[str, Step]]:
    """Every step of a flow that is known before it runs, with its path; an item's name is `item:*`."""
    here = f"{path}/{step.name}" if path else step.name
    yield here, step
    for inner in step.inner:
        yield from inside(inner, here)
