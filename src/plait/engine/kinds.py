"""What is special about kinds of steps and of failures: one table each.

A new kind of step needs a row here only if it differs from the defaults.  What it always needs: an
action in `program/actions/`, its word in `ACTION_FIELDS` (`schema/shared.py`), its fields in
`schema/step_tables.py`, and a case in `build_action` (`lang/workflow/actions.py`).
"""

from __future__ import annotations

from plait.core.hints import TYPE_CHECKING, Literal
from plait.core.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plait.core.hints import Final


@dataclass(frozen=True, slots=True)
class StepKind:
    """What all steps of a kind have in common; the journal records the name."""

    name: str
    events: Literal["step", "item", ""] = "step"
    """The hook events that it causes: `step_started`, `item_failed`, …; none: the author did not
    write it as a step, and only the steps inside it cause events.
    """
    only_holds_steps: bool = False
    """It performs other steps, or finds their items; its value is made of theirs."""
    asks_model: bool = False
    """It asks a model, and its value names the model."""
    noun: str = "step"
    """The word for one of its parts."""


_ROWS: Final = (
    #        name          events  only_holds_steps  asks_model  noun
    StepKind("phase",      "",     True),
    StepKind("map",        "",     True,             noun="item"),
    StepKind("items",      "",     True),
    StepKind("item",       "item", True),
    StepKind("loop",       "",     True,             noun="round"),
    StepKind("round",      "",     True,             noun="task"),
    StepKind("handler",    "",     True),
    StepKind("attempt",    ""),
    StepKind("block",      ""),
    StepKind("check",      ""),
    StepKind("snapshot",   ""),
    StepKind("graph",      "",     noun="visit"),
    StepKind("ensemble",   "",     noun="task"),
    StepKind("hook",       ""),
    StepKind("prompt",     asks_model=True),
    StepKind("agent",      asks_model=True),
)  # fmt: skip
STEP_KINDS: Final = {row.name: row for row in _ROWS}
"""The kinds that differ from the defaults."""


def step_kind(name: str) -> StepKind:
    return STEP_KINDS.get(name) or StepKind(name)


@dataclass(frozen=True, slots=True)
class FailureKind:
    name: str
    retriable: bool = True
    """`retry_on` may name it; any other word there is searched in the message."""
    transient: bool = False
    """Another attempt may succeed: `error.retryable` for hooks."""
    answers: bool = False
    """A check that fails so has given its answer."""
    by_plait: bool = False
    """Plait writes its message; otherwise a program does."""
    quotes: bool = False
    """Its message may quote what it speaks of: a parameter, an answer, an output."""


FAILURE_KINDS: Final = (
    #           name             retriable  transient  answers  by_plait
    FailureKind("exit",          answers=True),
    FailureKind("signal",        transient=True),
    FailureKind("timeout",       transient=True, by_plait=True),
    FailureKind("network",       transient=True, by_plait=True),
    FailureKind("server_error",  transient=True),
    FailureKind("rate_limit",    transient=True),
    FailureKind("incomplete",    answers=True, by_plait=True, quotes=True),
    FailureKind("refused",       by_plait=True, quotes=True),
    FailureKind("bad_answer",    by_plait=True, quotes=True),
    FailureKind("failed",        answers=True),
    FailureKind("limit",         False),
    FailureKind("too_many",      False,     by_plait=True),
    FailureKind("all_failed",    False,     by_plait=True),
    FailureKind("some_failed",   False,     by_plait=True),
    FailureKind("aborted",       False),
    FailureKind("stopped",       False,     by_plait=True),
    FailureKind("capture",       False,     by_plait=True),
    FailureKind("trust",         False),
    FailureKind("empty",         False,     by_plait=True),
    FailureKind("length",        False,     by_plait=True),
    FailureKind("tools",         False,     by_plait=True),
    FailureKind("conflict",      False,     by_plait=True),
    FailureKind("worker",        False,     by_plait=True),
    FailureKind("skipped",       False),
    FailureKind("hook_decision", False),
)  # fmt: skip


def failure_kinds(
    quality: Literal["retriable", "transient", "answers", "by_plait", "quotes"],
) -> Iterator[str]:
    """The names of the kinds of failure with a quality, in the order of the table."""
    return (kind.name for kind in FAILURE_KINDS if getattr(kind, quality))
