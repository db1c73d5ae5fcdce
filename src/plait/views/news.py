"""What a view may want to say at once."""

from __future__ import annotations

from plait.core.hints import TypeAlias
from plait.core.records import dataclass
from plait.engine.events import Status
from plait.engine.outcome import Outcome
from plait.views.parts import FailedStep, Note, Part, Row, RunningStep


@dataclass(frozen=True, slots=True)
class RunBegan:
    resumed: bool


@dataclass(frozen=True, slots=True)
class PartBegan:
    part: Part


@dataclass(frozen=True, slots=True)
class PartCounted:
    part: Part


@dataclass(frozen=True, slots=True)
class PartEnded:
    part: Part


@dataclass(frozen=True, slots=True)
class StepBegan:
    """A step directly below a part, not an item."""

    part: Part
    step: RunningStep


@dataclass(frozen=True, slots=True)
class StepEnded:
    part: Part
    title: str
    outcome: Outcome
    duration: float
    replayed: bool


@dataclass(frozen=True, slots=True)
class RowEnded:
    """A turn or call of an agent, a visit of a node, a task: told when it is over."""

    part: Part
    within: str
    """The title of the step that it is inside of; empty: directly in the part."""
    row: Row


@dataclass(frozen=True, slots=True)
class ItemEnded:
    """An item of a part; for views that say now and then how far it is."""

    part: Part


@dataclass(frozen=True, slots=True)
class Retrying:
    title: str
    attempt: int
    """The one that failed …"""
    of: int
    """… of so many; 0 if that is not known."""
    how: str
    delay: float


@dataclass(frozen=True, slots=True)
class RunOver:
    status: Status


News: TypeAlias = (
    RunBegan
    | PartBegan
    | PartCounted
    | PartEnded
    | StepBegan
    | StepEnded
    | RowEnded
    | ItemEnded
    | Retrying
    | FailedStep
    | Note
    | RunOver
)
