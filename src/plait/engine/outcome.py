"""Outcomes: how a step ended (`Succeeded`, `Failed`, `Skipped`), and its form in a journal.

A step that fails raises `StepError`.  Four exceptions are not outcomes: nothing is recorded, and a
resumed run performs the step again.  `Interrupted`: the run is being stopped.  `DeadlineExceeded`:
a step around has no time left.  `LimitExceeded`: a budget around has nothing left.  `Aborted`: a
hook ends the run.
"""

from __future__ import annotations

from collections.abc import Callable

from plait.core.errors import PlaitError, ValueRefusedError
from plait.core.hints import TYPE_CHECKING, Final, TypeAlias, TypeVar
from plait.core.records import dataclass, replace
from plait.core.values import Json, require_json

if TYPE_CHECKING:
    from plait.core.errors import RequestError
    from plait.engine.limits import LimitReached


INCOMPLETE: Final = "incomplete"
"""The failure kind of a step that ran, but whose check found something missing."""
LIMIT: Final = "limit"
"""The failure kind of a reached limit; another attempt cannot help."""
TOO_MANY: Final = "too_many"
"""The failure kind of a map with too many failed items; a resumed run does not retry them."""
ALL_FAILED: Final = "all_failed"
"""The failure kind of a run in which every item of the map failed."""
SOME_FAILED: Final = "some_failed"
"""What hooks get as the failure kind of a run in which some items of the map failed."""
ABORTED: Final = "aborted"
"""The failure kind of a run that a hook ends."""
HANDLER_FAILED: Final = " failed as well: "
"""Text between the message of a step and that of its failure handler."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a step failed, for handlers (`error.*`), journals and people; secrets are masked."""

    message: str
    kind: str = "failed"
    """One of `FAILURE_KINDS` in `engine/kinds.py`."""
    exit_code: int | None = None
    output: Json = None
    """The partial result of the step, in the form of its value."""
    path: str = ""
    """The step that failed first, if this is the failure of a list of steps."""

    def as_result(self) -> dict[str, Json]:
        """Return the result in the form of a step that did not fail."""
        if isinstance(self.output, dict):
            return dict(self.output)
        return {
            "output": "",
            "stderr": self.message,
            "exit_code": self.exit_code or 1,
            "duration": 0.0,
        }

    def record(self) -> dict[str, Json]:
        return {
            "message": self.message,
            "kind": self.kind,
            "exit_code": self.exit_code,
            "output": self.output,
            "path": self.path,
        }


@dataclass(frozen=True, slots=True)
class Succeeded:
    value: Json = None


@dataclass(frozen=True, slots=True)
class Failed:
    failure: Failure


@dataclass(frozen=True, slots=True)
class Skipped:
    why: str


Outcome: TypeAlias = Succeeded | Failed | Skipped


class StepError(Exception):
    """Raised by a step that failed."""

    def __init__(self, failure: Failure) -> None:
        super().__init__(failure.message)
        self.failure = failure


class Interrupted(BaseException):
    """The run is being stopped."""


class DeadlineExceeded(BaseException):
    """The time of a step around is over: that step fails, not the ones inside it."""


def with_handler_failure(failure: Failure, handler: str, its: Failure) -> Failure:
    """Append the failure of a handler to that of its step: the reader needs both."""
    return replace(failure, message=f"{failure.message}\n{handler}{HANDLER_FAILED}{its.message}")


class Aborted(BaseException):
    """A hook, or a limit, ends the run.  No failure handler catches it.

    `outcome` is that of the step at `path`, if it had one by then.  It is recorded; the steps
    around it get no outcome.
    """

    def __init__(self, failure: Failure, path: str = "", outcome: Outcome | None = None) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.path = path
        self.outcome = outcome


class LimitExceeded(Aborted):
    """A limit of a flow or agent around is reached: that one fails, not the steps inside it.

    The flow or agent with the limit turns this into its failure; if the run has the limit, the run
    ends.  Steps in between may put a partial result into `failure.output`.
    """

    def __init__(self, reached: LimitReached, path: str, partial: Json = None) -> None:
        super().__init__(replace(reached.failure(partial), path=path), path)
        self.reached = reached


def too_long(seconds: float) -> Failure:
    return Failure(f"took longer than {seconds:g} s", "timeout")


def require_recordable(value: Json) -> Json:
    """Return the value; raise StepError if a journal cannot hold it."""
    try:
        require_json(value)
    except ValueRefusedError as error:
        raise StepError(Failure(f"gave what cannot be recorded: {error.what}", "capture")) from None
    return value


def recordable_failure(failure: Failure) -> Failure:
    """Return the failure, without its output if a journal cannot hold that."""
    try:
        require_json(failure.output)
    except ValueRefusedError:
        return replace(failure, output=None)
    return failure


def require_success(outcome: Outcome) -> Json:
    """Return the value of a step; raise StepError if it failed."""
    if isinstance(outcome, Failed):
        raise StepError(outcome.failure)
    return outcome.value if isinstance(outcome, Succeeded) else None


def to_record(outcome: Outcome) -> dict[str, Json]:
    match outcome:
        case Succeeded(value):
            return {"status": "done", "value": value}
        case Failed(failure):
            return {"status": "failed", "failure": failure.record()}
        case Skipped(why):
            return {"status": "skipped", "why": why}


NO_TIME_LEFT: Final = "stopped: the timeout of an outer step was reached"


class Skip(Exception):
    """Raised by a step that had nothing to do."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


def failure_kind_of_status(status: int) -> str:
    """Return the failure kind for an HTTP status."""
    if status == 429:
        return "rate_limit"
    if status in (408, 504):
        return "timeout"
    return "server_error" if 500 <= status < 600 else "failed"


def failure_kind_of_error(error: RequestError) -> str:
    """Return the failure kind for a request without a response."""
    match error.code:
        case "deadline":
            return "timeout"
        case "name-not-found" | "unreachable" | "tls" | "connection-lost":
            return "network"
        case "too-large" | "encoding":
            return "failed"
    return "refused"


T = TypeVar("T")


def call_author_function(call: Callable[[], T], what: str, mask: Callable[[str], str] = str) -> T:
    """Call a function that an author of a flow wrote; raise StepError if it raises."""
    try:
        return call()
    except (KeyboardInterrupt, Interrupted, DeadlineExceeded, Aborted, StepError, PlaitError):
        raise
    except BaseException as error:
        raise StepError(
            Failure(mask(f"the {what} raised {type(error).__name__}: {error}"))
        ) from error
