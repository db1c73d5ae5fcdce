"""The events of a run: what the journal, views, JSON output and tests read, and nothing else.

Their order is that of the journal; `at` is the wall clock, for people only.
"""

from __future__ import annotations

from collections.abc import Mapping

from plait.core.hints import Final, Literal, TypeAlias
from plait.core.records import dataclass, field
from plait.core.values import Json
from plait.engine.outcome import Failure, Outcome

EVENTS_VERSION: Final = 1
"""The version of the events as JSON.  docs/versions.md says what may change without a new one."""

Status: TypeAlias = Literal["running", "done", "failed", "interrupted"]
Usage: TypeAlias = Mapping[str, float]
"""Amounts of `turns`, `tokens`, `spend` and `steps`; `estimated` is a part of the tokens."""


@dataclass(frozen=True, slots=True)
class RunStarted:
    """An attempt of the run has started: the first one, or a resume."""

    run: str
    flow: str
    file: str
    project: str
    resumed: bool = False
    phases: tuple[tuple[str, int], ...] = ()
    """The parts of the flow in order, each with the number of its steps, for views."""


@dataclass(frozen=True, slots=True)
class StepStarted:
    path: str
    kind: str
    """phase, map, item, shell, tool, …: see `engine/kinds.py`."""
    title: str
    """The step for people: its name, its item or its command; secrets masked."""
    attempt: int = 1
    order: int = 0
    """Its index among its siblings, from 0."""


@dataclass(frozen=True, slots=True)
class StepRetrying:
    path: str
    attempt: int
    """The attempt that failed."""
    failure: Failure
    delay: float
    of: int = 0
    """The number of attempts that the policy allows; 0: a hook decides."""
    used: Usage | None = None
    """What that attempt has used, without its children."""


@dataclass(frozen=True, slots=True)
class StepRenamed:
    """A running step has a new title, with its values filled in.

    It is for watchers and not recorded; the end of the step has the same title.
    """

    path: str
    title: str


@dataclass(frozen=True, slots=True)
class ModelText:
    """A piece of a model response as it arrives; secrets masked.

    It is for watchers and not recorded; the end of the step has the whole response.
    """

    path: str
    text: str


@dataclass(frozen=True, slots=True)
class StepOutput:
    """A piece of what a running step prints; secrets masked.

    It is for watchers and not recorded; the end of the step has the whole output.
    """

    path: str
    stream: str
    """stdout or stderr; in the file of a run also model."""
    text: str = field(repr=False)
    attempt: int = 1


@dataclass(frozen=True, slots=True)
class PendingHooks:
    """The hooks to notify of the end of a step; recorded with that end, before they run."""

    to: tuple[str, ...]
    """The names of hooks."""
    variables: Mapping[str, Json] = field(repr=False)
    """The variables that a resumed run could not compute: without result, item and constants."""
    unjudged: tuple[str, ...] = ()
    """The gates among them whose condition could not be evaluated."""


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
    """An earlier attempt of the run finished it; watchers see the event, the journal does not."""
    used: Usage | None = None
    """What the step has used since the last event of its path, without its children.

    The budgets around it count the same amounts, so their sum says what is left.
    """
    pending: PendingHooks | None = None
    """The hooks to notify; one without a later end was not notified."""


@dataclass(frozen=True, slots=True)
class ItemsCounted:
    """A map has found its items."""

    path: str
    total: int


@dataclass(frozen=True, slots=True)
class ItemsReplayed:
    """Many items of a map are replayed; it stands for a `replayed` end of each.

    It is for watchers and not recorded.
    """

    path: str
    done: bytes = field(repr=False)
    """By order: 1 for each replayed item."""


@dataclass(frozen=True, slots=True)
class EarlierUsage:
    """What earlier attempts of the run have used, by part; replayed steps are included.

    It is for watchers and not recorded.
    """

    parts: Mapping[str, Usage]


RETRY_REASON: Final = "retried"
"""Why the outcome of an item that `plait retry` runs again is invalidated."""


@dataclass(frozen=True, slots=True)
class StepInvalidated:
    """Recorded outcomes at this path (and below it) no longer count."""

    path: str
    why: str
    below: bool = True


@dataclass(frozen=True, slots=True)
class Note:
    """A message for people that is not a failure."""

    path: str
    message: str
    warning: bool = False
    """It points to a likely mistake; views repeat it at the end of the run."""


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
    | StepOutput
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
    """An event, its number in the journal, and the wall clock when it was recorded."""

    number: int
    at: float
    event: Event
