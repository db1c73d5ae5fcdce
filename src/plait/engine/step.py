"""A step, the policy by which it is performed, and how often it is retried."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import islice

from plait.core.grace import Backoff, backoff_delays
from plait.core.hints import TYPE_CHECKING, Any, Literal, Protocol, TypeAlias
from plait.core.records import dataclass
from plait.engine.kinds import failure_kinds
from plait.engine.outcome import LIMIT, Failure
from plait.engine.unknown import UNKNOWN_RESULT

if TYPE_CHECKING:
    from random import Random

    from plait.core.values import Json
    from plait.engine.dry_run import PlanLog
    from plait.engine.perform import StepContext


RETRIABLE_KINDS = tuple(failure_kinds("retriable"))


@dataclass(frozen=True, slots=True)
class Retry:
    attempts: int = 1
    """In all, the first included."""
    backoff: Backoff = "exponential"
    initial_delay: float = 1.0
    max_delay: float = 30.0
    increment: float | None = None
    """What `linear` adds each time; the initial delay if nothing is said."""
    base: float = 2.0
    """What `exponential` multiplies by."""
    jitter: float = 0.0
    """The share of a delay by which it may be shorter or longer."""
    retry_on: tuple[str, ...] = ()
    budget: float | None = None
    """Seconds for all attempts together, pauses included: no new one begins later."""

    def delays(self, random: Random | None = None) -> Iterator[float]:
        """The pause after each attempt that may be followed by another; `random` spreads them."""
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
            return False  # what is used up stays so
        if not self.retry_on:
            return True
        return any(
            failure.kind == wanted
            if wanted in RETRIABLE_KINDS
            else wanted.casefold() in failure.message.casefold()
            for wanted in self.retry_on
        )

    def exceeds_budget(self, spent: float) -> bool:
        return self.budget is not None and spent > self.budget


NO_RETRY = Retry()


class Step(Protocol):
    """Anything with a name that can be run; its value is JSON, so that replay equals live."""

    @property
    def name(self) -> str:
        """Its place in a path; one of its kind among its siblings."""

    @property
    def kind(self) -> str: ...

    @property
    def title(self) -> str: ...

    @property
    def fingerprint(self) -> str:
        """Digest of what its author wrote, all that is inside included."""

    @property
    def policy(self) -> Policy: ...

    @property
    def children(self) -> Sequence[Step]:
        """The steps that it performs; their changes are theirs, not its own."""


class Composite:
    """A step, an action or a program that only performs others: a dry run goes through it.

    It starts, writes and asks nothing itself.
    """

    __slots__ = ()

    def __init_subclass__(cls) -> None:
        # A class that is made of a composite may act: its author has to say that it does not.
        if "run" in cls.__dict__ and Composite not in cls.__bases__:
            raise TypeError(f"{cls.__name__} has a `run` of its own: name Composite as a base")

    def run(self, ctx: StepContext) -> Json:
        """Its value; raises StepError if it failed, Skip if there was nothing to do."""
        raise NotImplementedError


@dataclass(frozen=True, slots=True)
class Plan:
    """What an action is about to do.  It is made before the action acts; a dry run makes no more.

    `data` is what the action needs to act.
    """

    kind: str = ""
    shown: str = ""
    """For people; secrets are masked when it is shown.  Empty: nothing is shown."""
    data: Any = None

    def show(self, ctx: StepContext, log: PlanLog) -> Json:
        """Show it in the log of a dry run; what a dry run hands on as the result."""
        return log.add(ctx, self.kind, self.shown) if self.shown else dict(UNKNOWN_RESULT)


class Action(Protocol):
    """What a step does.  `perform` alone calls `execute`, and never in a dry run."""

    def plan(self, ctx: StepContext) -> Plan:
        """Fill templates and check; nothing is started, written or asked."""

    def execute(self, plan: Any, ctx: StepContext) -> Json:
        """Its value; raises StepError if it failed, Skip if there was nothing to do."""


@dataclass(frozen=True, slots=True)
class FunctionAction:
    """An action that is one function.  A dry run shows what `shown` says, or nothing."""

    run: Callable[[StepContext], Json]
    kind: str = ""
    shown: str = ""

    def plan(self, ctx: StepContext) -> Plan:  # noqa: ARG002 - the protocol's shape
        return Plan(self.kind, self.shown)

    def execute(self, plan: Plan, ctx: StepContext) -> Json:  # noqa: ARG002 - the same
        return self.run(ctx)


RetryScope: TypeAlias = Literal["inner", "always"]
"""Does another attempt go on where the last one ended, if something inside failed, or whatever
failed? Without a word of the step all that is inside of it is done anew."""


@dataclass(frozen=True, slots=True)
class Policy:
    """How `perform` treats a step."""

    retry: Retry = NO_RETRY
    timeout: float | None = None
    at_most_once: bool = False
    """Rather ask than do it a second time, when nobody knows whether the first was finished."""
    keep_failure: bool = False
    """A recorded failure is remembered like a success: a dead letter, until somebody retries it."""
    skip_on_failure: bool = False
    """A failure that is not tried again any more counts as if there had been nothing to do."""


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


def iter_steps(step: Step, path: str = "") -> Iterator[tuple[str, Step]]:
    """Every step of a flow that is known before it runs, with its path; an item's name is
    `item:*`.
    """
    here = f"{path}/{step.name}" if path else step.name
    yield here, step
    for child in step.children:
        yield from iter_steps(child, here)
