"""The port through which steps reach hooks, and its form for a run without hooks."""

from __future__ import annotations

from collections.abc import Mapping

from plait.core.hints import TYPE_CHECKING, Final, Protocol
from plait.core.values import Json

if TYPE_CHECKING:
    from plait.engine.hook_events import HookDecision
    from plait.engine.hooks import PendingNotifications
    from plait.engine.limits import Budget, LimitReached
    from plait.engine.outcome import Failed, Outcome
    from plait.engine.perform import StepContext
    from plait.engine.step import Step

NOTHING: Final[Mapping[str, Json]] = {}


class Hooks(Protocol):
    """The hooks of a run; see `HookRunner` for what each method does."""

    @property
    def is_empty(self) -> bool:
        """There are no hooks, and the run has no limits."""

    @property
    def depth(self) -> int:
        """The number of flows with hooks around, the run included."""

    @property
    def budget(self) -> Budget | None: ...

    def has(self, event: str) -> bool: ...

    def fire(
        self,
        event: str,
        ctx: StepContext,
        context: Mapping[str, Json] = NOTHING,
        *,
        own_only: bool = False,
    ) -> HookDecision | None: ...

    def require(
        self,
        event: str,
        ctx: StepContext,
        context: Mapping[str, Json] = NOTHING,
        *,
        own_only: bool = False,
    ) -> HookDecision | None: ...

    def notify_after(self, ctx: StepContext, event: str, context: Mapping[str, Json]) -> None: ...

    def limit_reached(
        self, ctx: StepContext, reached: LimitReached, context: Mapping[str, Json] = NOTHING
    ) -> None: ...

    def before(self, step: Step, ctx: StepContext) -> Outcome | None: ...

    def after_failure(
        self, step: Step, ctx: StepContext, attempt: int, failed: Failed
    ) -> tuple[Outcome, float | None]: ...

    def pending_after(
        self, step: Step, ctx: StepContext, outcome: Outcome, attempt: int
    ) -> PendingNotifications | None: ...

    def deliver_pending(self, ctx: StepContext, outcome: Outcome) -> None: ...

    def has_decided(self, event: str, ctx: StepContext, since: int) -> bool: ...


class NoHooks:
    """The hooks of a run that has none."""

    is_empty = True
    depth = 1
    budget = None

    def has(self, event: str) -> bool:  # noqa: ARG002
        return False

    def fire(
        self,
        event: str,  # noqa: ARG002
        ctx: StepContext,  # noqa: ARG002
        context: Mapping[str, Json] = NOTHING,  # noqa: ARG002
        *,
        own_only: bool = False,  # noqa: ARG002
    ) -> HookDecision | None:
        return None

    require = fire

    def notify_after(self, ctx: StepContext, event: str, context: Mapping[str, Json]) -> None:
        """There is no hook to notify."""

    def limit_reached(
        self, ctx: StepContext, reached: LimitReached, context: Mapping[str, Json] = NOTHING
    ) -> None:
        """There is no hook to notify."""

    def before(self, step: Step, ctx: StepContext) -> Outcome | None:  # noqa: ARG002
        return None

    def after_failure(
        self,
        step: Step,  # noqa: ARG002
        ctx: StepContext,  # noqa: ARG002
        attempt: int,  # noqa: ARG002
        failed: Failed,
    ) -> tuple[Outcome, float | None]:
        return failed, None

    def pending_after(
        self,
        step: Step,  # noqa: ARG002
        ctx: StepContext,  # noqa: ARG002
        outcome: Outcome,  # noqa: ARG002
        attempt: int,  # noqa: ARG002
    ) -> PendingNotifications | None:
        return None

    def deliver_pending(self, ctx: StepContext, outcome: Outcome) -> None:
        """Nothing is pending."""

    def has_decided(self, event: str, ctx: StepContext, since: int) -> bool:  # noqa: ARG002
        return False


NO_HOOKS: Final = NoHooks()
