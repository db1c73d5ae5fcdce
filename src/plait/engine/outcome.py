"""How a step ended: `Succeeded`, `Failed` or `Skipped`; and how each looks as JSON in a journal.

A step that cannot do its work raises `StepError`; one whose run is being stopped
raises `Interrupted`, which is no outcome: nothing is recorded of it, and a resumed
run does it again.  So it is with `DeadlineExceeded`: what a step is inside of has no time left;
with `LimitExceeded`: it has nothing left of something else; and with `Aborted`, for whatever the
step is inside of.
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
"""The kind of failure of a step that was done, and of which a check says that something is missing.
"""
LIMIT: Final = "limit"
"""The kind of a failure by which a limit ends something: another attempt cannot mend that."""
TOO_MANY: Final = "too_many"
"""The kind of failure of a map in which more items failed than may: they stay failed when the run
goes on.
"""
ABORTED: Final = "aborted"
"""The kind of failure of a run that a hook ends."""
IN_VAIN: Final = " failed as well: "
"""Between what is said of a step and of its handler."""


@dataclass(frozen=True, slots=True)
class Failure:
    """Why a step failed, for handlers (`error.*`), journals and people.  Secrets are masked
    before.
    """

    message: str
    kind: str = "failed"
    """exit, signal, timeout, network, server_error, rate_limit, refused, incomplete, stopped … or
    failed.
    """
    exit_code: int | None = None
    output: Json = None
    """What the step had produced until then, in the form in which a finished one gives its value.
    """
    path: str = ""
    """The step that failed first, if this failure is that of a whole list of steps."""

    def as_result(self) -> dict[str, Json]:
        """How the step ended, as one that did not fail would say it."""
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
    """The time of a whole is over: it fails, and not those of its steps that it has no time for."""


def with_handler_failure(failure: Failure, handler: str, its: Failure) -> Failure:
    """The failure of a step, and after it that of its handler: whoever reads it needs both."""
    return replace(failure, message=f"{failure.message}\n{handler}{IN_VAIN}{its.message}")


class Aborted(BaseException):
    """The run ends here: a hook says so, or a limit of the run is reached.  No handler goes on
    after it.

    `outcome` is that of the step at `path`, if it had one by then: it is recorded, as nothing
    around it is.
    """

    def __init__(self, failure: Failure, path: str = "", outcome: Outcome | None = None) -> None:
        super().__init__(failure.message)
        self.failure = failure
        self.path = path
        self.outcome = outcome


class LimitExceeded(Aborted):
    """A limit of a whole is reached: it fails, and not those of its steps for which nothing is
    left.

    Whoever has the limit turns this into its own failure; of the run it is the end.  On the way
    there each may put into `failure.output` what it had made until then.
    """

    def __init__(self, reached: LimitReached, path: str, partial: Json = None) -> None:
        super().__init__(replace(reached.failure(partial), path=path), path)
        self.reached = reached


def too_long(seconds: float) -> Failure:
    return Failure(f"took longer than {seconds:g} s", "timeout")


def require_recordable(value: Json) -> Json:
    """The same; a value that no journal could hold is a failure of the step that gives it."""
    try:
        require_json(value)
    except ValueRefusedError as error:
        raise StepError(Failure(f"gave what cannot be recorded: {error.what}", "capture")) from None
    return value


def recordable_failure(failure: Failure) -> Failure:
    """The same, without what cannot be recorded of it: why it failed says more than that."""
    try:
        require_json(failure.output)
    except ValueRefusedError:
        return replace(failure, output=None)
    return failure


def require_success(outcome: Outcome) -> Json:
    """The value of a step on which others depend."""
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


NO_TIME_LEFT: Final = "was ended: the time of what it is part of was over"


class Skip(Exception):
    """Raised by a step that had nothing to do."""

    def __init__(self, why: str) -> None:
        super().__init__(why)
        self.why = why


def failure_kind_of_status(status: int) -> str:
    """The kind of failure that an unwelcome answer is."""
    if status == 429:
        return "rate_limit"
    if status in (408, 504):
        return "timeout"
    return "server_error" if 500 <= status < 600 else "failed"


def failure_kind_of_error(error: RequestError) -> str:
    """The kind of failure that no answer is."""
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
    """What such a function gives; StepError if it raises."""
    try:
        return call()
    except (KeyboardInterrupt, Interrupted, DeadlineExceeded, Aborted, StepError, PlaitError):
        raise
    except BaseException as error:
        raise StepError(
            Failure(mask(f"the {what} raised {type(error).__name__}: {error}"))
        ) from error
