"""What steps need of the world; `app` gives it to them, tests give fakes."""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from functools import cached_property

from plait.engine.backend import Backend
from plait.engine.outcome import Failed, Outcome
from plait.engine.run import Run, Stop
from plait.hints import TYPE_CHECKING, Protocol
from plait.records import dataclass, field
from plait.values import Json

if TYPE_CHECKING:
    from plait.engine.perform import Step, Turn
    from plait.steps.call import ToolResult
    from plait.steps.changes import Tracker
    from plait.template.shell import BoundScript
    from plait.tools.invocation import RequestCall, Returned


class Ended(Protocol):
    """How a process ended, and what it printed."""

    @property
    def exit_code(self) -> int: ...
    @property
    def signal(self) -> int | None: ...
    @property
    def stdout(self) -> bytes: ...
    @property
    def stderr(self) -> bytes: ...
    @property
    def duration(self) -> float: ...
    @property
    def truncated(self) -> bool:
        """Some output is not in `stdout` or `stderr`."""

    @property
    def stdout_truncated(self) -> bool: ...
    @property
    def stdout_file(self) -> str | None:
        """All that it printed, if it was too long and there is such a file."""

    @property
    def stderr_file(self) -> str | None: ...


@dataclass(frozen=True, slots=True)
class ModelCall:
    """A question to a language model."""

    prompt: str
    system: str = ""
    model: str | None = None
    """None: the one that the provider is configured with."""
    options: Mapping[str, Json] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class ModelAnswer:
    text: str
    facts: Mapping[str, Json] = field(default_factory=dict)
    """Model, tokens, cost: whatever the provider says of it."""


class Provider(Protocol):
    """Whoever answers questions to a model."""

    def answer(self, call: ModelCall, *, timeout: float | None, stop: Stop) -> ModelAnswer:
        """Raises StepError, of kind network, server_error, rate_limit, timeout or refused."""


class Hands(Protocol):
    """The ways in which a step touches the world."""

    def shell(
        self,
        bound: BoundScript,
        *,
        shell: str,
        cwd: str,
        env: Mapping[str, str],
        stdin: bytes,
        timeout: float | None,
        stop: Stop,
    ) -> Ended:
        """Run a bound script to its end; a ProcessError if it took too long or the run is to stop."""

    def call(self, tool_id: str, params: Mapping[str, Json], *, timeout: float | None) -> ToolResult: ...

    def request(self, call: RequestCall) -> Returned: ...

    def read(self, path: str, *, directory: str) -> bytes:
        """A file below the project; an InputError if there is none."""

    def is_inside(self, directory: str) -> bool:
        """Is a folder the project, or below it, wherever links lead?"""

    def write(self, path: str, data: bytes, *, directory: str, mode: int | None, create_dirs: bool) -> str:
        """Put a whole file in place, below the project, at once or not at all; its full path."""

    def copy(self, source: str, path: str, *, directory: str) -> str:
        """Put a copy of a long output in place, as `write` does; a LimitError if there is not all of it."""

    def lines(
        self, bound: BoundScript, *, cwd: str, env: Mapping[str, str], timeout: float | None, stop: Stop
    ) -> Iterator[bytes]:
        """What a command prints, piece by piece; a ProcessError at the end if it fails."""

    def git(self, args: Sequence[str], *, cwd: str, env: Mapping[str, str], stdin: bytes = b"") -> bytes:
        """What `git ARGS` prints; a ProcessError if it fails or is not there.

        `env` is added to an environment without any `GIT_…` variable.
        """

    def provider(self, name: str | None) -> Provider | None:
        """The provider of that name, or the one that is used if nothing is said; None if there is none."""


@dataclass(frozen=True, slots=True)
class Rehearsed:
    """What a dry run shows of one step, instead of doing it."""

    path: str
    kind: str
    shown: str
    remembered: bool = False
    """It was done in an earlier life of the run, and is not done again."""
    why: str = ""
    """Why it is done again, although an earlier life of the run had begun or done it."""


class WorkingRun(Run):
    """A run whose steps have hands, a place for their items, and a folder for what is large."""

    hands: Hands
    backend: Backend
    folder: str
    rehearsal: list[Rehearsed] | None = None
    """In a dry run: where steps say what they would do, instead of doing it."""
    changes: Tracker | None = None
    """Knows what steps change, in a flow that asks for it."""

    @cached_property
    def noted(self) -> set[str]:
        """What need not be said again in this run."""
        return set()

    def rehearse(self, turn: Turn, kind: str, shown: str) -> None:
        """Say what a step would do."""
        assert self.rehearsal is not None
        self.rehearsal.append(Rehearsed(turn.path, kind, shown, why=self._why_again(turn)))

    def _why_again(self, turn: Turn) -> str:
        known = None if self.fresh else self.journal.recorded(turn.path)
        if known is None:
            return (
                "" if self.fresh or not self.journal.was_started(turn.path) else "it was begun, not finished"
            )
        if isinstance(known.outcome, Failed):
            return "it had failed"
        return "its text has changed" if turn.replaying else "a step before it is done again"

    def known(self, step: Step, turn: Turn) -> Outcome | None:
        outcome = super().known(step, turn)
        if outcome is not None and self.rehearsal is not None:
            self.rehearsal.append(Rehearsed(turn.path, step.kind, step.title, remembered=True))
        return outcome


def working(run: Run) -> WorkingRun:
    assert isinstance(run, WorkingRun), "steps run where `app` has given them hands"
    return run
