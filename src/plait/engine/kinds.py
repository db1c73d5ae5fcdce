"""The kinds of steps and of failures, one table each."""

from __future__ import annotations

from plait.core.hints import TYPE_CHECKING, Literal
from plait.core.records import dataclass

if TYPE_CHECKING:
    from collections.abc import Iterator

    from plait.core.hints import Final


@dataclass(frozen=True, slots=True)
class StepKind:
    """What is the same for all steps of a kind; the name is what a journal records."""

    name: str
    events: Literal["step", "item", ""] = "step"
    """The hook events that it causes: `step_started`, `item_failed`, …; none: nobody wrote it as a
    step, and the steps inside it cause events.
    """
    only_holds_steps: bool = False
    """It performs other steps, or finds what they are done for; what it gives is made of theirs."""
    asks_model: bool = False
    """A model answers in it, and its value says which."""
    noun: str = "step"
    """What a part of it is called."""


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
"""The kinds with something special; every other kind is one that an author wrote."""


def step_kind(name: str) -> StepKind:
    return STEP_KINDS.get(name) or StepKind(name)


@dataclass(frozen=True, slots=True)
class FailureKind:
    name: str
    retriable: bool = True
    """`retry_on` may name it; anything else there is a pattern sought in the message."""
    transient: bool = False
    """The same may succeed a moment later: `error.retryable` for hooks."""
    answers: bool = False
    """A check that fails so has given its answer."""
    by_plait: bool = False
    """Plait writes its message; otherwise a program does."""


FAILURE_KINDS: Final = (
    #           name             retriable  transient  answers  by_plait
    FailureKind("exit",          answers=True),
    FailureKind("signal",        transient=True),
    FailureKind("timeout",       transient=True, by_plait=True),
    FailureKind("network",       transient=True, by_plait=True),
    FailureKind("server_error",  transient=True),
    FailureKind("rate_limit",    transient=True),
    FailureKind("incomplete",    answers=True, by_plait=True),
    FailureKind("refused",       by_plait=True),
    FailureKind("failed",        answers=True),
    FailureKind("limit",         False),
    FailureKind("too_many",      False,     by_plait=True),
    FailureKind("aborted",       False),
    FailureKind("stopped",       False,     by_plait=True),
    FailureKind("capture",       False,     by_plait=True),
    FailureKind("trust",         False),
    FailureKind("empty",         False,     by_plait=True),
)  # fmt: skip


def failure_kinds(
    quality: Literal["retriable", "transient", "answers", "by_plait"],
) -> Iterator[str]:
    """The names of the kinds of failure with a quality, in the order of the table."""
    return (kind.name for kind in FAILURE_KINDS if getattr(kind, quality))
