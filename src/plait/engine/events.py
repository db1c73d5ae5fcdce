"""What happened in a run.  Journal, progress bar, JSON output and tests read events and nothing
else.

Order is that of the journal; `at` is the wall clock, for people only.
"""

from __future__ import annotations

from collections.abc import Mapping

from plait.core.hints import Final, Literal, TypeAlias
from plait.core.records import dataclass, field
from plait.core.values import Json
from plait.engine.outcome import Failure, Outcome

Status: TypeAlias = Literal["running", "done", "failed", "interrupted"]
Usage: TypeAlias = Mapping[str, float]
"""What was used up: `turns`, `tokens`, `spend`, `steps`; and how many of the tokens are
`estimated`.
"""


@dataclass(frozen=True, slots=True)
class RunStarted:
    """An engine has begun to work on the run, for the first time or again."""

    run: str
    flow: str
    file: str
    project: str
    resumed: bool = False
    phases: tuple[tuple[str, int], ...] = ()
    """The parts of the flow in order, each with the number of its steps: what a view draws at the
    start.
    """


@dataclass(frozen=True, slots=True)
class StepStarted:
    path: str
    kind: str
    """phase, fan, item, shell, tool, …: for people; nothing depends on it."""
    title: str
    """What a person recognises the step by: its name, an item's name, or its command; secrets
    masked.
    """
    attempt: int = 1
    order: int = 0
    """The place among its siblings, from 0: an item's index."""


@dataclass(frozen=True, slots=True)
class StepRetrying:
    path: str
    attempt: int
    """The one that failed."""
    failure: Failure
    delay: float
    of: int = 0
    """How many attempts there may be in all; 0 if that was not recorded."""
    used: Usage | None = None
    """What that attempt itself has used up, as with an end."""


@dataclass(frozen=True, slots=True)
class StepRenamed:
    """A step that has begun shows what it does with its values put in.

    For those who watch: it is not recorded, and the end of the step has the same title.
    """

    path: str
    title: str


@dataclass(frozen=True, slots=True)
class ModelText:
    """A piece of what a model says, as it comes; secrets masked.

    For those who watch: it is not recorded, and the end of the step has the whole answer.
    """

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class PendingHooks:
    """Who is to hear of the end of a step: recorded with it, before any of them is told."""

    to: tuple[str, ...]
    """The names of hooks."""
    variables: Mapping[str, Json] = field(repr=False)
    """What nobody could say later: beside the result, the item, and what is the same in all of the
    run.
    """
    unjudged: tuple[str, ...] = ()
    """Those of them, gates all, of whose conditions nobody could say whether they hold."""


@dataclass(frozen=True, slots=True)
class StepFinished:
    path: str
    kind: str
    title: str
    fingerprint: str
    outcome: Outcome
    duration: float
    order: int = 0
    replayed: bool = False
    """It was finished in an earlier life of the run; such an event is shown and not recorded again.
    """
    used: Usage | None = None
    """What the step itself has used up since the last event of its path, without those inside it.

    It is what was taken from the budgets around it, so whoever adds these up knows what is left.
    """
    pending: PendingHooks | None = None
    """The hooks that are to hear of it; who has no later end of its own has not heard."""


@dataclass(frozen=True, slots=True)
class ItemsCounted:
    """A fan knows how many items it has."""

    path: str
    total: int


@dataclass(frozen=True, slots=True)
class ItemsReplayed:
    """Many items of a fan were done in an earlier life of the run: what a `replayed` end says of
    each.

    For those who watch: it is not recorded.
    """

    path: str
    done: bytes = field(repr=False)
    """By order: 1 for each of them."""


@dataclass(frozen=True, slots=True)
class EarlierUsage:
    """What earlier lives of the run have used up, by part; what is `replayed` is in it.

    For those who watch: it is not recorded.
    """

    parts: Mapping[str, Usage]


RETRY_REASON: Final = "retried"
"""Why the outcome of an item that `plait retry` runs again is invalidated."""


@dataclass(frozen=True, slots=True)
class StepInvalidated:
    """What was recorded at this path (and below it) counts no longer: it is to be done again."""

    path: str
    why: str
    below: bool = True


@dataclass(frozen=True, slots=True)
class Note:
    """Something that a person should know, and that is no failure."""

    path: str
    message: str
    warning: bool = False
    """It may well be a mistake: it is said again at the end of the run."""


@dataclass(frozen=True, slots=True)
class RunEnded:
    status: Status
    failure: Failure | None = None
    value: Json = None
    facts: dict[str, Json] = field(default_factory=dict)


Event: TypeAlias = (
    RunStarted
    | StepStarted
    | StepRenamed
    | ModelText
    | StepRetrying
    | StepFinished
    | ItemsCounted
    | ItemsReplayed
    | EarlierUsage
    | StepInvalidated
    | Note
    | RunEnded
)


@dataclass(frozen=True, slots=True)
class EventRecord:
    """An event, its place in the journal, and the wall clock when it was recorded."""

    number: int
    at: float
    event: Event
