"""Which recorded outcomes count when a run is resumed, and when the user has to be asked."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping

from plait.core.errors import InputError
from plait.core.hints import TYPE_CHECKING, Final, Protocol
from plait.core.records import dataclass, field, replace
from plait.engine.journal import StepRecord, record_number
from plait.engine.outcome import Failed
from plait.engine.paths import generic_path, is_below

if TYPE_CHECKING:
    from plait.core.hints import TypeAlias
    from plait.engine.outcome import Failure, Outcome
    from plait.engine.perform import StepContext
    from plait.engine.step import Step


def replay(step: Step, ctx: StepContext) -> Outcome | None:
    return None if ctx.run.is_first_run else ctx.run.find_recorded(step, ctx)


def replay_unless_failed(
    ctx: StepContext, name: str, is_in_vain: InVain = lambda *_: False
) -> StepContext:
    """The turn of a step from whose failure others follow: if they were in vain, it is tried again.

    `is_in_vain`: has it, which is done, been done in vain, given how what it is inside of has
    failed since?
    """
    journal = ctx.run.journal
    if ctx.run.is_first_run or not ctx.can_replay:
        return ctx
    known, end = journal.step(f"{ctx.path}/{name}"), journal.last_result(ctx.path)
    if (
        known is None
        or end is None
        or end.number < known.number
        or not isinstance(end.outcome, Failed)
    ):
        return ctx
    in_vain = isinstance(known.outcome, Failed) or is_in_vain(known, end.outcome.failure)
    return replace(ctx, can_replay=False) if in_vain else ctx


InVain: TypeAlias = "Callable[[StepRecord, Failure], bool]"


def can_continue_after(failure: Failure, path: str) -> bool:
    """Has something inside the step at a path failed, or had it no time left for more?"""
    return is_below(failure.path, path) or failure.kind == "timeout"


QUESTION_CODES: Final = frozenset({"once", "changed"})
"""Codes of errors that ask the user something: no outcome of a step, and a resumed run asks again.
"""


def changed_steps_error(steps: Iterable[tuple[str, str]]) -> InputError:
    named = [f"{path} ({title})" for path, title in steps]
    return InputError(
        "the file has changed since these steps were done: " + ", ".join(named[:20]),
        fix="plait resume --accept-changes does them again, and all that follows them; "
        "or put the file back as it was",
        code="changed",
    )


ITEMS_STEP: Final = "items"
"""The name, and the kind, of the step that chooses the items of a map."""


class RecordedLookup(Protocol):
    def step(self, path: str) -> StepRecord | None: ...


def items_selected_at(journal: RecordedLookup, fan: str, chooser: str = ITEMS_STEP) -> int:
    """The event with which the items of a fan were chosen; 0 if nothing is known of that."""
    return record_number(journal.step(f"{fan}/{chooser}"))


@dataclass(frozen=True, slots=True)
class RetriedItems:
    """Whatever is not in these items stays as it was done, also if its text was another one
    then.
    """

    items: frozenset[str] = frozenset()
    """Their paths, and that of the map; none: nothing was ever retried."""
    held: Mapping[str, str] = field(default_factory=dict)
    """By paths of the flow: the texts of its steps then, as fingerprints."""

    def keeps(self, path: str, fingerprint: str) -> bool:
        """Is what was done at a path not done again for its text, which is this one now?"""
        if not self.items or "/".join(path.split("/", 2)[:2]) in self.items:
            return False
        return self.held.get(generic_path(path)) == fingerprint


NOT_RETRIED: Final = RetriedItems()
