"""Steps: what they are made of, the policy by which `perform` treats them, and their retries."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator, Sequence
from itertools import islice

from plait.core.backoff import Backoff, backoff_delays
from plait.core.hints import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias
from plait.core.records import dataclass
from plait.engine.kinds import failure_kinds
from plait.engine.outcome import LIMIT, Failure
from plait.engine.paths import join_path
from plait.engine.unknown_results import UNKNOWN_RESULT

if TYPE_CHECKING:
    from random import Random

    from plait.core.values import Json
    from plait.engine.perform import StepContext
    from plait.engine.plan_log import PlanLog


RETRIABLE_KINDS = tuple(failure_kinds("retriable"))


@dataclass(frozen=True, slots=True)
class Retry:
    attempts: int = 1
    """The number of attempts, the first included."""
    backoff: Backoff = "exponential"
    initial_delay: float = 1.0
    max_delay: float = 30.0
    increment: float | None = None
    """Seconds that `linear` adds each time; None means the initial delay."""
    base: float = 2.0
    """What `exponential` multiplies by."""
    jitter: float = 0.0
    """The share of a delay by which it may be shorter or longer."""
    retry_on: tuple[str, ...] = ()
    budget: float | None = None
    """Seconds for all attempts and pauses together; no attempt starts after that."""

    def delays(self, random: Random | None = None) -> Iterator[float]:
        """Yield the pause before each attempt after the first; `random` spreads them."""
        if random is None and self.jitter:
            from random import Random

            random = Random()
        growing = backoff_delays(
            self.backoff,
            self.initial_delay,
            self.max_delay,
            increment=self.increment,
            base=self.base,
        )
        for delay in islice(growing, self.attempts - 1):
            spread = random.uniform(1 - self.jitter, 1 + self.jitter) if random else 1.0
            # The longest pause is spread downwards only: it stays the longest, and crowds still
            # part.
            yield min(delay * spread, self.max_delay)

    def applies_to(self, failure: Failure) -> bool:
        if failure.kind == LIMIT:
            return False  # another attempt would reach the same limit
        if not self.retry_on:
            return True
        return any(
            failure.kind == wanted
            if wanted in RETRIABLE_KINDS
            else wanted.casefold() in failure.message.casefold()
            for wanted in self.retry_on
        )

    def exceeds_budget(self, seconds: float) -> bool:
        return self.budget is not None and seconds > self.budget


NO_RETRY = Retry()


class Step(Protocol):
    """The smallest recorded unit.  Its value is JSON, so a replay gives the same value."""

    @property
    def name(self) -> str:
        """The last part of its path; unique among its siblings."""

    @property
    def kind(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def fingerprint(self) -> str:
        """Digest of what its author wrote, with the text of its children."""

    @property
    def policy(self) -> Policy: ...

    @property
    def children(self) -> Sequence[Step]:
        """The steps that it performs.  A changed child does not make this step a changed one."""


class Composite:
    """A step, an action or a program that only performs other steps.

    It starts no process, writes no file and asks no model, so a dry run calls its `run`, too.
    """

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        # A dry run calls `run` of composites.  A subclass that overrides `run` names Composite
        # again, to say that it still only performs steps.
        if "run" in cls.__dict__ and Composite not in cls.__bases__:
            raise TypeError(f"{cls.__name__} overrides `run`: name Composite as a base")

    @property
    def capture_name(self) -> str:
        """The variable that holds what it printed; empty: there is none."""
        return ""

    def run(self, ctx: StepContext) -> Json:
        """Return its value; raise StepError if it failed, Skip if there was nothing to do."""
        raise NotImplementedError  # each composite has its own


@dataclass(frozen=True, slots=True)
class Plan:
    """What an action is about to do.  A dry run shows it; a run executes it."""

    kind: str = ""
    shown: str = ""
    """Text for people; `PlanLog` masks secrets.  Empty: a dry run shows nothing."""
    data: Any = None
    """What `execute` needs."""

    def show(self, ctx: StepContext, log: PlanLog) -> Json:
        """Add the plan to the log of a dry run; return the unknown result that later steps see."""
        return log.add(ctx, self.kind, self.shown) if self.shown else dict(UNKNOWN_RESULT)


class Action(Protocol):
    """What a step does.  Only `act` calls `execute`, and never in a dry run."""

    def plan(self, ctx: StepContext) -> Plan:
        """Fill templates and check values.  Start, write and ask nothing."""

    def execute(self, plan: Any, ctx: StepContext) -> Json:
        """Return the step's value; raise StepError if it failed, Skip if there was nothing to do."""


@dataclass(frozen=True, slots=True)
class FunctionAction:
    """An action that is one function.  A dry run shows `shown`."""

    run: Callable[[StepContext], Json]
    kind: str = ""
    shown: str = ""

    def plan(self, ctx: StepContext) -> Plan:  # noqa: ARG002 - the protocol's shape
        return Plan(self.kind, self.shown)

    def execute(self, plan: Plan, ctx: StepContext) -> Json:  # noqa: ARG002 - the same
        return self.run(ctx)


RetryScope: TypeAlias = Literal["inner", "always"]
"""When another attempt of a step continues where the last one stopped: `inner` if a step inside it
failed, `always` whatever failed.  By default an attempt performs all children again."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How `perform` treats a step."""

    retry: Retry = NO_RETRY
    timeout: float | None = None
    at_most_once: bool = False
    """If the end of an attempt is unknown, ask the user before another one."""
    keep_failure: bool = False
    """A recorded failure is replayed like a success: a dead letter, until the user retries it."""
    skip_on_failure: bool = False
    """After the last attempt a failure counts as skipped."""


DEFAULT_POLICY = Policy()


@dataclass(frozen=True, slots=True)
class LeafStep:
    """A step that is one action."""

    name: str
    kind: str
    title: str
    fingerprint: str
    action: Action | Composite
    policy: Policy = DEFAULT_POLICY
    children: Sequence[Step] = ()
    retry_scope: RetryScope | None = None


def retry_mark(path: str, attempt: int) -> str:
    """Mark what belongs to the second or a later attempt of a step, in trace ids."""
    return f"; {path} {attempt}"


def iter_steps(step: Step, path: str = "") -> Iterator[tuple[str, Step]]:
    """Yield every step that is known before a run, with its path; an item is `item:*`."""
    here = join_path(path, step.name)
    yield here, step
    for child in step.children:
        yield from iter_steps(child, here)


def iter_program(parts: Iterable[Step]) -> Iterator[tuple[str, Step]]:
    """Yield the same of all parts of a program."""
    for part in parts:
        yield from iter_steps(part)
